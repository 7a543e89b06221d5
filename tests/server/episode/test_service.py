"""The episode service: batches with groups, runs that it remembers, temperatures."""

import asyncio
import concurrent.futures
import os
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest

from rewardfleet import RewardFleet, blocking, episode_request
from rewardfleet.wire.episode import CollectAnswer, EpisodeAnswer, TemperaturesAnswer
from rewardfleet.wire.errors import DeadlineExceeded, InvalidRequest
from rewardfleet_server.episode import group_collector

from .conftest import batch, served_episodes


def four(group: str = "g", **fields: object) -> list[dict]:
    """A group of two successes and two failures."""
    return [
        {"uid": f"{group}{n}", "group": group, "success": n < 2, "steps": 100 * (n + 1),
         "max_steps": 500, "kind": "efficiency", **fields}
        for n in range(4)
    ]  # fmt: skip


def test_a_batch_is_answered_in_order_with_its_groups(service: httpx.Client):
    answer = batch(service, [*four("a"), *four("b")])
    told = EpisodeAnswer.model_validate(answer, extra="forbid")
    assert [each.uid for each in told.results] == [f"{g}{n}" for g in "ab" for n in range(4)]
    scores = [each.score for each in told.results]
    assert scores[:4] == pytest.approx([1 / 1.2, 1 / 1.4, 0, 0])
    assert told.results[0].components == {"success": 1.0}
    assert [(g.group, g.size, g.success_rate) for g in told.groups] == [
        ("a", 4, 0.5),
        ("b", 4, 0.5),
    ]
    assert told.groups[0].mean == pytest.approx(np.mean(scores[:4]))
    assert told.groups[0].deviation == pytest.approx(np.std(scores[:4], ddof=1))


def test_one_episode_alone(service: httpx.Client):
    answer = service.post("/score", json=four()[0]).json()
    assert answer["score"] == pytest.approx(1 / 1.2)
    assert (answer["status"], answer["keep"]) == ("ok", True)
    refused = service.post("/score", json={"uid": "a", "kind": "rm"})
    assert (refused.status_code, refused.json()["kind"]) == (422, "invalid")
    assert "kind rm needs rm_score" in refused.json()["detail"]
    unseen = {"uid": "a", "kind": "visual", "episode_reward": 1,
              "visual_success": {"score": None, "status": "abstained"}}  # fmt: skip
    answer = service.post("/score", json=unseen).json()
    assert (answer["score"], answer["status"], answer["keep"]) == (None, "abstained", False)


def test_all_equal_groups_are_dropped_within_a_tolerance_and_not_in_test_time_rl(
    service: httpx.Client,
):
    """The seed's exact equality never drops an all-success group once efficiency is in."""
    items = [{**each, "success": True, "steps": 100 + n} for n, each in enumerate(four())]

    def kept(**keep: object) -> list[bool]:
        answer = batch(service, items, options={"keep": keep})
        return [each["keep"] for each in answer["results"]]

    assert kept() == [True] * 4  # the rewards differ by 0.004
    assert kept(tolerance=0.01) == [False] * 4
    assert kept(tolerance=0.01, last_try=True) == [True] * 4
    assert kept(tolerance=0.01, test_time_rl=True) == [True] * 4
    assert kept(tolerance=0.01, test_time_rl=True, drop_all_equal=True) == [False] * 4
    assert kept(accuracy_bounds=[0.1, 0.9]) == [False] * 4
    assert kept(select="efficient", select_count=2) == [True, True, False, False]
    answer = batch(service, items, options={"keep": {"tolerance": 0.01}})
    assert answer["groups"][0]["all_equal"] is True
    assert answer["results"][0]["dropped"] == "all_equal"


def test_similar_trajectories_vote(service: httpx.Client):
    time = np.linspace(0, 3, 40)[:, None]
    one, other = np.sin(time + np.arange(7)), np.cos(2 * time + np.arange(7))
    actions = [one, one[::2] + 0.01, other, one + 0.01]  # the second is faster, the third another
    items = [{**each, "actions": a.tolist()} for each, a in zip(four(), actions, strict=True)]
    for distance in ("resampled", "dtw"):
        asked = {"distance": distance, "threshold": 0.2}
        answer = batch(
            service,
            items,
            options={"clusters": asked, "keep": {"select": "diverse", "select_count": 2}},
        )
        found = [(each["cluster"], each["pseudo_label"]) for each in answer["results"]]
        assert found == [(0, 1), (0, 1), (1, 0), (0, 1)], distance
        assert answer["groups"][0]["majority_ratio"] == 0.75
        assert answer["groups"][0]["diversity"] > 0.3
        chosen = [each["keep"] for each in answer["results"]]
        assert sum(chosen) == 2 and chosen[2], "the odd one is the most diverse"


