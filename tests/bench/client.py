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
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import NamedTuple

import cv2
import httpx
import numpy as np
from harness import Ratio, run, serving, spawned

from rewardfleet import RewardFleet
from rewardfleet_server.testing import FakeJudge
from rewardfleet_server.video.judges import Judgment

CALLS = 16_000
TIME_LIMIT_SECONDS = 120.0
#: The limits of the replica that is killed, of another one, and of the small one.
REPLICAS = [{"max_in_flight": m, "max_queue_depth": q} for m, q in ((64, 512), (64, 512), (4, 8))]
#: Seconds that the judge of each replica takes.
JUDGE_SECONDS = 0.005
TITLES = ("right", "wrong", "failed", "open", "p50 s", "p99 s", "total s", "peak MiB", "before")

Score = Callable[[int], Awaitable[float]]


class NumberJudge(FakeJudge):
    """Scores each task with the number at its end, as a fraction of all calls."""

    async def judge(self, task_text, clip, backend_kwargs):
        await super().judge(task_text, clip, backend_kwargs)
        return Judgment(int(task_text.split()[-1]) / CALLS, task_text)


class Calls:
    """The calls of one client, and what became of them.

    Args:
        victim: The process that is killed when half of the calls have ended.
    """

    def __init__(self, victim: int) -> None:
        self._victim = victim
        self._started = time.perf_counter()
        self._before_mib = _peak_mib()
        #: How many calls got their own answer, and the answer of another call.
        self.right = self.wrong = 0
        self.failures: Counter[str] = Counter()
        self.seconds: list[float] = []  #: of each answered call

    @property
    def ended(self) -> int:
        return self.right + self.wrong + self.failures.total()

    async def make(self, score: Score) -> None:
        await asyncio.gather(*(self._call(score, number) for number in range(CALLS)))

    async def _call(self, score: Score, number: int) -> None:
        try:
            is_right = round(await score(number) * CALLS) == number
        except Exception as error:  # noqa: BLE001 - counted, not hidden
            reason = f"HTTP {error.response.status_code}" if hasattr(error, "response") else ""
            self.failures[f"{type(error).__name__} {reason}".strip()] += 1
        else:
            self.seconds.append(time.perf_counter() - self._started)
            self.right += is_right
            self.wrong += not is_right
        if self.ended == CALLS // 2:
            os.kill(self._victim, signal.SIGKILL)

    def figures(self) -> list[float]:
        """Return what `TITLES` names, as far as the calls have got."""
        seconds = [*self.seconds]
        at = statistics.quantiles(seconds, n=100) if len(seconds) > 1 else [float("nan")] * 99
        failed, total = self.failures.total(), time.perf_counter() - self._started
        counts = [self.right, self.wrong, failed, CALLS - self.ended]
        return [*counts, at[49], at[98], total, _peak_mib(), self._before_mib]


def _peak_mib() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


class Outcome(NamedTuple):
    """The figures of a client, and how often each error was raised."""

    figures: list[float]
    failures: Counter[str]


Client = Callable[[list[str], Calls], Awaitable[None]]


def compared() -> Iterator[Ratio]:
    """Run the clients one after another, and print a table."""
    outcomes = {name: _measure(client) for name, client in CLIENTS.items()}
    print(f"\n{CALLS} concurrent calls, 3 replicas, one killed half-way, one answering 429")
    print(f"{'client':32}", *(f"{title:>8}" for title in TITLES))
    for name, (figures, failures) in outcomes.items():
        print(f"{name:32}", *(f"{each:8.1f}" for each in figures))
        for failure, count in failures.most_common(5):
            print(f"    {count} x {failure}")
    for name, (figures, _) in outcomes.items():
        if name.startswith("rewardfleet"):
            yield Ratio(f"right answers of {name}; calls", figures[0], CALLS, ">= 1")


def _measure(client: Client) -> Outcome:
    """Run a client in a new process, against three new replicas."""
    judge = NumberJudge(wait_s=JUDGE_SECONDS, deterministic=False)
    with ExitStack() as stack:
        replicas = [
            stack.enter_context(serving("video", judge, log_level="error", **limits))
            for limits in REPLICAS
        ]
        urls = [each.url for each in replicas]
        pipe, _ = stack.enter_context(spawned(_run_client, client, urls, replicas[0].pid))
        assert pipe.poll(TIME_LIMIT_SECONDS + 60), "the client exceeded its time limit"
        return pipe.recv()


def _run_client(pipe: Pipe, client: Client, urls: list[str], victim: int) -> None:
    calls = Calls(victim)
    # In a thread that is abandoned at the time limit: bare httpx takes minutes to cancel its calls.
    thread = threading.Thread(target=lambda: asyncio.run(client(urls, calls)), daemon=True)
    thread.start()
    thread.join(TIME_LIMIT_SECONDS)
    pipe.send(Outcome(calls.figures(), Counter(dict(calls.failures))))


def _image() -> bytes:
    return cv2.imencode(".jpg", np.full((24, 32, 3), 100, np.uint8))[1].tobytes()


async def _rewardfleet(urls: list[str], calls: Calls, **options: float) -> None:
    images = [_image()]
    async with RewardFleet(
        video=urls, timeout_s=TIME_LIMIT_SECONDS, binary_reward=False, **options
    ) as fleet:
        await calls.make(lambda number: fleet.video.reward(f"task {number}", images))


async def _bare_httpx(urls: list[str], calls: Calls) -> None:
    image = base64.b64encode(_image()).decode()
    async with httpx.AsyncClient(timeout=TIME_LIMIT_SECONDS, trust_env=False) as http:

        async def score(number: int) -> float:
            request = {"task_text": f"task {number}", "frames_base64": [image]}
            answer = await http.post(urls[number % len(urls)] + "/score", json=request)
            answer.raise_for_status()
            return float(answer.json()["score"])

        await calls.make(score)


CLIENTS: dict[str, Client] = {
    "rewardfleet": _rewardfleet,
    "rewardfleet, coalescing (5 ms)": partial(_rewardfleet, coalesce_s=0.005),
    "bare httpx.AsyncClient": _bare_httpx,
}


if __name__ == "__main__":
    run({"client": compared})
