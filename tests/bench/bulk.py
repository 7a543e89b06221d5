"""`make bench-bulk`: `rewardfleet score` over a file, next to `score_batch` over rows in memory.

In turns, over the same answers with tool calls, with one tools service. The command is measured
from its start to its end, with the second in which its processes start. Exits with 1 if it has less
than 0.8 of the rate.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from harness import Ratio, Server, cpu_seconds, medians_in_turns, run, serving
from items import Row, rows

from rewardfleet import RewardFleet, tools_request

ROWS, ROUNDS = 100_000, 5


def bulk() -> Iterator[Ratio]:
    answers = rows(ROWS)
    with tempfile.TemporaryDirectory() as folder, serving("tools") as service:
        table = Path(folder) / "answers.jsonl"
        with table.open("w") as file:
            for text, truth in answers:
                print(json.dumps({"response": text, "ground_truth": truth}), file=file)

        def command() -> None:
            output = tempfile.mkdtemp(dir=folder)
            words = ["score", "tools", str(table), "--url", service.url, "-o", output]
            command = [sys.executable, "-m", "rewardfleet", *words]
            subprocess.run(command, check=True, stderr=subprocess.DEVNULL)

        ours, baseline = medians_in_turns(
            lambda: rate("command", service, command),
            lambda: rate("score_batch", service, lambda: asyncio.run(score(service.url, answers))),
            rounds=ROUNDS,
        )
    yield Ratio("rows per second of the command; score_batch", ours, baseline, ">= 0.8")


async def score(url: str, answers: list[Row]) -> None:
    async with RewardFleet(tools=url, timeout_s=3600) as fleet:
        requests = [tools_request(text, truth) for text, truth in answers]
        scores = await fleet.tools.score_batch(requests)
    assert all(each.score is not None for each in scores)


def rate(name: str, service: Server, work: Callable[[], object]) -> float:
    """Return the rows per second of a way to score them; print the CPU time of both sides."""

    def clocks() -> tuple[float, ...]:
        return time.perf_counter(), sum(os.times()[:4]), cpu_seconds(service.pid)

    started = clocks()
    work()
    spent = [(b - a) / ROWS * 1e6 for a, b in zip(started, clocks(), strict=True)]
    print(
        f"{name:12} {1e6 / spent[0]:6.0f}/s; us of a row: {spent[0]:.0f}, "
        f"CPU of the client {spent[1]:.0f}, of the service {spent[2]:.0f}",
        flush=True,
    )
    return 1e6 / spent[0]


if __name__ == "__main__":
    run({"bulk": bulk})
