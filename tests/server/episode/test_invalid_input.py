"""Invalid input: each invalid item is reported, and the rest of the batch is scored."""

import json

import httpx
import pytest

from rewardfleet.wire.episode import EpisodeRequest, EpisodeScore
from rewardfleet_server.episode import decode, encode

from ...conftest import JSON, table
from ...measure import Stopwatch
from .conftest import post_batch

VALID = {"success": True, "steps": 100, "max_steps": 500, "group": "g"}


@pytest.mark.parametrize(
    ("fields", "message", "options"),
    table("invalid_episodes"),
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else None,
)
def test_an_invalid_episode_does_not_fail_the_others(
    service: httpx.Client, fields: dict[str, object], message: str, options: dict[str, object]
):
    valid = [{"uid": f"valid{n}", **VALID, "actions": [[n, n], [1, 1]]} for n in range(2)]
    invalid = {"uid": "invalid", **VALID, "actions": [[0, 0], [1, 1]], **fields}
    items = [valid[0], invalid, valid[1]]
    if "weights" in options:
        del invalid["actions"]
    body = {"items": items, "options": options}
    content = json.dumps(body).encode()  # Python's own JSON, which writes NaN and Infinity
    response = service.post(
        "/score/batch", content=content, headers={"content-type": "application/json"}
    )
    assert response.status_code == 200, response.text
    results = response.json()["results"]
    assert [each["status"] for each in results] == ["ok", "error", "ok"]
    assert results[1]["score"] is None and results[1]["keep"] is False
    problem = results[1]["error"]
    assert (problem["kind"], problem["retryable"]) == ("invalid", False)
    assert message in problem["detail"] and "item 1" in problem["detail"], problem["detail"]
    assert results[1]["uid"] == (invalid["uid"] or "")
    assert problem["request_id"]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        *(("/score/batch", *row) for row in table("invalid_batches")),
        ("/score/batch", {"items": [{"uid": str(n)} for n in range(5000)]}, "4096"),
        *(("/temperatures", *row) for row in table("invalid_temperatures")),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_an_invalid_body_is_refused(service: httpx.Client, path: str, body: object, message: str):
    response = service.post(path, json=body)
    assert (response.status_code, response.json()["kind"]) == (422, "invalid")
    assert message in response.json()["detail"]


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"", b"[", b'{"items": [{"uid": "\\ud800"}]}', b"[" * 10**5])
def test_a_body_that_is_not_json_is_refused(service: httpx.Client, content: bytes):
    for path in ("/score", "/score/batch", "/groups/members", "/temperatures"):
        response = service.post(path, content=content, headers=JSON)
        assert (response.status_code, response.json()["kind"]) == (422, "invalid")


@pytest.mark.slow
def test_a_body_with_too_many_fields_is_refused(service: httpx.Client):
    fields = {"items": [{f"field{n}": 1 for n in range(200_000)}]}
    values = {"items": [{"uid": "a", "step_rewards": [1] * 5_000_000}]}
    for body in (fields, values):
        assert "too many fields" in service.post("/score/batch", json=body).json()["detail"]
    assert "too many" in service.post("/groups/members", json={"item": fields["items"][0]}).text


def test_both_decoders_have_the_same_fields_and_defaults():
    fields = EpisodeRequest.model_fields
    assert decode.Item.__struct_fields__ == tuple(fields)
    item, request = decode.Item("a"), EpisodeRequest(uid="a")
    assert all(getattr(item, name) == getattr(request, name) for name in fields)


def test_results_have_fields_of_scores():
    assert set(encode.Result.__struct_fields__) <= set(EpisodeScore.model_fields)


def test_both_decoders_lead_to_the_same_scores(service: httpx.Client):
    """An invalid item makes the pydantic models decode the batch."""
    items = [
        {"uid": "a", "kind": "objectives", **VALID, "actions": [[1, 2], [2, 3], [0, 1]],
         "progress": [0, 0.5, 1], "temperature": 0.7},
        {"uid": "b", "kind": "hybrid", "step_rewards": [1, 2], "step_token_ends": [1, 5],
         "episode_reward": 1, "group": "g"},
        {"uid": "c", "kind": "visual", "episode_reward": 2,
         "visual_success": {"score": 0.5, "status": "ok", "components": {"progress": 0.1}}},
    ]  # fmt: skip
    options = {"weights": {"smoothness": 1, "low_energy": 1, "short_path": 1, "progress": 1}}
    fast = post_batch(service, items, options=options)
    lenient = post_batch(service, [*items, {"uid": "d", "color": 1}], options=options)
    assert lenient["results"][:3] == fast["results"]
    assert lenient["groups"] == fast["groups"]
    assert len(fast["results"][0]["components"]) == 4


@pytest.mark.parametrize(
    "field", ["step_rewards", "step_token_ends", "actions", "path", "progress"]
)
def test_a_long_list_of_wrong_values_costs_one_error(service: httpx.Client, field: str):
    """An error for each value would take a thousand times the memory of the body."""
    item = {"uid": "a", field: ["x"] * 200_000}
    watch = Stopwatch()
    response = service.post("/score", json=item)
    assert response.status_code == 422
    assert f"{field}.0: " in response.json()["detail"]
    assert "more" not in response.json()["detail"]
    assert watch.seconds < 20
