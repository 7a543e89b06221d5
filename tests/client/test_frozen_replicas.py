"""Replicas that stop answering: their calls move to the others, before the deadline."""

import asyncio
import base64
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from rewardfleet import RewardFleet
from rewardfleet.http import replicas
from rewardfleet_server.up.settings import free_port

from ..conftest import image_base64
from ..measure import Stopwatch
from ..running import own_environment, running
from .conftest import Reply, healthy, holding, refusal, score_number, until

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
settings = VideoSettings(port=int(sys.argv[1]))
Server(create_app(settings, {"numbers": Numbers()}), settings).run()
"""


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


@contextmanager
def services(count: int, folder: Path) -> Iterator[list[tuple[subprocess.Popen[bytes], str]]]:
    """Start real services; yield their processes and URLs."""
    with ExitStack() as stack:
        started = []
        for number in range(count):
            url = f"http://127.0.0.1:{(port := free_port())}"
            command, log = [sys.executable, "-c", PROGRAM, port], folder / f"{number}.log"
            program = running(command, f"{url}/readyz", log=log, env=own_environment())
            started.append((stack.enter_context(program), url))
        yield started


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_no_call_is_lost_while_a_replica_is_frozen(tmp_path):
    """100 calls to two processes, one of which is stopped; it is used again once it goes on."""
    with services(2, tmp_path) as ((stopped, first), (_, second)):
        urls = [first, second]
        async with RewardFleet(video=urls, timeout_s=12) as fleet:
            numbers = iter(range(100))

            async def caller() -> None:
                for number in numbers:
                    if number == 20:
                        os.kill(stopped.pid, signal.SIGSTOP)
                    score = await fleet.video.score(f"task {number}", [IMAGE])
                    assert round(score.score * 1e6) == number

            await asyncio.gather(*(caller() for _ in range(8)))
            os.kill(stopped.pid, signal.SIGCONT)
            served = (tmp_path / "0.log").read_text().count("/score")
            async with asyncio.timeout(60):
                while (tmp_path / "0.log").read_text().count("/score") <= served + 8:
                    await fleet.video.score("task 1", [IMAGE])