def test_a_videos_answer_goes_in_as_it_is(service: httpx.Client):
    seen = {"score": 0.5, "status": "ok", "backend": "reference", "model_output": "half"}
    abstained = {"score": None, "status": "abstained"}
    problem = {"title": "x", "status": 503, "detail": "gone", "kind": "unavailable",
               "retryable": True}  # fmt: skip
    failed = {"score": None, "status": "error", "error": problem}
    items = [
        {"uid": str(n), "kind": "visual", "episode_reward": 4, "visual_success": visual}
        for n, visual in enumerate([seen, 0.25, abstained, failed, 2, {"a": 1}])
    ]
    results = batch(service, items)["results"]
    assert [each["score"] for each in results] == [2.0, 1.0, None, None, None, None]
    assert [each["status"] for each in results[2:4]] == ["abstained", "error"]
    assert results[3]["error"]["kind"] == "unavailable"
    assert "in [0, 1]" in results[4]["error"]["detail"]
    assert "Score" in results[5]["error"]["detail"] or "visual" in results[5]["error"]["detail"]


def test_rewards_a_step_come_with_the_score(service: httpx.Client):
    items = [
        {"uid": "h", "kind": "hybrid", "step_rewards": [1, 2], "step_token_ends": [3, 9],
         "episode_reward": 10},
        {"uid": "s", "kind": "shaped", "progress": [0, 0.5, 1], "success": True},
    ]  # fmt: skip
    hybrid, shaped = batch(service, items, options={"gamma": 1})["results"]
    assert (hybrid["step_rewards"], hybrid["token_positions"]) == ([1, 12], [3, 9])
    assert (hybrid["score"], hybrid["components"]) == (13, {"episode": 10, "steps": 3})
    assert shaped["step_rewards"] == [0.5, 0.5, 0.0]  # -1 for leaving, +1 for success
    assert shaped["score"] == 1.0


# What is remembered


def test_a_run_keeps_a_mean_and_counts_each_episode_once(tmp_path: Path):
    """By (run, step, uid): what is sent again, alone or among others, is not counted again."""
    options = {"normalise": "running"}
    rng = np.random.default_rng(0)
    rewards = rng.normal(3, 2, size=40)
    items = [{"uid": f"{n}", "kind": "rm", "rm_score": r} for n, r in enumerate(rewards)]
    returns = [
        {"uid": f"{n}", "kind": "return", "episode_reward": r} for n, r in enumerate(rewards)
    ]
    file = tmp_path / "runs.sqlite"
    with served_episodes(run_state_file=file) as service:
        first = batch(service, returns[:20], options=options, run="a", step=1)
        again = batch(service, returns[:20], options=options, run="a", step=1)
        assert first["running"] == again["running"]
        assert first["results"] == again["results"]
        assert first["running"]["mean"] == pytest.approx(rewards[:20].mean())
        overlapping = batch(service, returns[10:], options=options, run="a", step=1)
    with served_episodes(run_state_file=file) as service:  # it outlives the process
        told = batch(service, returns[:1], options=options, run="a", step=2)["running"]
        assert overlapping["running"]["count"] == 40
        assert overlapping["running"]["variance"] == pytest.approx(rewards.var())
        assert told["count"] == 41
        scores = [each["score"] for each in overlapping["results"]]
        assert scores == pytest.approx((rewards[10:] - rewards.mean()) / rewards.std(), abs=1e-4)
        untouched = batch(service, items, options=options, run="b", step=1)["results"]
        assert [each["score"] for each in untouched] == pytest.approx(rewards.tolist())
        batch(service, returns[:1], options=options, run="a", step=50)
        late = service.post(
            "/score/batch",
            json={"items": returns[:2], "options": options, "run": "a", "step": 3},
        )
        assert (late.status_code, "too old" in late.json()["detail"]) == (422, True)


def test_temperatures(service: httpx.Client):
    def ask(**fields: object) -> dict:
        answer = service.post("/temperatures", json=fields).json()
        return TemperaturesAnswer.model_validate(answer, extra="forbid").model_dump()

    assert ask(n=4)["temperatures"] == [0.6, 0.7, 0.8, 0.9]
    assert ask(n=1)["temperatures"] == [0.6]
    assert ask(n=3, base_temperature=1, temperature_range=0)["temperatures"] == [1, 1, 1]


