"""`make bench-tools`: the speed of the tools service, as ratios measured in one run.

`make bench-tools TOOLRL=rlla.py` also measures the published function of ToolRL, from a copy of its
file. Loopback only, with fixed counts. Exits with 1 if a ratio misses its limit.
"""

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
from functools import partial
from pathlib import Path

from harness import Ratio, cpu_seconds, medians_in_turns, post, report, seconds_of, send, serving

from rewardfleet.tool_use import score_answer
from rewardfleet.tool_use.answer import parse_ground_truth
from rewardfleet.wire.tools import ToolsOptions
from rewardfleet_server.system.threads import usable_cores
from rewardfleet_server.tools.app import create_app
from rewardfleet_server.tools.settings import ToolsSettings

BATCH, BATCHES, ROUNDS = 256, 40, 9
GROUP = 8

Row = tuple[str, str]


def main() -> int:
    return report([http(), large_answers()])


def rows(count: int, group_size: int = GROUP) -> list[Row]:
    """Return answers of 1 kB in groups: correct ones, wrong values, extra calls, fewer calls.

    A group has one ground truth, which is parsed once.
    """
    rng = random.Random(0)
    found = []
    for number in range(count):
        group = number // group_size
        calls = [
            {"name": "get_weather", "parameters": {"city": f"city {group}", "days": group % 9}},
            {"name": "convert", "parameters": {"value": group, "from": "C", "to": "F"}},
        ]
        truth = tool_answer(calls, "I need the weather.")
        kind = number % 4
        if kind == 1:
            calls[0]["parameters"]["days"] = str(rng.randrange(99))  # type: ignore[index] # a dict
        elif kind == 2:
            calls.append({"name": "search_web", "parameters": {"query": f"q{number}"}})
        elif kind == 3:
            calls = calls[:1]
        think = " ".join(f"word{rng.randrange(1000)}" for _ in range(200))
        text = tool_answer(calls, think)
        found.append((text[: len("<think>")] + text[len("<think>") + len(text) - 1024 :], truth))
    return found


def tool_answer(calls: list[dict[str, object]], think: str) -> str:
    lines = "\n".join(map(json.dumps, calls))
    return f"<think>{think}</think>\n<tool_call>\n{lines}\n</tool_call>"


def http() -> Ratio:
    """Compare the service's CPU per answer with that of the pure function."""
    items = rows(BATCH * BATCHES)
    requests = [
        batch_request(items[first : first + BATCH]) for first in range(0, len(items), BATCH)
    ]
    print(f"answers of {statistics.mean(len(text) for text, _ in items):.0f} bytes", end="; ")
    print(f"{usable_cores()} cores")
    options = ToolsOptions()
    with serving(create_app, ToolsSettings(port=0)) as (port, pid):
        score_over_http(port, requests[:5])
        served, pure = medians_in_turns(
            lambda: seconds_of(
                lambda: score_over_http(port, requests), clock=partial(cpu_seconds, pid)
            ),
            lambda: seconds_of(lambda: score_all(items, options), clock=time.process_time),
            rounds=ROUNDS,
        )
    toolrl = ToolsOptions(variant="toolrl")
    unshared = rows(len(items), group_size=1)  # the published function parses each ground truth
    ours = microseconds(lambda: score_all(unshared, toolrl), len(unshared))
    print(f"variant toolrl, each answer with its own ground truth: {ours:.1f} us pure")
    if len(sys.argv) > 1:
        compare_published(Path(sys.argv[1]), unshared)
    served_us, pure_us = (seconds / len(items) * 1e6 for seconds in (served, pure))
    return Ratio(
        "CPU us per answer over HTTP, 8 share a ground truth; the function",
        served_us,
        pure_us,
        "<= 2",
    )


def batch_request(batch: list[Row]) -> bytes:
    items = [{"response": text, "ground_truth": truth} for text, truth in batch]
    return post("/score/batch", json.dumps({"items": items}).encode())


def score_over_http(port: int, requests: list[bytes]) -> None:
    answers, _ = send(port, requests)
    for answer in answers:
        assert answer.body.count(b'"status":"ok"') == BATCH, answer.body[:1000]


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
    return seconds_of(work, clock=time.process_time) / count * 1e6


def large_answers() -> Ratio:
    """Measure that the time is linear in the answer, for a ground truth of 64 calls."""
    truth = tool_answer([call(number) for number in range(64)], "x")
    options = ToolsOptions()
    score_answer(tool_answer([call(0)] * 64, "x"), truth, options)  # imports what matches calls
    times = {}
    for count in (2_500, 5_000, 10_000):
        text = tool_answer([call(number) for number in range(count)], "x")
        work = partial(score_answer, text, truth, options)
        times[count] = seconds_of(work, clock=time.process_time) * 1000
        print(f"{count} calls ({len(text) / 1e6:.2f} MB): {times[count]:.0f} ms")
    return Ratio("CPU ms of 10,000 calls; of 2,500", times[10_000], times[2_500], "<= 6")


def call(number: int) -> dict[str, object]:
    return {"name": "search", "parameters": {"query": f"question {number}", "limit": number % 7}}


if __name__ == "__main__":
    sys.exit(main())
