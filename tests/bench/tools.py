"""`make bench-tools`: the speed of the tools service, as ratios measured in one run.

`make bench-tools TOOLRL=rlla.py` also measures the published function of ToolRL, from a copy of its
file. Loopback only, with fixed counts. Exits with 1 if a ratio misses its limit.
"""

import asyncio
import contextlib
import importlib.util
import io
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rewardfleet.tool_use import score_answer
from rewardfleet.tool_use.answer import parse_ground_truth
from rewardfleet.wire.tools import ToolsOptions

sys.path.insert(0, str(Path(__file__).parent))
from load import Connection, in_process, post, run_tools

BATCH, BATCHES, ROUNDS = 256, 40, 9
GROUP = 8
_TICKS = os.sysconf("SC_CLK_TCK")

Row = tuple[str, str]


def main() -> int:
    met = [http(), large_answers()]
    return 0 if all(met) else 1


def rows(count: int) -> list[Row]:
    """Return answers of 1 kB in groups of 8: correct ones, wrong values, extra calls, no calls."""
    rng = random.Random(0)
    found = []
    for number in range(count):
        group = number // GROUP
        calls = [
            {"name": "get_weather", "parameters": {"city": f"city {group}", "days": group % 9}},
            {"name": "convert", "parameters": {"value": group, "from": "C", "to": "F"}},
        ]
        truth = answer(calls, "I need the weather.")
        kind = number % 4
        if kind == 1:
            calls[0]["parameters"]["days"] = str(rng.randrange(99))  # type: ignore[index] # a dict
        elif kind == 2:
            calls.append({"name": "search_web", "parameters": {"query": f"q{number}"}})
        elif kind == 3:
            calls = calls[:1]
        think = " ".join(f"word{rng.randrange(1000)}" for _ in range(200))
        text = answer(calls, think)
        found.append((text[: len("<think>")] + text[len("<think>") + len(text) - 1024 :], truth))
    return found


def answer(calls: list[dict[str, object]], think: str) -> str:
    lines = "\n".join(map(json.dumps, calls))
    return f"<think>{think}</think>\n<tool_call>\n{lines}\n</tool_call>"


def http() -> bool:
    """Compare the service's CPU per answer with that of the pure function."""
    items = rows(BATCH * BATCHES)
    batches = [items[first : first + BATCH] for first in range(0, len(items), BATCH)]
    requests = [
        post(
            "/score/batch",
            json.dumps(
                {"items": [{"response": text, "ground_truth": truth} for text, truth in batch]}
            ).encode(),
        )
        for batch in batches
    ]
    print(f"answers of {statistics.mean(len(text) for text, _ in items):.0f} bytes", end="; ")
    print(f"{os.cpu_count()} cores")
    options = ToolsOptions()
    served, pure = [], []
    with in_process(run_tools) as (port, pid):
        asyncio.run(send(port, requests[:5]))
        for _ in range(ROUNDS):  # in turns, so that other load on the machine affects both
            before = cpu_seconds(pid)
            asyncio.run(send(port, requests))
            served.append((cpu_seconds(pid) - before) / len(items) * 1e6)
            pure.append(microseconds(lambda: score_all(items, options), len(items)))
    ratio = statistics.median(a / b for a, b in zip(served, pure, strict=True))
    figures = f"{statistics.median(served):.1f} us over HTTP, {statistics.median(pure):.1f} us pure"
    print(f"CPU per answer: {figures}, ratio {ratio:.2f} (<= 2) {'' if ratio <= 2 else 'MISSED'}")
    toolrl = ToolsOptions(variant="toolrl")
    ours = microseconds(lambda: score_all(items, toolrl), len(items))
    print(f"variant toolrl: {ours:.1f} us pure")
    if len(sys.argv) > 1:
        compare_published(Path(sys.argv[1]), items)
    return ratio <= 2


def score_all(items: list[Row], options: ToolsOptions) -> None:
    parse_ground_truth.cache_clear()
    for text, truth in items:
        score_answer(text, truth, options)


def compare_published(path: Path, items: list[Row]) -> None:
    """Measure the published function, without the time that printing takes on a terminal."""
    os.environ["EXPERIMENT_NAME"] = "qwen"
    spec = importlib.util.spec_from_file_location("rlla", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    options = ToolsOptions(variant="toolrl")
    with contextlib.redirect_stdout(io.StringIO()):
        published = microseconds(
            lambda: [module.compute_score(text, truth) for text, truth in items], len(items)
        )
        differing = sum(
            abs(module.compute_score(text, truth)[0] - score_answer(text, truth, options).task)
            > 1e-9
            for text, truth in items
        )
    print(f"published function: {published:.1f} us; answers with another reward: {differing}")


def microseconds(work: Callable[[], object], count: int) -> float:
    """Return the CPU time of one of `count` answers."""
    before = time.process_time()
    work()
    return (time.process_time() - before) / count * 1e6


def large_answers() -> bool:
    """Measure that the time is linear in the answer, for a ground truth of 64 calls."""
    truth = answer([call(number) for number in range(64)], "x")
    options = ToolsOptions()
    score_answer(answer([call(0)] * 64, "x"), truth, options)  # imports what matches calls
    times = {}
    for count in (2_500, 5_000, 10_000):
        text = answer([call(number) for number in range(count)], "x")
        times[count] = microseconds(lambda text=text: score_answer(text, truth, options), 1)  # type: ignore[misc] # a default
        print(f"{count} calls ({len(text) / 1e6:.2f} MB): {times[count] / 1000:.0f} ms")
    ratio = times[10_000] / times[2_500]
    print(f"4 times the calls take {ratio:.1f} times as long (<= 6)")
    return ratio <= 6


def call(number: int) -> dict[str, object]:
    return {"name": "search", "parameters": {"query": f"question {number}", "limit": number % 7}}


async def send(port: int, requests: list[bytes]) -> None:
    connection = await Connection.open(port)
    for request in requests:
        status, body, _ = await connection.request(request)
        assert status == 200, body
        assert body.count(b'"status":"ok"') == BATCH, body[:1000]
    connection.close()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / _TICKS


if __name__ == "__main__":
    sys.exit(main())
