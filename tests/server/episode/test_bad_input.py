"""What is bad is named, item by item, and the rest of the batch is scored."""

import json
from typing import get_args

import httpx
import pytest

from rewardfleet.episodes.table import NEEDS
from rewardfleet.wire.episode import EpisodeRequest, EpisodeScore, Kind
from rewardfleet_server.episode import decode, encode

from .conftest import batch

GOOD = {"success": True, "steps": 100, "max_steps": 500, "group": "g"}
GROUPED = {"normalise": "group_mean"}
ALIKE = {"clusters": {}}
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("fields", "said", "options"),
    [
        ({"kind": "return", "episode_reward": NAN}, "episode_reward", {}),
        ({"kind": "return", "episode_reward": -INF}, "episode_reward", {}),
        ({"kind": "return", "step_rewards": [1, NAN]}, "step_rewards.1", {}),
        ({"kind": "rm", "rm_score": 1e200}, "rm_score: a number between", {}),
        ({"kind": "return", "step_rewards": [1e200]}, "step_rewards: a number", {}),
        ({"steps": -1}, "steps: 0 or more (got -1)", {}),
        ({"steps": 501}, "steps 501 are beyond max_steps 500", {}),
        ({"max_steps": 0}, "max_steps: above 0", {}),
        ({"success": 0.5}, "success", {}),
        ({"success": 2}, "success", {}),
        ({"temperature": -0.1}, "temperature", {}),
        ({"uid": "good0"}, "the same uid as item 0", {}),
        ({"uid": ""}, "uid", {}),
        ({"uid": None}, "uid", {}),
        ({"kind": "best"}, "kind", {}),
        ({"kind": "rm"}, "kind rm needs rm_score", {}),
        ({"kind": "return"}, "kind return needs episode_reward or step_rewards", {}),
        ({"kind": "hybrid", "step_rewards": [1]}, "kind hybrid needs", {}),
        ({"kind": "visual", "episode_reward": 1}, "needs visual_success", {}),
        ({"kind": "shaped"}, "kind shaped needs progress", {}),
        ({"kind": "discounted", "steps": None}, "needs steps", {}),
        ({"kind": "efficiency", "max_steps": None}, "needs max_steps", {}),
        ({"kind": "objectives"}, "needs actions", {"weights": {"energy": 1}}),
        ({"group": "alone"}, "alone in group 'alone'", GROUPED),
        ({"group": None}, "needs group", GROUPED),
        ({"steps": 0}, "a length to divide by", {"normalise": "length"}),
        ({"actions": [[1, 2], [1]]}, "different lengths", {}),
        ({"actions": []}, "actions: [T, A]", {}),
        ({"actions": [[]]}, "actions: [T, A]", {}),
        ({"actions": [1, 2]}, "actions", {}),
        ({"actions": [[1, 2], [1, 2]], "progress": [1]}, "one entry a step", {}),
        ({"step_rewards": [1], "step_token_ends": [1, 2]}, "one entry a step", {}),
        ({"step_rewards": [1, 1], "step_token_ends": [2, 2]}, "rising", {}),
        ({"actions": [[1, 2, 3]]}, "3 wide, where its group's are 2", ALIKE),
        ({"actions": None}, "needs actions", ALIKE),
        ({"colour": 1}, "unknown field 'colour'", {}),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else None,
)
def test_a_bad_episode_fails_alone(
    service: httpx.Client, fields: dict[str, object], said: str, options: dict[str, object]
):
    good = [{"uid": f"good{n}", **GOOD, "actions": [[n, n], [1, 1]]} for n in range(2)]
    bad = {"uid": "bad", **GOOD, "actions": [[0, 0], [1, 1]], **fields}
    weights = "weights" in options
    items = [good[0], bad, good[1]]
    told = {"items": items, "options": options}
    content = json.dumps(told).encode()  # Python's own JSON, which writes NaN and Infinity
    answer = service.post(
        "/score/batch", content=content, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 200, answer.text
    results = answer.json()["results"]
    if weights:
        del bad["actions"]
        results = batch(service, items, options=options)["results"]
    assert [each["status"] for each in results] == ["ok", "error", "ok"]
    assert results[1]["score"] is None and results[1]["keep"] is False
    problem = results[1]["error"]
    assert (problem["kind"], problem["retryable"]) == ("invalid", False)
    assert said in problem["detail"] and "item 1" in problem["detail"], problem["detail"]
    assert results[1]["uid"] == (bad["uid"] or "")
    assert problem["request_id"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"items": []}, "items"),
        ({}, "items"),
        ({"items": {}}, "items"),
        ({"items": [{"uid": str(n)} for n in range(5000)]}, "4096"),
        ({"items": [{"uid": "a"}], "colour": 1}, "colour"),
        ({"items": [{"uid": "a"}], "options": {"normalise": "all"}}, "normalise"),
        ({"items": [{"uid": "a"}], "options": {"normalise": "running"}}, "`run` and `step`"),
        ({"items": [{"uid": "a"}], "options": {"gamma": 2}}, "gamma"),
        ({"items": [{"uid": "a"}], "options": {"weights": {}}}, "weights"),
        ({"items": [{"uid": "a"}], "options": {"weights": {"speed": 1}}}, "weights"),
        ({"items": [{"uid": "a"}], "options": {"keep": {"select": "diverse"}}}, "`clusters`"),
        ({"items": [{"uid": "a"}], "options": {"keep": {"accuracy_bounds": [0, 2]}}}, "bounds"),
        ({"items": [{"uid": "a"}], "step": -1}, "step"),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else None,
)
def test_a_batch_that_is_none_is_refused(service: httpx.Client, body: dict, said: str):
    answer = service.post("/score/batch", json=body)
    assert (answer.status_code, answer.json()["kind"]) == (422, "invalid")
    assert said in answer.json()["detail"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"n": 0}, "n:"),
        ({"n": 4, "base_temperature": 0}, "base_temperature"),
        ({"n": 4, "temperature_range": -1}, "temperature_range"),
        ({"n": 4, "adapt": {"run": "r", "step": 1}}, "success_rate"),
        ({"n": 4, "adapt": {"run": "r", "step": 1, "diversity": 1}}, "target_diversity"),
        ({"n": 4, "adapt": {"run": "r", "step": 1, "success_rate": 2}}, "success_rate"),
        ([], "object"),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict | list) else None,
)
def test_temperatures_that_are_none_are_refused(service: httpx.Client, body: object, said: str):
    answer = service.post("/temperatures", json=body)
    assert (answer.status_code, answer.json()["kind"]) == (422, "invalid")
    assert said in answer.json()["detail"]


