"""Rewards that clients replaced are counted by the service, and batches by their time."""

import httpx
import pytest

from rewardfleet import BackendFailed, RewardFleet, video_request
from rewardfleet_server.testing import FakeJudge

from ...conftest import Serve
from ..observe.test_in_flight import IMAGE_BYTES, body
from .test_requests import metric


def fallbacks(client: httpx.Client) -> float:
    return metric(client, "rewardfleet_fallback_rewards_total{")


async def test_the_next_request_reports_replaced_rewards_once(serve: Serve):
    judge = FakeJudge(score=None)
    client = serve(judge)
    requests = [video_request(f"task {n}", [IMAGE_BYTES]) for n in range(5)]
    async with RewardFleet(video=str(client.base_url), on_failure=-1.0) as fleet:
        assert await fleet.video.rewards(requests) == [-1.0] * 5
        assert fallbacks(client) == 0
        assert await fleet.video.reward("another", [IMAGE_BYTES]) == -1.0
        assert fallbacks(client) == 5
        judge.score = 1.0
        assert await fleet.video.rewards(requests) == [1.0] * 5
        assert await fleet.video.rewards(requests) == [1.0] * 5
        assert fallbacks(client) == 6


@pytest.mark.slow
async def test_a_request_that_fails_leaves_the_report_to_the_next_one(serve: Serve):
    judge = FakeJudge(error=BackendFailed("broken"))
    client = serve(judge)
    async with RewardFleet(video=str(client.base_url), on_failure=0.0, timeout_s=30) as fleet:
        for number in range(2):
            assert await fleet.video.reward(f"task {number}", [IMAGE_BYTES]) == 0.0
        assert fallbacks(client) == 0
        judge.error = None
        assert await fleet.video.reward("task 2", [IMAGE_BYTES]) == 1.0
        assert fallbacks(client) == 2


@pytest.mark.parametrize(
    ("header", "counted"),
    [("3", 3), ("0", 0), ("-1", 0), ("1.5", 0), ("many", 0), ("9" * 20, 1e6), ("9" * 5000, 0)],
)
def test_any_header_is_accepted(serve: Serve, header: str, counted: float):
    client = serve()
    answer = client.post("/score", json=body(), headers={"x-fallback-rewards": header})
    assert answer.status_code == 200
    assert fallbacks(client) == counted


@pytest.mark.slow
def test_only_complete_batches_are_timed(serve: Serve):
    client = serve(FakeJudge(wait_s=0.15))
    assert client.post("/score/batch", json={"items": [body(1), {}, body(2)]}).status_code == 200
    assert client.post("/score/batch", json={"items": []}).status_code == 422
    assert client.post("/score", json=body(1)).status_code == 200
    name = "rewardfleet_batch_duration_seconds"
    assert metric(client, f"{name}_count") == 1
    assert 0.15 < metric(client, f"{name}_sum") < 10
    assert metric(client, f'{name}_bucket{{le="0.1"') == 0
