"""Replicas that stop answering: their calls move to the others."""

import asyncio
import base64
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from rewardfleet import DeadlineExceeded, RewardFleet
from rewardfleet.blocking import RewardFleet as BlockingFleet
from rewardfleet.http import replicas
from rewardfleet_server.testing import wait_until

from ..conftest import image_base64
from ..measure import Stopwatch
from .conftest import Received, Reply, healthy, problem, until

IMAGE = base64.b64decode(image_base64())

#: Serves video with a judge whose score is in the task, after some milliseconds.
PROGRAM = """
import asyncio, sys
from contextlib import asynccontextmanager
from rewardfleet_server.serve import Server
from rewardfleet_server.observe.logs import configure_logging
from rewardfleet_server.testing import FakeJudge
from rewardfleet_server.video.app import create_app
from rewardfleet_server.video.judges import Judgment
from rewardfleet_server.video.settings import VideoSettings

class Numbers(FakeJudge):
    async def judge(self, task_text, clip, backend_kwargs):
        await asyncio.sleep(0.01)
        return Judgment(int(task_text.split()[-1]) / 1e6, "")

configure_logging("info")
settings = VideoSettings(port=0)
Server(create_app(settings, {"numbers": Numbers()}), settings).run()
"""


def frozen(release: asyncio.Event):
    """Answer nothing until `release` is set, also not `/readyz`."""

    async def script(request: Received) -> Reply | None:
        await release.wait()
        return await healthy(request)

    return script


def stuck(release: asyncio.Event):
    """Answer `/readyz` only, until `release` is set."""

    async def script(request: Received) -> Reply | None:
        if request.path != "/readyz":
            await release.wait()
        return await healthy(request)

    return script


@pytest.fixture(autouse=True)
def _quick_checks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("slow"):  # real processes need the real limits
        return
    monkeypatch.setattr(replicas, "_MAX_SILENCE_SECONDS", 0.03)
    monkeypatch.setattr(replicas, "_MAX_CHECK_SECONDS", 0.1)


async def score_number(fleet: RewardFleet, number: int) -> int:
    score = await fleet.video.score(f"task {number}", "clip.mp4")
    return round(score.score * 1e6)


@pytest.mark.slow
async def test_the_calls_of_a_frozen_replica_move_to_another_one(replica):
    release = asyncio.Event()
    silent, other = await replica(frozen(release)), await replica()
    async with RewardFleet(video=[silent.url, other.url], timeout_s=60) as fleet:
        watch = Stopwatch()
        calls = [score_number(fleet, number) for number in range(20)]
        assert await asyncio.gather(*calls) == list(range(20))
        assert watch.seconds < 30, "long before the deadline"
        held = len(silent.received)
        assert [await score_number(fleet, number) for number in range(5)] == list(range(5))
        assert len(silent.received) == held > 0, "an ejected replica gets no calls"
        release.set()
        async with asyncio.timeout(30):
            while len(silent.received) == held:
                await score_number(fleet, 1)


async def test_a_slow_judge_is_waited_for_as_long_as_its_service_answers_checks(
    replica, monkeypatch
):
    monkeypatch.setattr(replicas, "_MAX_CHECK_SECONDS", 20.0)  # a busy machine must answer in time
    release = asyncio.Event()
    slow, other = await replica(stuck(release)), await replica(stuck(release))
    async with RewardFleet(video=[slow.url, other.url], timeout_s=100) as fleet:
        calls = [asyncio.create_task(score_number(fleet, number)) for number in range(4)]
        await until(lambda: slow.probes >= 3 and other.probes >= 3)
        release.set()
        assert await asyncio.gather(*calls) == list(range(4))
    assert len(slow.received) + len(other.received) == 4, "no call is sent twice"


async def test_a_replica_is_not_watched_after_its_last_call_has_failed(replica):
    never = asyncio.Event()
    only = await replica(frozen(never))
    async with RewardFleet(video=only.url, timeout_s=0.3) as fleet:
        with pytest.raises(DeadlineExceeded):
            await score_number(fleet, 1)
        (state,) = fleet.video._transport._replicas()._replicas
        await until(lambda: state.watch is None)
    never.set()


async def test_closing_ends_the_check_of_a_frozen_replica(replica, monkeypatch):
    monkeypatch.setattr(replicas, "_MAX_CHECK_SECONDS", 30.0)
    never = asyncio.Event()
    silent, other = await replica(frozen(never)), await replica()
    fleet = RewardFleet(video=[silent.url, other.url], timeout_s=20)
    call = asyncio.create_task(score_number(fleet, 1))
    states = fleet.video._transport._replicas()._replicas
    await until(lambda: any(each.check for each in states))
    (check,) = (each.check for each in states if each.check)
    await fleet.aclose()
    assert check.done()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    never.set()