@pytest.mark.parametrize("content", [b"", b"[", b'{"items": [{"uid": "\\ud800"}]}', b"[" * 10**5])
def test_a_body_that_is_no_json(service: httpx.Client, content: bytes):
    headers = {"content-type": "application/json"}
    for path in ("/score", "/score/batch", "/groups/members", "/temperatures"):
        answer = service.post(path, content=content, headers=headers)
        assert (answer.status_code, answer.json()["kind"]) == (422, "invalid")


def test_a_flood_of_fields_is_refused(service: httpx.Client):
    fields = {"items": [{f"field{n}": 1 for n in range(200_000)}]}
    values = {"items": [{"uid": "a", "step_rewards": [1] * 5_000_000}]}
    for body in (fields, values):
        assert "too many fields" in service.post("/score/batch", json=body).json()["detail"]
    assert "too many" in service.post("/groups/members", json={"item": fields["items"][0]}).text


def test_both_ways_of_reading_know_the_same_fields():
    """And the same defaults, so that it does not show which way a batch was read."""
    fields = EpisodeRequest.model_fields
    assert decode.Item.__struct_fields__ == tuple(fields)
    item, request = decode.Item("a"), EpisodeRequest(uid="a")
    assert all(getattr(item, name) == getattr(request, name) for name in fields)
    assert set(NEEDS) == set(get_args(Kind))
    assert set(encode.Result.__struct_fields__) <= set(EpisodeScore.model_fields)


def test_both_ways_of_reading_score_alike(service: httpx.Client):
    """A bad item has the others read the slow way."""
    items = [
        {"uid": "a", "kind": "objectives", **GOOD, "actions": [[1, 2], [2, 3], [0, 1]],
         "progress": [0, 0.5, 1], "temperature": 0.7},
        {"uid": "b", "kind": "hybrid", "step_rewards": [1, 2], "step_token_ends": [1, 5],
         "episode_reward": 1, "group": "g"},
        {"uid": "c", "kind": "visual", "episode_reward": 2,
         "visual_success": {"score": 0.5, "status": "ok", "components": {"progress": 0.1}}},
    ]  # fmt: skip
    options = {"weights": {"smoothness": 1, "energy": 1, "path_length": 1, "progress": 1}}
    fast = batch(service, items, options=options)
    slow = batch(service, [*items, {"uid": "d", "colour": 1}], options=options)
    assert slow["results"][:3] == fast["results"]
    assert slow["groups"] == fast["groups"]
    assert len(fast["results"][0]["components"]) == 4
