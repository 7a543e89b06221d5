"""`make bench-size`: what `rewardfleet size` predicts of services whose time is that of the cores.

The times are those that `/metrics` has of the same load, so that other work on the machine, which
comes and goes, affects both. Exits with 1 if a throughput is more than 20 % off, or a 95th
percentile more than 30 %. With as many callers as slots, slots are empty while callers prepare
their next item, on the same cores; the simulation knows nothing of that, so these lines are for
information.
"""

import asyncio
import itertools
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from harness import Ratio, command_serving, report

from rewardfleet import RewardFleet
from rewardfleet_server.commands.sizing import (
    Histogram,
    Load,
    ServiceTimes,
    Sizing,
    measured_times,
    read_metrics,
)

ROOT = Path(__file__).parent.parent.parent
CLIPS = sorted((ROOT / "tests" / "data" / "libero" / "videos").glob("*.mp4"))
TASK = "put the bowl on the stove"
MEASURED = 60

Score = Callable[[RewardFleet, int], Awaitable[Any]]


def main() -> int:
    with ExitStack() as stack:
        flags = ("--cache-mb", "0", "--workers", "1", "--cache", "")
        urls = [stack.enter_context(command_serving("code", *flags)) for _ in range(2)]
        ratios = asyncio.run(compare("code", urls, 1, score_program))
    roots = ("--video-root", str(ROOT / "tests" / "data"))
    with command_serving("video", "--cache-mb", "0", "--max-in-flight", "2", *roots) as url:
        ratios += asyncio.run(compare("video", [url], 2, score_clip))
    return report(ratios)


async def score_program(fleet: RewardFleet, number: int) -> None:
    """Score a program that uses a core for a known, varying time."""
    rounds = 1_000_000 * (1 + number % 5)
    program = f"for _ in range({rounds}):\n    pass\nprint({number})"
    tests = {"kind": "stdio", "cases": [{"stdin": "", "stdout": str(number)}]}
    assert (await fleet.code.score(program, tests)).score == 1


async def score_clip(fleet: RewardFleet, number: int) -> None:
    """Score a real clip; with other frames each time, as equal items share a computation."""
    frames = 8 + number // len(CLIPS) % 8
    score = await fleet.video.score(TASK, str(CLIPS[number % len(CLIPS)]), nframes=frames)
    assert score.score is not None


async def compare(service: str, urls: list[str], slots: int, score: Score) -> list[Ratio]:
    """Return predictions next to measurements."""
    total = slots * len(urls)
    numbers = itertools.count()
    full = Load(callers=total)
    ratios = []
    async with RewardFleet(**{service: urls}) as fleet:
        await run(fleet, full, MEASURED, score, numbers)
        times = await asyncio.to_thread(measured_times, urls[0])
        rate = 0.6 * Sizing(times, full, slots, 1e6).predict(len(urls)).items_per_s
        for load, count in (
            (Load(callers=total), 200),
            (Load(callers=4 * total), 300),
            (Load(callers=8 * total), 400),
            (Load(rate=rate, burst=20), 240),
        ):
            before = await asyncio.to_thread(read_metrics, urls[0])
            per_second, p95 = await run(fleet, load, count, score, numbers)
            after = await asyncio.to_thread(read_metrics, urls[0])
            times = ServiceTimes("this load", *map(without, after, before))
            found = Sizing(times, load, slots, 1e6).predict(len(urls))
            is_judged = load.callers != total
            kind = f"{load.callers} callers" if load.callers else f"bursts of {load.burst}"
            ratios += [
                Ratio(
                    f"{service}, {kind}: items/s, predicted; measured",
                    found.items_per_s,
                    per_second,
                    "0.8 to 1.2" if is_judged else "",
                ),
                Ratio(
                    f"{service}, {kind}: p95 in ms, predicted; measured",
                    found.p95_s * 1000,
                    p95 * 1000,
                    "0.7 to 1.3" if is_judged else "",
                ),
            ]
    return ratios


def without(all_: Histogram, other: Histogram) -> Histogram:
    """Return the durations that are not in the other histogram."""
    counts = tuple(a - b for a, b in zip(all_.counts, other.counts, strict=True))
    return Histogram(all_.bounds, counts, all_.total_s - other.total_s)


async def run(
    fleet: RewardFleet, load: Load, count: int, score: Score, numbers: Iterator[int]
) -> tuple[float, float]:
    """Send a load; return items per second, and the 95th percentile of the time of an item."""
    seconds: list[float] = []

    async def one() -> None:
        started = time.monotonic()
        await score(fleet, next(numbers))
        seconds.append(time.monotonic() - started)

    async def caller(items: int) -> None:
        for _ in range(items):
            await one()

    started = time.monotonic()
    if load.callers is not None:
        await asyncio.gather(*(caller(count // load.callers) for _ in range(load.callers)))
    else:
        assert load.rate is not None
        tasks = []
        for number in range(count // load.burst):
            due = started + number * load.burst / load.rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            tasks += [asyncio.create_task(one()) for _ in range(load.burst)]
        await asyncio.gather(*tasks)
    return len(seconds) / (time.monotonic() - started), float(np.quantile(seconds, 0.95))


if __name__ == "__main__":
    sys.exit(main())
