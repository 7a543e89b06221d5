"""Several replicas of a service: who is asked, who is left alone, and who waits."""

import asyncio
import time
from email.utils import formatdate

import pytest

import rewardfleet
from rewardfleet import RewardFleet, replicas
from rewardfleet_server.testing import FakeJudge

from ..conftest import Serve
from .conftest import Asked, Reply, problem, until, well

pytestmark = pytest.mark.slow  # services that fail take their time


def always(status: int, kind: str, retry_after: float | None = None):
    async def script(asked: Asked) -> Reply:
        return Reply(status, problem(status, kind, retry_after))

    return script


def holding(release: asyncio.Event, script=well):
    """Answer once `release` is set."""

    async def script_(asked: Asked) -> Reply | None:
        await release.wait()
        return await script(asked)

    return script_


async def ask(fleet: RewardFleet, number: int) -> float:
    score = await fleet.video.score(f"task {number}", "clip.mp4")
    return round(score.score * 1e6)


async def test_calls_go_where_the_least_are_in_flight(replica):
    release = asyncio.Event()
    slow, quick = await replica(holding(release)), await replica()
    async with RewardFleet(video=[slow.url, quick.url]) as fleet:
        held = asyncio.create_task(ask(fleet, 0))
        await until(lambda: len(slow.asked) == 1)
        assert [await ask(fleet, number) for number in range(1, 9)] == list(range(1, 9))
        assert (len(slow.asked), len(quick.asked)) == (1, 8)
        release.set()
        assert await held == 0


async def test_calls_at_once_are_spread_evenly(replica):
    release = asyncio.Event()
    three = [await replica(holding(release)) for _ in range(3)]
    async with RewardFleet(video=[each.url for each in three]) as fleet:
        calls = [asyncio.create_task(ask(fleet, number)) for number in range(30)]
        await until(lambda: sum(len(each.asked) for each in three) == 30)
        assert [len(each.asked) for each in three] == [10, 10, 10]
        release.set()
        assert await asyncio.gather(*calls) == list(range(30))


async def test_idle_replicas_take_turns(replica):
    three = [await replica() for _ in range(3)]
    async with RewardFleet(video=[each.url for each in three]) as fleet:
        for number in range(9):
            await ask(fleet, number)
    assert [len(each.asked) for each in three] == [3, 3, 3]


async def cut(asked: Asked) -> None:
    return None


@pytest.mark.parametrize("script", [cut, always(503, "unavailable")], ids=["cut", "503"])
async def test_a_sick_replica_is_ejected_and_comes_back(replica, script):
    sick, well_one = await replica(script), await replica()
    async with RewardFleet(video=[sick.url, well_one.url]) as fleet:
        for number in range(40):
            assert await ask(fleet, number) == number
        assert len(sick.asked) == 1, "one call found out; the others were spared"
        await until(lambda: sick.probes >= 2)
        assert await ask(fleet, 7) == 7
        assert len(sick.asked) == 1, "it is not back as long as it is not ready"
        sick.script = well
        async with asyncio.timeout(10):
            while len(sick.asked) < 3:
                await ask(fleet, 1)


async def test_there_is_one_probe_at_a_time_and_ever_later(replica):
    release = asyncio.Event()
    sick, well_one = await replica(always(503, "unavailable")), await replica()
    async with RewardFleet(video=[sick.url, well_one.url]) as fleet:
        while not sick.asked:
            await ask(fleet, 1)
        sick.script = holding(release, always(503, "unavailable"))
        await until(lambda: sick.probes == 1)
        await asyncio.gather(*(ask(fleet, number) for number in range(200)))
        assert sick.probes == 1
        release.set()
        started = time.monotonic()
        await until(lambda: sick.probes == 4)
        # 0.05 s doubled: 0.1, 0.2, 0.4
        assert time.monotonic() - started >= 0.7 * 0.9


async def test_the_ejection_is_capped(replica, monkeypatch):
    monkeypatch.setattr(replicas, "MAX_EJECTION_SECONDS", 0.05)
    sick, well_one = await replica(always(503, "unavailable")), await replica()
    async with RewardFleet(video=[sick.url, well_one.url]) as fleet:
        while not sick.asked:
            await ask(fleet, 1)
        await until(lambda: sick.probes >= 10, seconds=5)


async def test_a_judge_that_fails_again_and_again_is_ejected(replica):
    """It fails quickly, so that it has the least in flight, and would draw all calls."""
    broken, well_one = await replica(always(502, "backend_failed")), await replica()
    broken_well = broken.script

    async def ready_but_broken(asked: Asked) -> Reply:
        return await (broken_well(asked) if asked.path == "/score" else always(503, "x")(asked))

    broken.script = ready_but_broken
    async with RewardFleet(video=[broken.url, well_one.url]) as fleet:
        for number in range(50):
            assert await ask(fleet, number) == number
    assert len(broken.asked) == replicas.EJECT_AFTER