def test_temperatures_follow_a_run_once_a_step(tmp_path: Path):
    file = tmp_path / "runs.sqlite"

    def ask(service: httpx.Client, step: int, **seen: object) -> dict:
        adapt = {"run": "r", "step": step, **seen}
        return service.post("/temperatures", json={"n": 2, "adapt": adapt}).json()

    with served_episodes(run_state_file=file) as service:
        easy = ask(service, 1, success_rate=1.0)
        assert easy["base_temperature"] > 0.6 and easy["temperature_range"] > 0.3
        assert ask(service, 1, success_rate=0.0) == easy, "a step moves them once"
    with served_episodes(run_state_file=file) as service:
        assert ask(service, 1, success_rate=1.0) == easy, "and that outlives the process"
        hard = ask(service, 2, success_rate=0.0)
        assert hard["base_temperature"] == pytest.approx(0.6)
        for step in range(3, 60):
            last = ask(service, step, diversity=0.0, target_diversity=0.2)
        assert (last["base_temperature"], last["temperature_range"]) == (1.5, 1.0), "bounded"


def test_what_each_temperature_came_to(service: httpx.Client):
    items = [
        {**each, "temperature": temperature}
        for each, temperature in zip(four(), [0.6, 0.6, 0.9, 7], strict=True)
    ]
    found = {each["temperature"]: each for each in batch(service, items)["temperatures"]}
    assert set(found) == {"0.6", "0.9", "2.0"}
    assert (found["0.6"]["success_rate"], found["0.6"]["steps"]) == (1.0, 150.0)
    assert found["0.6"]["reward_variance"] == pytest.approx(np.var([1 / 1.2, 1 / 1.4]))
    metrics = service.get("/metrics").text
    assert 'rewardfleet_episode_success_rate{temperature="0.6"} 1.0' in metrics
    assert 'rewardfleet_episodes_total{temperature="2.0"} 1.0' in metrics
    wild = [{**four()[0], "uid": f"{n}", "temperature": n / 10} for n in range(500)]
    assert len(batch(service, wild)["temperatures"]) == 21, "bounded"
    assert 'status="ok"' in metrics and "rewardfleet_results_total" in metrics


# Groups whose members come one by one


def collect(service: httpx.Client, item: dict, **fields: object) -> httpx.Response:
    return service.post(
        "/groups/members", json={"run": "r", "step": 1, "group_size": 3, "item": item, **fields}
    )


def test_a_group_is_released_when_its_members_have_come(tmp_path: Path):
    items = four()
    file = tmp_path / "runs.sqlite"
    options = {"normalise": "group_mean"}
    with served_episodes(run_state_file=file) as service:
        first = collect(service, items[0], options=options).json()
        assert (first["released"], first["missing"]) == (False, 2)
        again = {**items[0], "success": False}  # one answer a uid: the first that was sent holds
        assert collect(service, again, options=options).json()["missing"] == 2
    with served_episodes(run_state_file=file) as service:  # half a group outlives the process
        collect(service, items[1], options=options)
        last = collect(service, items[2], options=options).json()
        told = CollectAnswer.model_validate(last, extra="forbid")
        assert told.released and told.missing == 0 and told.group.size == 3
        mean = np.mean([1 / 1.2, 1 / 1.4, 0])
        assert told.result.score == pytest.approx(0 - mean)
        for _ in range(2):
            score = collect(service, again, options=options).json()["result"]["score"]
            assert score == pytest.approx(1 / 1.2 - mean)
        late = collect(service, items[3], options=options)
        assert (late.status_code, late.json()["kind"]) == (504, "deadline_exceeded")
        assert "released without it" in late.json()["detail"]


def test_a_group_is_released_when_its_time_is_up(service: httpx.Client):
    fields = {"run": "hurried", "wait_s": 0.2}
    assert not collect(service, four()[0], **fields).json()["released"]
    with blocking.RewardFleet(episode=str(service.base_url)) as fleet:
        item = episode_request(**four()[1])
        score = fleet.episode.collect(item, run="hurried", step=1, group_size=3, wait_s=0.2)
    assert score.score == pytest.approx(1 / 1.4)
    answer = collect(service, four()[0], **fields).json()
    assert (answer["released"], answer["missing"]) == (True, 1)


def test_a_group_never_has_more_members_than_it_was_to_have(service: httpx.Client):
    """However many come at once: the first are answered, the others hear that they are late."""
    for turn in range(5):
        items = [{**four()[0], "uid": f"{turn}-{n}"} for n in range(8)]
        with concurrent.futures.ThreadPoolExecutor(8) as callers:
            asked = [
                callers.submit(collect, service, item, run=f"crowd {turn}", group_size=2)
                for item in items
            ]
            answers = [future.result() for future in asked]
        whole = [each.json() for each in answers if each.status_code == 200]
        assert {each.status_code for each in answers} <= {200, 504}
        assert {each["group"]["size"] for each in whole if each["released"]} == {2}
        assert all(each["missing"] >= 0 for each in whole) and len(whole) == 2


