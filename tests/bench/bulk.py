"""`make bench-bulk`: `rewardfleet score` over a file, next to `score_batch` over rows in memory.

In turns, over the same answers with tool calls, with one tools service. The command is measured
from its start to its end, with the second in which its processes start. Exits with 1 if it has less
than 0.9 of the rate.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import Ratio, cpu_seconds, medians_in_turns, report, serving
from tools import Row, rows

from rewardfleet import RewardFleet, tools_request
from rewardfleet_server.tools.app import create_app
from rewardfleet_server.tools.settings import ToolsSettings

ROWS, ROUNDS = 100_000, 5


def main() -> int:
    answers = rows(ROWS)
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(create_app, ToolsSettings(port=0)) as (port, pid),
    ):
        table = Path(folder) / "answers.jsonl"
        with table.open("w") as file:
            for text, truth in answers:
                print(json.dumps({"response": text, "ground_truth": truth}), file=file)
        url, used = f"http://127.0.0.1:{port}", Used(pid)

        def command() -> float:
            output = Path(tempfile.mkdtemp(dir=folder))
            arguments = ["tools", str(table), "--url", url, "-o", str(output)]
            with used.by("command"):
                subprocess.run(
                    [sys.executable, "-m", "rewardfleet", "score", *arguments],
                    check=True,
                    stderr=subprocess.DEVNULL,
                )
            return used.rate

        def batch() -> float:
            with used.by("score_batch"):
                asyncio.run(score(url, answers))
            return used.rate

        ours, baseline = medians_in_turns(command, batch, rounds=ROUNDS)
    return report([Ratio("rows per second of the command; score_batch", ours, baseline, ">= 0.9")])


async def score(url: str, answers: list[Row]) -> None:
    async with RewardFleet(tools=url, timeout_s=3600) as fleet:
        requests = [tools_request(text, truth) for text, truth in answers]
        scores = await fleet.tools.score_batch(requests)
    assert all(each.score is not None for each in scores)


class Used:
    """Prints what the rows of a way to score them take: time, and CPU time of both sides."""

    def __init__(self, service_pid: int) -> None:
        self._service_pid = service_pid
        self.rate = 0.0

    def by(self, name: str) -> "Used":
        self._name = name
        return self

    def __enter__(self) -> None:
        self._started = time.perf_counter(), *self._cpu()

    def __exit__(self, *_: object) -> None:
        now = time.perf_counter(), *self._cpu()
        taken = [
            (each - start) / ROWS * 1e6 for start, each in zip(self._started, now, strict=True)
        ]
        self.rate = 1e6 / taken[0]
        print(
            f"{self._name:12} {self.rate:6.0f}/s; us of a row: {taken[0]:.0f}, "
            f"CPU of the client {taken[1]:.0f}, of the service {taken[2]:.0f}",
            flush=True,
        )

    def _cpu(self) -> tuple[float, float]:
        return sum(os.times()[:4]), cpu_seconds(self._service_pid)


if __name__ == "__main__":
    sys.exit(main())