async def test_a_silent_replica_is_ejected(replica):
    never = asyncio.Event()
    silent, well_one = await replica(holding(never)), await replica()
    async with RewardFleet(video=[silent.url, well_one.url], timeout_s=0.3) as fleet:
        with pytest.raises(rewardfleet.DeadlineExceeded):
            await asyncio.gather(*(ask(fleet, number) for number in range(2)))
        for number in range(10):
            assert await ask(fleet, number) == number
    assert len(silent.asked) == 1
    never.set()


async def test_a_failed_call_goes_to_another_replica(serve: Serve, replica):
    async def lost(asked: Asked) -> None:
        return None

    dying = await replica(lost)
    real = serve(FakeJudge(0.75))
    async with RewardFleet(video=[dying.url, str(real.base_url)]) as fleet:
        clip = b"no video"
        with pytest.raises(rewardfleet.InvalidRequest):  # the real one's word
            await fleet.video.score("task", clip)
        with pytest.raises(rewardfleet.InvalidRequest):
            await fleet.video.score("task", clip)
    assert len(dying.asked) == 1


async def test_where_all_are_sick_the_one_that_failed_least_recently_is_used(replica):
    both = [await replica(cut), await replica(cut)]
    async with RewardFleet(video=[each.url for each in both]) as fleet:
        with pytest.raises(rewardfleet.Unavailable):
            await ask(fleet, 1)
        assert abs(len(both[0].asked) - len(both[1].asked)) <= 1, "in turns"
        both[1].script = well
        assert await ask(fleet, 2) == 2, "without waiting for a probe"


async def test_a_service_that_restarts_is_waited_for(replica):
    """On the same port, with connections of before."""
    only = await replica()
    port = int(only.url.rpartition(":")[2])
    async with RewardFleet(video=only.url) as fleet:
        assert await ask(fleet, 1) == 1
        await only.stop()
        with pytest.raises(rewardfleet.Unavailable):
            await ask(fleet, 2)
        await only.start(port)
        assert await ask(fleet, 3) == 3


# Retries


@pytest.mark.parametrize("way", ["seconds", "date", "problem"])
async def test_retry_after_is_honoured(replica, way):
    async def once_full(asked: Asked) -> Reply:
        if len(only.asked) > 1:
            return await well(asked)
        if way == "seconds":
            return Reply(429, "", {"Retry-After": "1"})
        if way == "date":
            return Reply(429, "", {"Retry-After": formatdate(time.time() + 2, usegmt=True)})
        return Reply(429, problem(429, "overloaded", 0.4), {"Retry-After": "9"})

    only = await replica(once_full)
    async with RewardFleet(video=only.url) as fleet:
        assert await ask(fleet, 5) == 5
        first, second = only.asked
    assert second.at - first.at >= (0.4 if way == "problem" else 1.0)


async def test_no_call_disturbs_a_service_that_asked_for_rest(replica):
    only = await replica(always(429, "overloaded", 0.5))
    async with RewardFleet(video=only.url, max_concurrency=4) as fleet:
        calls = [asyncio.create_task(ask(fleet, number)) for number in range(100)]
        await until(lambda: len(only.asked) == 4)
        only.script = well
        assert await asyncio.gather(*calls) == list(range(100))
    refused, rest = only.asked[:4], only.asked[4:]
    assert min(each.at for each in rest) - max(each.at for each in refused) >= 0.45


async def test_a_full_replica_leaves_its_calls_to_others(replica):
    full, free = await replica(always(429, "overloaded", 30)), await replica()
    async with RewardFleet(video=[full.url, free.url]) as fleet:
        started = time.monotonic()
        assert [await ask(fleet, number) for number in range(20)] == list(range(20))
        assert time.monotonic() - started < 5
    assert len(full.asked) == 1


async def test_a_refusal_that_outlasts_the_deadline_is_told_at_once(replica):
    full = await replica(always(429, "overloaded", 30))
    draining = await replica(always(503, "unavailable", 30))
    for url, error in ((full.url, rewardfleet.Overloaded), (draining.url, rewardfleet.Unavailable)):
        async with asyncio.timeout(5), RewardFleet(video=url, timeout_s=20) as fleet:
            with pytest.raises(error):
                await ask(fleet, 1)


async def test_a_small_service_gets_no_more_than_it_takes(serve: Serve, replica):
    """After a refusal the calls in flight are halved, so that few are refused."""
    in_house = 0

    async def small(asked: Asked) -> Reply:
        nonlocal in_house
        if in_house >= 4:
            refused.append(asked)
            return Reply(429, problem(429, "overloaded", 0.02))
        in_house += 1
        await asyncio.sleep(0.002)  # the judgment
        in_house -= 1
        return await well(asked)

    refused: list[Asked] = []
    only = await replica(small)
    async with RewardFleet(video=only.url, max_concurrency=64) as fleet:
        answers = await asyncio.gather(*(ask(fleet, number) for number in range(400)))
    assert answers == list(range(400))
    assert len(refused) < 200


