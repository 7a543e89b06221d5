"""Replicas that stop answering: their calls move to the others, before the deadline."""

import asyncio

import pytest

from rewardfleet import RewardFleet
from rewardfleet.http import replicas

from ..measure import Stopwatch
from .conftest import Reply, healthy, holding, refusal, score_number, until


async def test_a_stateful_call_to_a_frozen_replica_is_sent_again_unchanged(replica):
    never = asyncio.Event()
    answer = Reply(body={"temperatures": [0.6], "base_temperature": 0.6, "temperature_range": 0})
    silent, other = await replica(holding(never)), await replica(answer)
    async with RewardFleet(episode=[silent.url, other.url], timeout_s=3) as fleet:
        outcome = {"run": "r", "step": 3, "success_rate": 0.5}
        assert (await fleet.episode.temperatures(1, adapt=outcome)).temperatures == [0.6]
    (first,), (second,) = silent.received, other.received
    assert first.body == second.body, "the service counts the same run and step once"
    never.set()


@pytest.mark.slow
@pytest.mark.parametrize("has_other", [True, False])
async def test_a_slow_judge_is_waited_for(replica, has_other: bool):
    """With another URL only while its replica answers other calls: else it may be frozen."""
    release = asyncio.Event()
    both = [await replica(holding(release, tasks="task 0")) for _ in range(2 if has_other else 1)]
    async with RewardFleet(video=[each.url for each in both], timeout_s=4) as fleet:
        watch = Stopwatch()
        slow = asyncio.create_task(score_number(fleet, 0))
        await until(lambda: any(each.received for each in both))
        while watch.seconds < 2.5:  # more than half of its time
            if has_other:
                assert await asyncio.gather(*map(score_number, [fleet] * 4, [1, 2, 3, 4]))
            await asyncio.sleep(0.1)
        release.set()
        assert await slow == 0
    tasks = [each.items[0]["task_text"] for one in both for each in one.received]
    assert tasks.count("task 0") == 1, "it is not sent twice"


@pytest.mark.slow
@pytest.mark.parametrize(("status", "kind"), [(429, "overloaded"), (503, "unavailable")])
async def test_a_long_retry_after_rests_a_replica_for_a_limited_time(
    replica, monkeypatch, status, kind
):
    monkeypatch.setattr(replicas, "_MAX_REST_SECONDS", 0.2)
    script = refusal(status, kind, 86400, {"Retry-After": "86400"})
    resting, other = await replica(script), await replica()
    async with RewardFleet(video=[resting.url, other.url], timeout_s=20) as fleet:
        while not resting.received:
            await score_number(fleet, 1)
        resting.script = healthy
        async with asyncio.timeout(20):
            while len(resting.received) == 1:
                await score_number(fleet, 1)


@pytest.mark.slow
async def test_no_call_is_lost_while_a_replica_is_frozen(replica):
    """It is used again once it goes on; tests/chaos freezes processes."""
    thawed = asyncio.Event()
    first, second = await replica(), await replica()
    async with RewardFleet(video=[first.url, second.url], timeout_s=6) as fleet:
        numbers = iter(range(100))

        async def caller() -> None:
            for number in numbers:
                if number == 20:
                    first.script = holding(thawed)
                assert await score_number(fleet, number) == number

        await asyncio.gather(*(caller() for _ in range(8)))
        first.script, served = healthy, len(first.received)
        thawed.set()
        async with asyncio.timeout(60):
            while len(first.received) <= served + 8:
                await score_number(fleet, 1)
