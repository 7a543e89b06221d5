"""Calls that are pending for long are logged: one line for the client, before a trainer hangs."""

import asyncio
import logging
import pickle
import re
import threading

import pytest

from rewardfleet import RewardFleet, blocking, video_request
from rewardfleet.http import pending

from .conftest import Reply, holding, refusal, until


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "_LOG_AFTER_SECONDS", 0.05)
    monkeypatch.setattr(pending, "_LOG_EVERY_SECONDS", 0.2)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    own = ("rewardfleet.pending", logging.WARNING)
    return [one.getMessage() for one in caplog.records if (one.name, one.levelno) == own]


@pytest.mark.slow
async def test_one_line_names_the_oldest_of_all_pending_calls(replica, caplog):
    release = asyncio.Event()
    tools = holding(release, Reply(body={"score": 1.0, "status": "ok"}))
    video, other = await replica(holding(release)), await replica(tools)
    async with RewardFleet(video=video.url, tools=other.url, timeout_s=60) as fleet:
        batch = [video_request(f"task {n}", "clip.mp4") for n in range(3)]
        calls = [asyncio.create_task(fleet.video.score_batch(batch))]
        await until(lambda: len(video.received) == 1)
        calls += [asyncio.create_task(fleet.tools.score("x", "<think>")) for _ in range(20)]
        await until(lambda: len(other.received) == 20)
        logged, started = len(lines(caplog)), asyncio.get_running_loop().time()
        await until(lambda: len(lines(caplog)) == logged + 3)
        assert asyncio.get_running_loop().time() - started > 0.35  # not one per call
        line = lines(caplog)[-1]
        assert line.startswith("pending calls: 21 (items: 23); the oldest: video /score/batch ")
        assert re.search(rf"\(items: 3\), since \d+ s, attempt 1 at {video.url}, \d\d s left", line)
        release.set()
        await asyncio.gather(*calls)
        assert fleet._pending._watches == {}


async def test_a_call_that_waits_for_a_replica_at_capacity_says_so(replica, caplog):
    video = await replica(refusal(429, "overloaded", 30))
    async with RewardFleet(video=video.url, timeout_s=60) as fleet:
        call = asyncio.create_task(fleet.video.score("task 1", "clip.mp4"))
        expected = "attempt 1 waiting for a replica, "
        await until(lambda: expected in "".join(lines(caplog)))
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


async def test_without_pending_calls_there_is_no_timer(replica, caplog, monkeypatch):
    """Also after cancelled calls; quick calls log nothing."""
    monkeypatch.setattr(pending, "_LOG_AFTER_SECONDS", 30.0)  # longer than this test takes
    release = asyncio.Event()
    video = await replica()
    fleet = RewardFleet(video=video.url)
    for number in range(20):
        await fleet.video.score(f"task {number}", "clip.mp4")
    assert fleet._pending._watches == {}
    video.script = holding(release)
    calls = [asyncio.create_task(fleet.video.score("task 1", "clip.mp4")) for _ in range(100)]
    await until(lambda: len(video.received) > 20)
    (watch,) = fleet._pending._watches.values()
    await until(lambda: len(watch.calls) == 100)
    assert not watch.timer.cancelled()
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert watch.timer.cancelled() and fleet._pending._watches == {}
    await fleet.aclose()
    assert lines(caplog) == []
    assert pickle.loads(pickle.dumps(fleet))._pending._watches == {}
    release.set()


async def test_the_blocking_client_logs_as_well(replica, caplog):
    release = asyncio.Event()
    video = await replica(holding(release))

    def score() -> None:
        with blocking.RewardFleet(video=video.url) as fleet:
            fleet.video.score("task 1", "clip.mp4")

    threads = threading.active_count()
    call = asyncio.create_task(asyncio.to_thread(score))
    await until(lambda: len(lines(caplog)) >= 1)
    assert "pending calls: 1 (items: 1); the oldest: video /score " in lines(caplog)[0]
    release.set()
    await call
    assert threading.active_count() <= threads + 1  # that of `to_thread`