@pytest.mark.parametrize(
    ("status", "kind", "error"),
    [
        (401, "unauthorized", rewardfleet.Unauthorized),
        (403, "forbidden", rewardfleet.Forbidden),
        (404, "not_found", rewardfleet.NotFound),
        (413, "too_large", rewardfleet.TooLarge),
        (422, "invalid", rewardfleet.InvalidRequest),
        (500, "internal", rewardfleet.InternalError),
        (504, "deadline_exceeded", rewardfleet.DeadlineExceeded),
    ],
)
async def test_what_trying_again_does_not_help_is_tried_once(replica, status, kind, error):
    both = [await replica(always(status, kind)) for _ in range(2)]
    async with RewardFleet(video=[each.url for each in both]) as fleet:
        with pytest.raises(error):
            await ask(fleet, 1)
    assert sum(len(each.asked) for each in both) == 1


async def test_a_failed_judgment_is_tried_a_bounded_number_of_times(replica):
    only = await replica(always(502, "backend_failed"))
    async with RewardFleet(video=only.url) as fleet:
        with pytest.raises(rewardfleet.BackendFailed):
            await ask(fleet, 1)
    assert len(only.asked) == 5


# The deadline


async def test_the_deadline_bounds_waiting_trying_and_being_answered(replica):
    never = asyncio.Event()
    silent = await replica(holding(never))
    full = await replica(always(429, "overloaded", 0.01))
    for url in (silent.url, full.url):
        async with RewardFleet(video=url, timeout_s=0.4, max_concurrency=2) as fleet:
            started = time.monotonic()
            calls = [ask(fleet, number) for number in range(20)]
            failures = await asyncio.gather(*calls, return_exceptions=True)
            assert time.monotonic() - started < 1.5
            kinds = {type(failure) for failure in failures}
            assert kinds <= {rewardfleet.DeadlineExceeded, rewardfleet.Overloaded}
    never.set()


async def test_the_service_is_told_how_much_time_is_left(replica):
    async def second_time(asked: Asked) -> Reply:
        if len(only.asked) == 1:
            return Reply(503, problem(503, "unavailable", 0.5))
        return await well(asked)

    only = await replica(second_time)
    async with RewardFleet(video=only.url, timeout_s=5) as fleet:
        assert await ask(fleet, 3) == 3
    told = [float(asked.headers["x-request-timeout"]) for asked in only.asked]
    assert 4.3 < told[0] <= 4.5
    assert told[1] <= told[0] - 0.5 * 0.9


# Waiting


async def test_no_more_calls_are_under_way_than_allowed(replica):
    two = [await replica() for _ in range(2)]
    async with RewardFleet(video=[each.url for each in two], max_concurrency=3) as fleet:
        answers = await asyncio.gather(*(ask(fleet, number) for number in range(200)))
    assert answers == list(range(200))
    assert max(each.most_connections for each in two) <= 3


async def test_what_waits_is_served_in_order(replica):
    only = await replica()
    async with RewardFleet(video=only.url, max_concurrency=1) as fleet:
        requests = [rewardfleet.video_request(f"task {i}", "clip.mp4") for i in range(50)]
        endpoint = fleet.video._transport
        await asyncio.gather(
            *(
                endpoint.post("/score", each, rewardfleet.VideoScore, deadline=endpoint.deadline())
                for each in requests
            )
        )
    assert [each.items[0]["task_text"] for each in only.asked] == [f"task {i}" for i in range(50)]


@pytest.mark.slow
async def test_the_cost_of_a_call_does_not_grow_with_those_that_wait(replica):
    """2,000 waiting calls with 8 connections: httpx's pool alone is quadratic in them."""
    only = await replica()

    async def cpu_seconds(calls: int) -> float:
        async with RewardFleet(video=only.url, max_concurrency=8) as fleet:
            started = time.process_time()
            answers = await asyncio.gather(*(ask(fleet, number) for number in range(calls)))
            assert answers == list(range(calls))
            return (time.process_time() - started) / calls

    await cpu_seconds(100)
    few = min([await cpu_seconds(250) for _ in range(2)])
    assert await cpu_seconds(2000) < 2 * few
    assert only.most_connections <= 8


async def test_a_cancelled_call_gives_its_place_back(replica):
    release = asyncio.Event()
    only = await replica(holding(release))
    async with RewardFleet(video=only.url, max_concurrency=2) as fleet:
        calls = [asyncio.create_task(ask(fleet, number)) for number in range(10)]
        await until(lambda: len(only.asked) == 2)
        for call in calls[:8]:  # two in flight, six that wait
            call.cancel()
        release.set()
        assert await asyncio.gather(*calls[8:]) == [8, 9]
        pool = next(iter(fleet.video._transport._connected.values()))
        assert [each.in_flight for each in pool._replicas] == [0]
        assert not pool._waiting
    assert sorted(each.items[0]["task_text"] for each in only.asked[2:]) == ["task 8", "task 9"]


@pytest.mark.parametrize("video", ["", "127.0.0.1:1", [], ["http://a", "b"]], ids=str)
def test_what_is_no_url_is_refused(video):
    with pytest.raises(ValueError, match="video"):
        RewardFleet(video=video)
