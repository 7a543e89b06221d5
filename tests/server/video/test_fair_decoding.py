"""Small requests are answered soon beside large ones, and large ones are not starved."""

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest

from rewardfleet.wire.errors import Overloaded
from rewardfleet.wire.score import Timing
from rewardfleet_server.admission import Admission
from rewardfleet_server.testing import wait_until
from rewardfleet_server.video.fair_threads import FairThreads, Turn
from rewardfleet_server.video.scorer import FrameMemoryLimiter

from ...conftest import image_base64


@pytest.fixture
def one_slot():
    with FairThreads(1, threads=16) as threads:
        yield threads


def frames(turn: Turn, count: int, order: list[str], name: str, seconds: float = 0.02) -> None:
    """Use the core for `count` frames."""
    for _ in range(count):
        if turn.is_set():
            raise TimeoutError
        ends = time.thread_time() + seconds
        while time.thread_time() < ends:
            pass
        order.append(name)


@pytest.mark.slow
def test_a_small_clip_waits_for_one_frame_of_a_large_one(one_slot: FairThreads):
    order: list[str] = []
    began = threading.Event()
    large, small = Turn(one_slot), Turn(one_slot)

    def decode_large() -> None:
        frames(large, 6, order, "large")
        began.set()
        wait_until(lambda: small in one_slot._waiting, 60)  # during this frame
        order.append("waits")
        frames(large, 14, order, "large")

    work = one_slot.submit(large.run, decode_large)
    began.wait()
    one_slot.submit(small.run, partial(frames, small, 3, order, "small")).result()
    work.result()
    first = order.index("small")
    assert first == order.index("waits") + 1
    assert order[first : first + 3] == ["small"] * 3, "a small clip is not interrupted"
    assert len(order) == 24


@pytest.mark.slow
def test_a_large_clip_progresses_beside_a_stream_of_small_ones(one_slot: FairThreads):
    order: list[str] = []
    ended = threading.Event()
    large = Turn(one_slot)

    def decode_large() -> None:
        for _ in range(20):
            wait_until(lambda: bool(one_slot._waiting), 60)  # as in a stream that never ends
            frames(large, 1, order, "large")

    work = one_slot.submit(large.run, decode_large)

    def stream() -> None:
        while not ended.is_set():
            small = Turn(one_slot)
            one_slot.submit(small.run, partial(frames, small, 1, order, "small", 0.002)).result()

    streams = [one_slot.submit(stream) for _ in range(3)]
    try:
        work.result(timeout=90)
    finally:
        ended.set()
        large.set()
    for each in streams:
        each.result()
    assert order.count("large") == 20
    assert order.count("small") > 8


def test_a_clip_that_nobody_waits_for_ends_while_it_waits_for_its_turn(one_slot: FairThreads):
    holding, release = threading.Event(), threading.Event()
    first, second = Turn(one_slot), Turn(one_slot)

    def hold() -> None:
        holding.set()
        release.wait()

    running = one_slot.submit(first.run, hold)
    holding.wait()
    waiting = one_slot.submit(second.run, lambda: pytest.fail("it was to end before it began"))
    second.set()
    with pytest.raises(TimeoutError):
        waiting.result(timeout=60)
    release.set()
    running.result()
    third = Turn(one_slot)
    assert one_slot.submit(third.run, lambda: 3).result(timeout=60) == 3, "the slot is free again"


async def test_small_requests_do_not_wait_for_the_memory_of_large_ones():
    limiter = FrameMemoryLimiter()
    mib = 2**20
    order: list[str] = []
    release = asyncio.Event()

    async def hold(name: str, size: int) -> None:
        async with limiter.reserve(size):
            order.append(name)
            await release.wait()

    async with asyncio.TaskGroup() as group:
        for number in range(8):  # 616 MB each: five fit
            group.create_task(hold(f"large {number}", 588 * mib))
        for number in range(12):
            group.create_task(hold(f"small {number}", 77 * mib))
        await asyncio.sleep(0.01)
        assert order == [*(f"large {n}" for n in range(5)), *(f"small {n}" for n in range(12))]
        blocked = group.create_task(hold("small 12", 77 * mib))  # five units more than the quarter
        await asyncio.sleep(0.01)
        assert len(order) == 17
        blocked.cancel()
        release.set()
    assert len(order) == 20
    async with asyncio.timeout(1), limiter.reserve(4 * 2**30):
        pass  # all of it is free again