def test_members_agree_on_their_group(service: httpx.Client):
    collect(service, four("agree")[0])
    for other in ({"group_size": 4}, {"options": {"normalise": "group_mean"}}):
        assert "first member" in collect(service, four("agree")[1], **other).json()["detail"]
    alone = collect(service, {"uid": "a", "success": True})
    assert "group" in alone.json()["detail"]


# The client


async def test_the_client(service: httpx.Client):
    url = str(service.base_url)
    items = [episode_request(**{**each, "actions": np.zeros((3, 7))}) for each in four()]
    async with RewardFleet(episode=url) as fleet:
        assert (await fleet.episode.score(items[0])).score == pytest.approx(1 / 1.2)
        answer = await fleet.episode.score_batch(items, {"normalise": "group_mean"})
        assert sum(each.score for each in answer.results) == pytest.approx(0)
        assert await fleet.episode.rewards(items[2:]) == [0, 0]
        assert (await fleet.episode.temperatures(2)).temperatures == [0.6, 0.9]
        with pytest.raises(InvalidRequest, match="normalise"):
            await fleet.episode.score_batch(items, {"normalise": "all"})
        with pytest.raises(InvalidRequest, match="colour"):
            episode_request("a", colour=1)
        bad = episode_request("bad", kind="rm")
        with pytest.raises(InvalidRequest, match="needs rm_score"):
            await fleet.episode.rewards([items[0], bad])
        await fleet.episode.collect(items[0], run="c", step=1, group_size=1)
        with pytest.raises(DeadlineExceeded, match="without it"):
            await fleet.episode.collect(items[1], run="c", step=1, group_size=1)
        bad_member = episode_request("bad", kind="rm", group="bad")
        with pytest.raises(InvalidRequest, match="needs rm_score"):
            await fleet.episode.collect(bad_member, run="c", step=1, group_size=1)
        three = [fleet.episode.collect(item, run="c", step=2, group_size=3) for item in items[:3]]
        scores = await asyncio.gather(*three)
        assert [each.score for each in scores] == pytest.approx([1 / 1.2, 1 / 1.4, 0])
    async with RewardFleet(episode=url, on_failure=-1.0) as fleet:
        assert await fleet.episode.rewards([items[2], bad]) == [0.0, -1.0]


def test_replicas_share_a_file(tmp_path: Path):
    """Members of a group may go to any of them, and all hear the same."""
    file = tmp_path / "runs.sqlite"
    with (
        served_episodes(run_state_file=file) as one,
        served_episodes(run_state_file=file) as other,
    ):
        assert not collect(one, four()[0]).json()["released"]
        assert collect(other, four()[1]).json()["missing"] == 1
        assert collect(one, four()[2]).json()["released"]
        told = [collect(each, four()[1]).json()["result"] for each in (one, other)]
        assert told[0] == told[1]
        running = {"options": {"normalise": "running"}, "run": "a", "step": 1}
        batch(one, four("a"), **running)
        assert batch(other, four("b"), **running)["running"]["count"] == 8


def test_open_groups_are_bounded_and_forgotten_ones_make_room(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(group_collector, "MAX_OPEN", 2)
    with served_episodes() as service:
        for group in "ab":
            collect(service, four(group)[0])
        full = collect(service, four("c")[0])
        assert (full.status_code, full.json()["retryable"]) == (429, True)
        later = group_collector._now() + 200
        monkeypatch.setattr(group_collector, "_now", lambda: later)
        assert not collect(service, four("c")[0]).json()["released"]
        forgotten = collect(service, four("a")[0])
        assert (forgotten.status_code, forgotten.json()["kind"]) == (504, "deadline_exceeded")


@pytest.mark.slow
def test_the_command(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    command = f"{sys.executable} -m rewardfleet_server serve episode --port {port}"
    server = subprocess.Popen(command.split(), stderr=subprocess.DEVNULL)
    try:
        with blocking.RewardFleet(episode=f"http://127.0.0.1:{port}") as fleet:
            assert fleet.episode.temperatures(4).temperatures == [0.6, 0.7, 0.8, 0.9]
        server.terminate()
        assert server.wait(10) == 0
    finally:
        server.kill()


@pytest.mark.slow
def test_the_example_draws_its_figure(tmp_path: Path):
    """Real videos, judged, scored and grouped over HTTP."""
    root = Path(__file__).parents[3]
    figure = tmp_path / "figure.png"
    arguments = [root / "examples" / "libero_episodes.py", root / "tests/data/libero", figure]
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=50,
        env={**os.environ, "MPLBACKEND": "Agg", "MPLCONFIGDIR": str(tmp_path)},
        check=True,
    )
    assert "26 of 38 kept" in done.stdout
    assert "dropped not_selected" in done.stdout and "dropped accuracy" in done.stdout
    assert figure.read_bytes().startswith(b"\x89PNG")
