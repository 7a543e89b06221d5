"""The episode service: batches with groups, the state of runs, temperatures, the client."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest

from rewardfleet import RewardFleet, blocking, episode_request
from rewardfleet.wire.episode import EpisodeBatchResponse, GroupMemberResponse
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet_server.run_state import groups

from ...conftest import table
from ..processes import service_process
from .conftest import post_batch, served_episodes


def four_items(group: str = "g", **fields: object) -> list[dict]:
    """Return a group of two successes and two failures."""
    return [
        {"uid": f"{group}{n}", "group": group, "success": n < 2, "steps": 100 * (n + 1),
         "max_steps": 500, "kind": "efficiency", **fields}
        for n in range(4)
    ]  # fmt: skip


# Batches


def test_results_are_in_order_with_statistics_of_groups(service: httpx.Client):
    response = post_batch(service, [*four_items("a"), *four_items("b")])
    parsed = EpisodeBatchResponse.model_validate(response, extra="forbid")
    assert [each.uid for each in parsed.results] == [f"{g}{n}" for g in "ab" for n in range(4)]
    scores = [each.score for each in parsed.results]
    assert scores[:4] == pytest.approx([1 / 1.2, 1 / 1.4, 0, 0])
    assert parsed.results[0].details == {"success": 1.0}
    assert [(g.group, g.size, g.success_rate) for g in parsed.groups] == [
        ("a", 4, 0.5),
        ("b", 4, 0.5),
    ]
    assert parsed.groups[0].mean == pytest.approx(np.mean(scores[:4]))
    assert parsed.groups[0].std == pytest.approx(np.std(scores[:4], ddof=1))


def test_a_single_episode(service: httpx.Client):
    response = service.post("/score", json=four_items()[0]).json()
    assert response["score"] == pytest.approx(1 / 1.2)
    assert (response["status"], response["keep"]) == ("ok", True)
    refused = service.post("/score", json={"uid": "a", "kind": "reward_model"})
    assert (refused.status_code, refused.json()["kind"]) == (422, "invalid")
    assert "kind reward_model needs reward_model_score" in refused.json()["detail"]
    abstained = {"uid": "a", "kind": "visual", "episode_reward": 1,
                 "visual_success": {"score": None, "status": "abstained"}}  # fmt: skip
    response = service.post("/score", json=abstained).json()
    assert (response["score"], response["status"], response["keep"]) == (None, "abstained", False)


def test_groups_with_equal_rewards_are_dropped_within_a_tolerance_except_in_test_time_rl(
    service: httpx.Client,
):
    """Exact equality would never drop a group of successes once efficiency is in the reward."""
    items = [{**each, "success": True, "steps": 100 + n} for n, each in enumerate(four_items())]

    def keep(**rules: object) -> list[bool]:
        response = post_batch(service, items, options={"filter": rules})
        return [each["keep"] for each in response["results"]]

    assert keep() == [True] * 4  # the rewards differ by 0.004
    assert keep(tolerance=0.01) == [False] * 4
    assert keep(tolerance=0.01, final_attempt=True) == [True] * 4
    assert keep(tolerance=0.01, test_time_rl=True) == [True] * 4
    assert keep(tolerance=0.01, test_time_rl=True, drop_all_equal=True) == [False] * 4
    assert keep(accuracy_bounds=[0.1, 0.9]) == [False] * 4
    assert keep(select="efficient", select_count=2) == [True, True, False, False]
    response = post_batch(service, items, options={"filter": {"tolerance": 0.01}})
    assert response["groups"][0]["all_equal"] is True
    assert response["results"][0]["drop_reason"] == "all_equal"


def test_similar_trajectories_are_clustered_and_vote(service: httpx.Client):
    time = np.linspace(0, 3, 40)[:, None]
    one, other = np.sin(time + np.arange(7)), np.cos(2 * time + np.arange(7))
    # The second is the first at twice the speed; the third is different.
    actions = [one, one[::2] + 0.01, other, one + 0.01]
    items = [{**each, "actions": a.tolist()} for each, a in zip(four_items(), actions, strict=True)]
    for distance in ("resampled", "dtw"):
        response = post_batch(
            service,
            items,
            options={
                "clusters": {"distance": distance, "threshold": 0.2},
                "filter": {"select": "diverse", "select_count": 2},
            },
        )
        votes = [(each["cluster"], each["pseudo_label"]) for each in response["results"]]
        assert votes == [(0, 1), (0, 1), (1, 0), (0, 1)], distance
        assert response["groups"][0]["majority_ratio"] == 0.75
        assert response["groups"][0]["diversity"] > 0.3
        keep = [each["keep"] for each in response["results"]]
        assert sum(keep) == 2 and keep[2], "the different one is selected"


def test_the_response_of_the_video_service_is_accepted_unchanged(service: httpx.Client):
    scored = {"score": 0.5, "status": "ok", "backend": "reference", "model_output": "half"}
    abstained = {"score": None, "status": "abstained"}
    problem = {"title": "x", "status": 503, "detail": "gone", "kind": "unavailable",
               "retryable": True}  # fmt: skip
    failed = {"score": None, "status": "error", "error": problem}
    items = [
        {"uid": str(n), "kind": "visual", "episode_reward": 4, "visual_success": visual}
        for n, visual in enumerate([scored, 0.25, abstained, failed, 2, {"a": 1}])
    ]
    results = post_batch(service, items)["results"]
    assert [each["score"] for each in results] == [2.0, 1.0, None, None, None, None]
    assert [each["status"] for each in results[2:4]] == ["abstained", "error"]
    assert results[3]["error"]["kind"] == "unavailable"
    assert "in [0, 1]" in results[4]["error"]["detail"]
    assert "Score" in results[5]["error"]["detail"] or "visual" in results[5]["error"]["detail"]


#: An item without a score, in the ways in which one has none.
UNSCORED = dict(table("unscored_items"))


@pytest.mark.parametrize("normalize", ["group_mean", "group_std", "leave_one_out", "running"])
@pytest.mark.parametrize("reason", UNSCORED)
def test_a_member_without_a_score_does_not_count_in_its_group(
    service: httpx.Client, reason: str, normalize: str
):
    """Scores, statistics and filters of the others are those of a group without it."""

    def result(items: list[dict]) -> tuple[list[dict], list[dict]]:
        response = post_batch(
            service,
            items,
            options={"normalize": normalize, "filter": {"accuracy_bounds": [0.0, 0.6]}},
            run=f"{reason} {normalize} {len(items)}",
            step=0,
        )
        return response["results"], response["groups"]

    fields = {"kind": "visual", "visual_success": 1.0}
    three = [
        {"uid": str(n), "group": "g", "episode_reward": n, "success": n > 1, **fields}
        for n in range(3)
    ]
    unscored = {"uid": "x", "group": "g", "episode_reward": 99, "success": True, **UNSCORED[reason]}
    alone, statistics = result(three)
    results, groups = result([*three[:1], unscored, *three[1:]])
    assert [results[0], *results[2:]] == alone and groups == statistics
    assert statistics[0]["size"] == 3 and alone[0]["keep"]
    assert (results[1]["score"], results[1]["keep"]) == (None, False)
    assert results[1]["status"] == ("error" if reason == "failed" else "abstained")


@pytest.mark.parametrize("reason", UNSCORED)
def test_a_member_that_is_left_alone_abstains(service: httpx.Client, reason: str):
    """It is not invalid: its caller could not know that the others would have no score."""
    items = [
        {"uid": str(n), "group": "g", "kind": "visual", "episode_reward": 1, "visual_success": 0.5}
        for n in range(3)
    ]
    for lost in items[1:]:
        lost.update(UNSCORED[reason])
    results = post_batch(service, items, options={"normalize": "group_std"})["results"]
    assert (results[0]["status"], results[0]["score"]) == ("abstained", None)
    assert not any(each["keep"] for each in results)


def test_step_rewards_are_returned_with_a_score_that_is_not_normalized(service: httpx.Client):
    items = [
        {"uid": "h", "group": "g", "kind": "hybrid", "step_rewards": [1, 2],
         "step_token_ends": [3, 9], "episode_reward": 10},
        {"uid": "s", "group": "g", "kind": "shaped", "progress": [0.5, 0, 1], "success": True},
    ]  # fmt: skip
    hybrid, shaped = post_batch(service, items)["results"]
    assert (hybrid["step_rewards"], hybrid["token_positions"]) == ([1, 12], [3, 9])
    assert (hybrid["score"], hybrid["components"]) == (13, {"episode": 10, "steps": 3})
    assert shaped["step_rewards"] == [-0.5, 1.0, 0.5]  # -0.5 for the end, +1 for success
    assert shaped["score"] == 1.0
    for each in post_batch(service, items, options={"normalize": "group_std"})["results"]:
        assert "step_rewards" not in each and "token_positions" not in each


def test_statistics_by_temperature_and_their_metrics(service: httpx.Client):
    items = [
        {**each, "temperature": temperature}
        for each, temperature in zip(four_items(), [0.6, 0.6, 0.9, 7], strict=True)
    ]
    bins = {each["temperature"]: each for each in post_batch(service, items)["temperatures"]}
    assert set(bins) == {"0.6", "0.9", "2.0"}
    assert (bins["0.6"]["success_rate"], bins["0.6"]["steps"]) == (1.0, 150.0)
    assert bins["0.6"]["reward_variance"] == pytest.approx(np.var([1 / 1.2, 1 / 1.4]))
    metrics = service.get("/metrics").text
    assert 'rewardfleet_episode_success_rate{temperature="0.6"} 1.0' in metrics
    assert 'rewardfleet_episodes_total{temperature="2.0"} 1.0' in metrics
    many = [{**four_items()[0], "uid": f"{n}", "temperature": n / 10} for n in range(500)]
    assert len(post_batch(service, many)["temperatures"]) == 21, "limited"
    assert 'status="ok"' in metrics and "rewardfleet_results_total" in metrics


# The state of runs


def test_running_statistics_count_each_episode_of_a_run_once(tmp_path: Path):
    """By (run, step, uid): an episode sent again, alone or among others, is not counted again."""
    options = {"normalize": "running"}
    rng = np.random.default_rng(0)
    rewards = rng.normal(3, 2, size=40)
    model_scores = [
        {"uid": f"{n}", "kind": "reward_model", "reward_model_score": r}
        for n, r in enumerate(rewards)
    ]
    returns = [
        {"uid": f"{n}", "kind": "return", "episode_reward": r} for n, r in enumerate(rewards)
    ]
    file = tmp_path / "runs.sqlite"
    with served_episodes(run_state=file) as service:
        first = post_batch(service, returns[:20], options=options, run="a", step=1)
        again = post_batch(service, returns[:20], options=options, run="a", step=1)
        assert first["running"] == again["running"]
        assert first["results"] == again["results"]
        assert first["running"]["mean"] == pytest.approx(rewards[:20].mean())
        overlapping = post_batch(service, returns[10:], options=options, run="a", step=1)
    with served_episodes(run_state=file) as service:  # the state survives a restart
        later = post_batch(service, returns[:1], options=options, run="a", step=2)["running"]
        assert overlapping["running"]["count"] == 40
        assert overlapping["running"]["variance"] == pytest.approx(rewards.var())
        assert later["count"] == 41
        scores = [each["score"] for each in overlapping["results"]]
        assert scores == pytest.approx((rewards[10:] - rewards.mean()) / rewards.std(), abs=1e-4)
        untouched = post_batch(service, model_scores, options=options, run="b", step=1)["results"]
        assert [each["score"] for each in untouched] == pytest.approx(rewards.tolist())
        for step in range(3, 10):
            post_batch(service, returns[:1], options=options, run="a", step=step)
        late = service.post(
            "/score/batch",
            json={"items": returns[:2], "options": options, "run": "a", "step": 1},
        )
        assert (late.status_code, "too old" in late.json()["detail"]) == (422, True)


@pytest.mark.slow
def test_each_step_of_a_run_moves_its_temperatures_once(tmp_path: Path):
    file = tmp_path / "runs.sqlite"

    def adapt(service: httpx.Client, step: int, **outcome: object) -> dict:
        fields = {"run": "r", "step": step, **outcome}
        return service.post("/temperatures", json={"n": 2, "adapt": fields}).json()

    with served_episodes(run_state=file) as service:
        easy = adapt(service, 1, success_rate=1.0)
        assert easy["base_temperature"] > 0.6 and easy["temperature_range"] > 0.3
        assert adapt(service, 1, success_rate=0.0)["kind"] == "conflict", "a step moves them once"
    with served_episodes(run_state=file) as service:
        assert adapt(service, 1, success_rate=1.0) == easy, "and that survives a restart"
        hard = adapt(service, 2, success_rate=0.0)
        assert hard["base_temperature"] == pytest.approx(0.6)
        for step in range(3, 60):
            last = adapt(service, step, diversity=0.0, target_diversity=0.2)
        assert (last["base_temperature"], last["temperature_range"]) == (1.5, 1.0), "limited"


# Groups that are collected member by member


def add_member(service: httpx.Client, item: dict, **fields: object) -> httpx.Response:
    return service.post(
        "/groups/members", json={"run": "r", "step": 1, "group_size": 3, "item": item, **fields}
    )


def test_a_complete_group_is_released(tmp_path: Path):
    items = four_items()
    file = tmp_path / "runs.sqlite"
    options = {"normalize": "group_mean"}
    with served_episodes(run_state=file) as service:
        first = add_member(service, items[0], options=options).json()
        assert (first["released"], first["missing"]) == (False, 2)
        assert add_member(service, items[0], options=options).json()["missing"] == 2
        other = {**items[0], "success": False}
        assert add_member(service, other, options=options).json()["kind"] == "conflict"
    with served_episodes(run_state=file) as service:  # an open group survives a restart
        add_member(service, items[1], options=options)
        last = add_member(service, items[2], options=options).json()
        parsed = GroupMemberResponse.model_validate(last, extra="forbid")
        assert parsed.released and parsed.missing == 0 and parsed.group.size == 3
        mean = np.mean([1 / 1.2, 1 / 1.4, 0])
        assert parsed.result.score == pytest.approx(0 - mean)
        for _ in range(2):
            score = add_member(service, items[0], options=options).json()["result"]["score"]
            assert score == pytest.approx(1 / 1.2 - mean)
        late = add_member(service, items[3], options=options)
        assert (late.status_code, late.json()["retryable"]) == (422, False)
        assert "released without it" in late.json()["detail"]


@pytest.mark.slow
def test_an_incomplete_group_is_released_after_its_wait(service: httpx.Client):
    """The only member that has arrived of another one abstains."""
    first, second = four_items()[:2]
    alone = {"run": "lost", "wait_s": 4, "options": {"normalize": "group_std"}}
    two = {"run": "short", "wait_s": 4}
    for fields in (alone, two):
        assert not add_member(service, first, **fields).json()["released"]
    with blocking.RewardFleet(episode=str(service.base_url)) as fleet:
        scores = [
            fleet.episode.collect(episode_request(**item), step=1, group_size=3, **fields)
            for item, fields in ((first, alone), (second, two))
        ]
    assert (scores[0].score, scores[0].status, scores[0].keep) == (None, "abstained", False)
    assert scores[1].score == pytest.approx(1 / 1.4)
    response = add_member(service, first, **two).json()
    assert (response["released"], response["missing"]) == (True, 1)


def test_names_of_groups_and_members_are_never_mixed_up(service: httpx.Client):
    """A name may contain any character."""
    one = {**four_items()[0], "group": "a\0b", "uid": "c"}
    other = {**four_items()[2], "group": "a", "uid": "b\0c"}
    fields = {"run": "separators", "group_size": 2}
    assert add_member(service, one, **fields).json()["missing"] == 1
    assert add_member(service, other, **fields).json()["missing"] == 1


def test_members_with_another_size_or_other_options_are_refused(service: httpx.Client):
    add_member(service, four_items("agree")[0])
    for other in ({"group_size": 4}, {"options": {"normalize": "group_mean"}}):
        response = add_member(service, four_items("agree")[1], **other)
        assert "first member" in response.json()["detail"]
    without_group = add_member(service, {"uid": "a", "success": True})
    assert "group" in without_group.json()["detail"]


def test_open_groups_are_limited_and_abandoned_ones_are_evicted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(groups, "MAX_OPEN", 2)
    with served_episodes() as service:
        for group in "ab":
            add_member(service, four_items(group)[0])
        refused = add_member(service, four_items("c")[0])
        assert (refused.status_code, refused.json()["retryable"]) == (429, True)
        # As if they had been due for long: 200 s before they are due is late enough.
        monkeypatch.setattr(groups, "ABANDONED_SECONDS", -200)
        assert not add_member(service, four_items("c")[0]).json()["released"]
        evicted = add_member(service, four_items("a")[0])
        assert (evicted.status_code, evicted.json()["kind"]) == (422, "invalid")


# The client, the command and the example


@pytest.mark.slow
async def test_the_client(service: httpx.Client):
    url = str(service.base_url)
    items = [episode_request(**{**each, "actions": np.zeros((3, 7))}) for each in four_items()]
    async with RewardFleet(episode=url) as fleet:
        assert (await fleet.episode.score(items[0])).score == pytest.approx(1 / 1.2)
        response = await fleet.episode.score_batch(items, {"normalize": "group_mean"})
        assert sum(each.score for each in response.results) == pytest.approx(0)
        assert await fleet.episode.rewards(items[2:]) == [0, 0]
        assert (await fleet.episode.temperatures(2)).temperatures == [0.6, 0.9]
        with pytest.raises(InvalidRequest, match="normalize"):
            await fleet.episode.score_batch(items, {"normalize": "all"})
        with pytest.raises(InvalidRequest, match="color"):
            episode_request("a", color=1)
        invalid = episode_request("invalid", kind="reward_model")
        with pytest.raises(InvalidRequest, match="needs reward_model_score"):
            await fleet.episode.rewards([items[0], invalid])
        await fleet.episode.collect(items[0], run="c", step=1, group_size=1)
        with pytest.raises(InvalidRequest, match="without it"):
            await fleet.episode.collect(items[1], run="c", step=1, group_size=1)
        invalid_member = episode_request("invalid", kind="reward_model", group="invalid")
        with pytest.raises(InvalidRequest, match="needs reward_model_score"):
            await fleet.episode.collect(invalid_member, run="c", step=1, group_size=1)
        three = [fleet.episode.collect(item, run="c", step=2, group_size=3) for item in items[:3]]
        scores = await asyncio.gather(*three)
        assert [each.score for each in scores] == pytest.approx([1 / 1.2, 1 / 1.4, 0])
    async with RewardFleet(episode=url, on_failure=-1.0) as fleet:
        with pytest.raises(InvalidRequest):  # on_failure is for the fleet's failures
            await fleet.episode.rewards([items[2], invalid])


@pytest.mark.slow
def test_the_command_serves_and_stops_on_sigterm():
    with service_process("episode") as (server, url):
        with blocking.RewardFleet(episode=url) as fleet:
            assert fleet.episode.temperatures(4).temperatures == [0.6, 0.7, 0.8, 0.9]
        server.terminate()
        assert server.wait(60) == 0


@pytest.mark.full
def test_the_example_draws_its_figure(tmp_path: Path):
    """It judges, scores and groups real videos over HTTP."""
    root = Path(__file__).parents[3]
    figure = tmp_path / "figure.png"
    arguments = [root / "examples" / "libero_episodes.py", root / "tests/data/libero", figure]
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=150,
        env={**os.environ, "MPLBACKEND": "Agg", "MPLCONFIGDIR": str(tmp_path)},
        check=True,
    )
    kept = sum(line.endswith(" kept ") for line in done.stdout.splitlines())
    assert f"\n{kept} of 38 kept" in done.stdout and 0 < kept < 38
    assert "dropped not_selected" in done.stdout and "dropped accuracy" in done.stdout
    assert figure.read_bytes().startswith(b"\x89PNG")