async def test_a_request_that_is_cancelled_when_its_memory_becomes_free_takes_none():
    limiter = FrameMemoryLimiter()

    async def hold() -> None:
        async with limiter.reserve(4 * 2**30):
            raise AssertionError("it was cancelled before")

    async with limiter.reserve(4 * 2**30):
        waiting = asyncio.create_task(hold())
        await asyncio.sleep(0)
        waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with asyncio.timeout(1), limiter.reserve(4 * 2**30):
        pass  # all of it is free again


async def test_large_items_leave_permits_and_queue_for_others():
    admission = Admission(max_in_flight=4, max_queue_depth=4, max_total_body_bytes=1)
    release = asyncio.Event()

    async def hold(*, is_large: bool) -> None:
        async with admission.permit(Timing(), is_large=is_large):
            await release.wait()

    async with asyncio.TaskGroup() as group:
        for _ in range(6):
            group.create_task(hold(is_large=True))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (admission.in_flight, admission.queue_depth) == (3, 3)
        with pytest.raises(Overloaded, match="large items"):
            async with admission.permit(Timing(), is_large=True):
                pass
        async with admission.permit(Timing()):
            assert admission.in_flight == 4
        release.set()
    assert (admission.in_flight, admission.queue_depth) == (0, 0)


@pytest.mark.serial
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_small_request_is_answered_within_a_second_during_six_large_ones(tmp_path: Path):
    """Six requests of 16 PNGs of 1920x1080 pixels take both cores for many seconds."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("REWARDFLEET_")}
    command = [sys.executable, "-m", "rewardfleet_server", "serve", "video", "--port", "0"]
    log = tmp_path / "log"
    large_image = image_base64(1920, 1080, kind=".png")
    small = [image_base64(256, 256, level=level, kind=".png") for level in range(16)]
    with (
        open(log, "w") as stderr,
        subprocess.Popen(command, stderr=stderr, env=environment) as process,
    ):
        try:
            listens = re.compile(r" on (http://[0-9.:]+)")
            wait_until(lambda: listens.search(log.read_text()) is not None, 120)
            url = listens.findall(log.read_text())[0]
            with httpx.Client(base_url=url, timeout=250, trust_env=False) as client:

                def seconds(number: int) -> float:
                    item = {"task_text": f"task {number}", "frames_base64": small, "nframes": 16}
                    began = time.monotonic()
                    assert client.post("/score", json=item).status_code == 200
                    return time.monotonic() - began

                def large(body: bytes) -> int:
                    headers = {"content-type": "application/json"}
                    return client.post("/score", content=body, headers=headers).status_code

                # Before the clock starts: encoding them holds the interpreter of this process.
                item = {"frames_base64": [large_image] * 16, "nframes": 16}
                bodies = [
                    json.dumps({**item, "task_text": f"large {number}"}).encode()
                    for number in range(6)
                ]

                for attempt in range(3):  # until the machine does not pause the service meanwhile
                    idle = [seconds(20 * attempt + number) for number in range(20)]
                    beside = []
                    with ThreadPoolExecutor(6) as pool:
                        heavy = [pool.submit(large, body) for body in bodies]
                        while not all(each.done() for each in heavy):
                            beside.append(seconds(100 + len(beside)))
                    assert [each.result() for each in heavy] == [200] * 6
                    p99 = float(np.quantile(beside, 0.99))
                    alone, median = float(np.median(idle)), float(np.median(beside))
                    limit = max(1 + 2 * max(idle), 30 * alone)  # the latter on a slow machine
                    print(f"alone {alone:.3f} s; beside {median:.3f} s, p99 {p99:.3f} s")
                    assert len(beside) >= 20, "the large requests take long enough"
                    if p99 < limit:
                        break
        finally:
            process.terminate()
    assert p99 < limit