async def test_a_stateful_call_to_a_frozen_replica_is_sent_again_unchanged(replica):
    never = asyncio.Event()

    async def answer(request: Received) -> Reply:
        return Reply(body={"temperatures": [0.6], "base_temperature": 0.6, "temperature_range": 0})

    silent, other = await replica(frozen(never)), await replica(answer)
    async with RewardFleet(episode=[silent.url, other.url], timeout_s=20) as fleet:
        outcome = {"run": "r", "step": 3, "success_rate": 0.5}
        assert (await fleet.episode.temperatures(1, adapt=outcome)).temperatures == [0.6]
    (first,), (second,) = silent.received, other.received
    assert first.body == second.body, "the service counts the same run and step once"
    never.set()


async def test_a_single_url_is_not_checked(replica):
    release = asyncio.Event()
    only = await replica(frozen(release))
    async with RewardFleet(video=only.url, timeout_s=20) as fleet:
        call = asyncio.create_task(score_number(fleet, 1))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(call), 0.2)
        assert (len(only.received), only.probes) == (1, 0), "there is no other to move it to"
        release.set()
        assert await call == 1


@pytest.mark.slow
@pytest.mark.parametrize(("status", "kind"), [(429, "overloaded"), (503, "unavailable")])
async def test_a_long_retry_after_rests_a_replica_for_a_limited_time(
    replica, monkeypatch, status, kind
):
    monkeypatch.setattr(replicas, "_MAX_REST_SECONDS", 0.2)

    async def refuse(request: Received) -> Reply:
        return Reply(status, problem(status, kind, 86400), {"Retry-After": "86400"})

    resting, other = await replica(refuse), await replica()
    async with RewardFleet(video=[resting.url, other.url], timeout_s=20) as fleet:
        while not resting.received:
            await score_number(fleet, 1)
        resting.script = healthy
        async with asyncio.timeout(20):
            while len(resting.received) == 1:
                await score_number(fleet, 1)


@contextmanager
def services(count: int, folder: Path) -> Iterator[list[tuple[subprocess.Popen[bytes], str]]]:
    """Start real services; yield their processes and URLs."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("REWARDFLEET_")}
    with ExitStack() as stack:
        started = []
        for number in range(count):
            log = stack.enter_context(open(folder / f"{number}.log", "w+"))
            command = [sys.executable, "-c", PROGRAM]
            process = stack.enter_context(subprocess.Popen(command, stderr=log, env=environment))
            stack.callback(process.kill)
            started.append((process, log))
        yield [(process, _url(Path(log.name))) for process, log in started]


def _url(log: Path) -> str:
    wait_until(lambda: '"serving ' in log.read_text(), 90)
    return log.read_text().split('"serving ')[1].split(" on ")[1].split('"')[0]


def _p99(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=100)[98]


@pytest.mark.serial
@pytest.mark.slow
@pytest.mark.timeout(600)  # half a minute, and some minutes on a busy machine
async def test_no_call_is_lost_while_a_replica_is_frozen(tmp_path):
    """300 calls to three processes, one of which is stopped for a part of the time."""

    async def run(fleet: RewardFleet, first: int, freeze: bool) -> list[float]:
        seconds, numbers, stopped = [], iter(range(first, first + 300)), False

        async def caller() -> None:
            nonlocal stopped
            for number in numbers:
                if freeze and number == first + 100:
                    os.kill(frozen_one.pid, signal.SIGSTOP)
                    stopped = True
                if stopped and number == first + 200:
                    os.kill(frozen_one.pid, signal.SIGCONT)
                began = time.monotonic()
                score = await fleet.video.score(f"task {number}", [IMAGE])
                assert round(score.score * 1e6) == number
                seconds.append(time.monotonic() - began)

        await asyncio.gather(*(caller() for _ in range(24)))
        return seconds

    with services(3, tmp_path) as three:
        frozen_one = three[1][0]
        async with RewardFleet(video=[url for _, url in three], timeout_s=30) as fleet:
            idle = await run(fleet, 0, freeze=False)
            for first in (10_000, 20_000, 30_000):
                with_frozen = await run(fleet, first, freeze=True)
                if _p99(with_frozen) < 4 * _p99(idle) + 1.0:
                    break  # else a pause of this process may have delayed all calls
        print(f"p99 {_p99(idle):.3f} s, with a frozen replica {_p99(with_frozen):.3f} s")
        print(f"max {max(idle):.3f} s, {max(with_frozen):.3f} s")
        assert (len(idle), len(with_frozen)) == (300, 300)
        assert _p99(with_frozen) < 4 * _p99(idle) + 1.0
        assert max(with_frozen) < 20


@pytest.mark.slow
def test_the_blocking_client_survives_a_frozen_replica(tmp_path):
    with (
        services(2, tmp_path) as two,
        BlockingFleet(video=[url for _, url in two], timeout_s=30) as fleet,
    ):
        assert fleet.video.score("task 1", [IMAGE]).score == 1e-6
        os.kill(two[0][0].pid, signal.SIGSTOP)
        watch = Stopwatch()
        for number in range(2, 6):
            assert round(fleet.video.score(f"task {number}", [IMAGE]).score * 1e6) == number
        assert watch.seconds < 20
