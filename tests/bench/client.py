"""`make bench-client`: 16,000 concurrent calls over three replicas, of which one is killed.

One replica is killed when half of the calls have ended; another is so small that it keeps
answering 429. The client must return the right answer to each call. The same calls are made with
bare httpx for comparison. Loopback only, with a time limit; exits with 1 if a call of the client
fails or gets the answer of another call.
"""

import asyncio
import base64
import os
import signal
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import cv2
import httpx
import numpy as np
from harness import serving, spawned

from rewardfleet import RewardFleet
from rewardfleet_server.testing import FakeJudge
from rewardfleet_server.video.app import create_app
from rewardfleet_server.video.judges import Judgment
from rewardfleet_server.video.settings import VideoSettings

CALLS = 16_000
TIME_LIMIT_SECONDS = 120.0
#: `max_in_flight` and `max_queue_depth` of the small replica, and of the others.
SMALL = (4, 8)
LARGE = (64, 512)
#: Seconds that the judge of each replica takes.
JUDGE_SECONDS = 0.005


@dataclass
class Outcome:
    """The results of one client.

    Attributes:
        seconds: Seconds for all calls.
        correct: How many calls got their own answer.
        swapped: How many calls got the answer of another call.
        times: Seconds of each answered call.
        failures: How often each error was raised.
        memory_mib: Peak memory in MiB, and `before_mib` before the calls.
    """

    seconds: float = 0.0
    correct: int = 0
    swapped: int = 0
    times: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    memory_mib: float = 0.0
    before_mib: float = 0.0

    @property
    def ended(self) -> int:
        """How many calls have ended."""
        return self.correct + self.swapped + self.failures.total()


Score = Callable[[int], Awaitable[float]]
Client = Callable[[list[str], int, Outcome], Awaitable[None]]


def main() -> int:
    """Run the clients one after another and print a table; return 1 if the client failed a call."""
    outcomes = {
        "rewardfleet": _measure(_rewardfleet),
        "rewardfleet, coalescing (5 ms)": _measure(_rewardfleet_coalescing),
        "bare httpx.AsyncClient": _measure(_bare_httpx),
    }
    print(f"\n{CALLS} concurrent calls, 3 replicas, one killed half-way, one answering 429")
    print(
        f"{'client':32} {'right':>6} {'wrong':>6} {'failed':>6} {'open':>6} "
        f"{'p50 s':>7} {'p99 s':>7} {'total s':>8} {'peak MiB':>9} {'before':>7}"
    )
    for name, outcome in outcomes.items():
        _print(name, outcome)
    ours = [outcome for name, outcome in outcomes.items() if name.startswith("rewardfleet")]
    return 0 if all(outcome.correct == CALLS for outcome in ours) else 1


def _print(name: str, outcome: Outcome) -> None:
    p50 = p99 = float("nan")
    if len(outcome.times) > 1:
        percentiles = statistics.quantiles(outcome.times, n=100)
        p50, p99 = percentiles[49], percentiles[98]
    print(
        f"{name:32} {outcome.correct:>6} {outcome.swapped:>6} {outcome.failures.total():>6} "
        f"{CALLS - outcome.ended:>6} {p50:>7.1f} {p99:>7.1f} {outcome.seconds:>8.1f} "
        f"{outcome.memory_mib:>9.0f} {outcome.before_mib:>7.0f}"
    )
    for failure, count in outcome.failures.most_common(5):
        print(f"    {count} x {failure}")


def _measure(client: Client) -> Outcome:
    """Run a client in a new process, against three new replicas."""
    with ExitStack() as stack:
        replicas = [stack.enter_context(_replica(*limits)) for limits in (LARGE, LARGE, SMALL)]
        urls = [f"http://127.0.0.1:{port}" for port, _ in replicas]
        _, victim = replicas[0]
        pipe, _ = stack.enter_context(spawned(_run_client, client, urls, victim))
        assert pipe.poll(TIME_LIMIT_SECONDS + 60), "the client exceeded its time limit"
        outcome: Outcome = pipe.recv()
    return outcome


# The replicas


class NumberJudge(FakeJudge):
    """Scores each task with the number at its end, as a fraction of all calls."""

    async def judge(self, task_text, clip, backend_kwargs):
        await super().judge(task_text, clip, backend_kwargs)
        return Judgment(int(task_text.split()[-1]) / CALLS, task_text)


def _replica(max_in_flight: int, max_queue_depth: int) -> AbstractContextManager[tuple[int, int]]:
    settings = VideoSettings(
        port=0, max_in_flight=max_in_flight, max_queue_depth=max_queue_depth, log_level="error"
    )
    judge = NumberJudge(wait_s=JUDGE_SECONDS, deterministic=False)
    return serving(create_app, settings, {"fake": judge})


# The clients


def _image() -> bytes:
    encoded, content = cv2.imencode(".jpg", np.full((24, 32, 3), 100, np.uint8))
    assert encoded
    return content.tobytes()


def _run_client(pipe: Pipe, client: Client, urls: list[str], victim: int) -> None:
    outcome = Outcome(before_mib=_peak_mib())
    started = time.perf_counter()
    # In a thread that is abandoned at the time limit: bare httpx takes minutes to cancel its calls.
    thread = threading.Thread(
        target=lambda: asyncio.run(client(urls, victim, outcome)), daemon=True
    )
    thread.start()
    thread.join(TIME_LIMIT_SECONDS)
    seconds = time.perf_counter() - started
    times, failures = list(outcome.times), Counter(dict(outcome.failures))
    pipe.send(
        replace(outcome, times=times, failures=failures, seconds=seconds, memory_mib=_peak_mib())
    )


def _peak_mib() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


async def _rewardfleet(urls: list[str], victim: int, outcome: Outcome, **options: float) -> None:
    images = [_image()]
    async with RewardFleet(
        video=urls, timeout_s=TIME_LIMIT_SECONDS, binary_reward=False, **options
    ) as fleet:
        await _run_all(lambda number: fleet.video.reward(f"task {number}", images), victim, outcome)


async def _rewardfleet_coalescing(urls: list[str], victim: int, outcome: Outcome) -> None:
    await _rewardfleet(urls, victim, outcome, coalesce_s=0.005)


async def _bare_httpx(urls: list[str], victim: int, outcome: Outcome) -> None:
    image = base64.b64encode(_image()).decode()

    async with httpx.AsyncClient(timeout=TIME_LIMIT_SECONDS, trust_env=False) as http:

        async def score(number: int) -> float:
            request = {"task_text": f"task {number}", "frames_base64": [image]}
            answer = await http.post(urls[number % len(urls)] + "/score", json=request)
            answer.raise_for_status()
            return float(answer.json()["score"])

        await _run_all(score, victim, outcome)


async def _run_all(score: Score, victim: int, outcome: Outcome) -> None:
    """Make all calls concurrently; kill the victim when half of them have ended."""
    started = time.perf_counter()

    async def call(number: int) -> None:
        try:
            answer = await score(number)
        except Exception as error:  # noqa: BLE001 - counted, not hidden
            reason = f"HTTP {error.response.status_code}" if hasattr(error, "response") else ""
            outcome.failures[f"{type(error).__name__} {reason}".strip()] += 1
        else:
            outcome.times.append(time.perf_counter() - started)
            if round(answer * CALLS) == number:
                outcome.correct += 1
            else:
                outcome.swapped += 1
        if outcome.ended == CALLS // 2:
            os.kill(victim, signal.SIGKILL)

    await asyncio.gather(*(call(number) for number in range(CALLS)))


if __name__ == "__main__":
    sys.exit(main())
