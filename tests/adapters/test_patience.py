"""A run whose service stays away ends, where the trainer leaves out missing rewards."""

import asyncio
import math

import numpy as np
import pytest

from rewardfleet import InvalidRequest, RewardFleetError
from rewardfleet.adapters._rows import RowReward
from rewardfleet.wire.errors import Unavailable

from ..client.conftest import Received, Reply, healthy, refusal, replica  # noqa: F401 - fixture

AWAY = refusal(503, "unavailable")
ABSTAINED = {"score": None, "status": "abstained"}
COLUMNS = {"clip": ["a.mp4", "b.mp4"], "task": ["task 1", "task 2"]}


async def abstaining(request: Received) -> Reply:
    return Reply(body={"results": [ABSTAINED] * len(request.items)})


@pytest.mark.parametrize("on_failure", [math.nan, -1.0])
async def test_the_third_batch_in_a_row_without_any_reward_raises(replica, on_failure: float):  # noqa: F811
    service = await replica()
    scorer = RowReward("video", service.url, on_failure=on_failure, timeout_s=1)
    for script in [healthy, AWAY, AWAY, healthy, AWAY, abstaining, AWAY]:
        service.script = script
        rewards = await scorer.rewards([None] * 2, COLUMNS)
        expected = [0.0, 0.0] if script is healthy else [on_failure] * 2
        assert np.array_equal(rewards, expected, equal_nan=True)
    service.script = AWAY
    with pytest.raises(Unavailable, match="no reward in 3 calls in a row: .*scripted"):
        await scorer.rewards([None] * 2, COLUMNS)


async def test_samples_end_a_run_as_well(replica):  # noqa: F811
    service = await replica()
    scorer = RowReward("video", service.url, on_failure=math.nan, timeout_s=1, coalesce_s=0.0)
    row = {"clip": "a.mp4", "task": "task 1"}
    assert (await scorer.score(None, row))[0] == 0.0
    service.script = AWAY
    together = await asyncio.gather(*(scorer.score(None, row) for _ in range(8)))
    assert all(math.isnan(reward) for reward, _ in together), "this is one failure"

    async def train() -> None:
        while True:
            await scorer.score(None, row)

    with pytest.raises(Unavailable, match="calls in a row: .*scripted"):
        await asyncio.wait_for(train(), 60)


@pytest.mark.parametrize(
    ("seconds", "over"), [([9, 18], []), ([9, 9, 9, 9, 18, 27], [27]), ([9, 12, 15, 30], [30])]
)
def test_it_takes_the_time_of_three_calls(seconds: list[float], over: list[float], monkeypatch):
    scorer = RowReward("code", "http://127.0.0.1:9", timeout_s=9)
    ended = []
    for now in seconds:
        monkeypatch.setattr("rewardfleet.adapters._rows.time.monotonic", lambda now=now: now)
        ended += [now] if scorer.is_patience_over({"error"}, is_batch=False) else []
    assert ended == over


async def test_a_wrong_url_raises_in_every_form(code_url: str):
    for url in (f"{code_url}/score", code_url.replace("http:", "https:"), "http://none.invalid"):
        scorer = RowReward("code", url, on_failure=math.nan, timeout_s=30)
        tests = {"kind": "stdio", "cases": [{"stdin": "1", "stdout": "1"}]}
        with pytest.raises(RewardFleetError) as batch:
            await scorer.rewards(["print(1)"] * 2, {"tests": [tests] * 2})
        with pytest.raises(RewardFleetError) as sample:
            await scorer.score("print(1)", {"tests": tests})
        assert batch.value.blames_url and sample.value.blames_url
        assert isinstance(batch.value, InvalidRequest | Unavailable)
