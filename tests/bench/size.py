"""`make bench-size`: what `rewardfleet size` predicts of services whose time is that of the cores.

The times are those that `/metrics` has of the same load, so that other work on the machine, which
comes and goes, affects both. Exits with 1 if a throughput is more than 20% off, or a 95th
percentile more than 30%. With as many callers as slots, slots are empty while callers prepare
their next request, on the same cores; the simulation knows nothing of that, so these lines are for
information. So are those of the tools service, of whose batches the simulation knows the time of
the scores, and not that of reading and writing JSON. Scores are not cached; the digests of the 38
clips are, after their first use.
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

from rewardfleet import RewardFleet, video_request
from rewardfleet.code import code_request
from rewardfleet.services import SERVICES
from rewardfleet.wire.tools import ToolsRequest
from rewardfleet_server.commands.size import Sizing, measured_times, read_durations

ROOT = Path(__file__).parent.parent.parent
CLIPS = sorted((ROOT / "tests" / "data" / "libero" / "videos").glob("libero_goal*.mp4"))
TASK = "put the bowl on the stove"
MEASURED = 60

#: Scores some items in one request.
Score = Callable[[RewardFleet, list[int]], Awaitable[Any]]


def main() -> int:
    with ExitStack() as stack:
        flags = ("--cache-mb", "0", "--workers", "1", "--cache", "")
        urls = [stack.enter_context(command_serving("code", *flags)) for _ in range(2)]
        ratios = asyncio.run(compare("code", urls, 1, score_programs, single_items(2)))
        ratios += asyncio.run(compare("code", urls[:1], 1, score_programs, batches(1, 8)))
    roots = ("--video-root", str(ROOT / "tests" / "data"))
    with command_serving("video", "--cache-mb", "0", "--max-in-flight", "2", *roots) as url:
        ratios += asyncio.run(compare("video", [url], 2, score_clips, single_items(2)))
        ratios += asyncio.run(compare("video", [url], 2, score_clips, batches(2, 8)))
    with command_serving("tools") as url:
        ratios += asyncio.run(compare("tools", [url], 1, score_answers, batches(1, 64)))
    return report(ratios)


def single_items(slots: int) -> list[tuple[Sizing, int]]:
    """Return loads of single items, and how many requests each has; the first is not judged."""
    callers = [(Sizing([], slots, callers=n * slots), 50 * n + 100) for n in (1, 4, 8)]
    return [*callers, (Sizing([], slots, rate=1, burst=20), 240)]


def batches(slots: int, items: int) -> list[tuple[Sizing, int]]:
    return [(Sizing([], slots, callers=n, batch=items), 15 * n) for n in (1, 3)]


async def score_programs(fleet: RewardFleet, numbers: list[int]) -> None:
    """Score programs that use a core for a known, varying time."""
    items = [
        code_request(
            f"for _ in range({1_000_000 * (1 + number % 5)}):\n    pass\nprint({number})",
            {"kind": "stdio", "cases": [{"stdin": "", "stdout": str(number)}]},
        )
        for number in numbers
    ]
    assert {each.score for each in await fleet.code.score_batch(items)} == {1}


async def score_clips(fleet: RewardFleet, numbers: list[int]) -> None:
    """Score real clips; with other frames each time, as equal items share a computation."""
    items = [
        video_request(TASK, str(CLIPS[number % len(CLIPS)]), nframes=8 + number // len(CLIPS) % 8)
        for number in numbers
    ]
    assert None not in [each.score for each in await fleet.video.score_batch(items)]


async def score_answers(fleet: RewardFleet, numbers: list[int]) -> None:
    items = [ToolsRequest.model_validate(SERVICES["tools"].item(number)[0]) for number in numbers]
    assert {each.score for each in await fleet.tools.score_batch(items)} == {4}


async def compare(
    service: str, urls: list[str], slots: int, score: Score, loads: list[tuple[Sizing, int]]
) -> list[Ratio]:
    """Return predictions next to measurements."""
    total = slots * len(urls)
    numbers = itertools.count()
    ratios = []
    async with RewardFleet(**{service: urls}) as fleet:
        full = Sizing([], slots, callers=total)
        await run(fleet, full, MEASURED, score, numbers)
        times = measured_times(await read_durations(urls[0]))
        capacity = full._replace(times=times).predict(len(urls)).items_per_s
        for load, count in loads:
            if load.rate is not None:
                load = load._replace(rate=0.6 * capacity)  # noqa: PLW2901 - now it is known
            before = await read_durations(urls[0])
            per_second, p95 = await run(fleet, load, count, score, numbers)
            after = await read_durations(urls[0])
            times = measured_times({each: after[each] - before[each] for each in before})
            found = load._replace(times=times).predict(len(urls))
            is_judged = load.callers != total and service != "tools"
            kind = f"{load.callers} callers" if load.callers else f"bursts of {load.burst}"
            kind += f", {load.batch} items" if load.batch > 1 else ""
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


async def run(
    fleet: RewardFleet, load: Sizing, count: int, score: Score, numbers: Iterator[int]
) -> tuple[float, float]:
    """Send requests; return items per second, and the 95th percentile of the time of a request."""
    seconds: list[float] = []

    async def one() -> None:
        started = time.monotonic()
        await score(fleet, list(itertools.islice(numbers, load.batch)))
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
            due = started + number * load.burst * load.batch / load.rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            tasks += [asyncio.create_task(one()) for _ in range(load.burst)]
        await asyncio.gather(*tasks)
    items = load.batch * len(seconds)
    return items / (time.monotonic() - started), float(np.quantile(seconds, 0.95))


if __name__ == "__main__":
    sys.exit(main())
