"""`make bench-tools`: the speed of the tools service, as ratios measured in one run.

`make bench-tools TOOLRL=rlla.py` also measures the published function of ToolRL, from a copy of its
file. Loopback only, with fixed counts. Exits with 1 if a ratio misses its limit.
"""

import contextlib
import importlib.util
import io
import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

from harness import Ratio, medians_in_turns, post, run, seconds_of, send, serving
from items import Item, Row, rows, tool_answer

from rewardfleet.tool_use import score_answer
from rewardfleet.tool_use.answer import parse_ground_truth
from rewardfleet.wire.tools import ToolsOptions
from rewardfleet_server.system.threads import usable_cores

BATCH, BATCHES, ROUNDS = 256, 40, 9


def http() -> Iterator[Ratio]:
    """Compare the service's CPU per answer with that of the pure function."""
    items = rows(BATCH * BATCHES)
    batches = [items[first : first + BATCH] for first in range(0, len(items), BATCH)]
    requests = [
        post("/score/batch", {"items": [{"response": a, "ground_truth": t} for a, t in batch]})
        for batch in batches
    ]
    size = statistics.mean(len(text) for text, _ in items)
    print(f"answers of {size:.0f} bytes; {usable_cores()} cores")

    def score(requests: list[bytes]) -> None:
        for answer in send(service.port, requests)[0]:
            assert answer.body.count(b'"status":"ok"') == BATCH, answer.body[:1000]

    with serving("tools") as service:
        score(requests[:5])
        served, pure = medians_in_turns(
            lambda: service.cpu_of(lambda: score(requests)) / len(items) * 1e6,
            lambda: pure_us(items, ToolsOptions()),
            rounds=ROUNDS,
        )
    yield Ratio(
        "CPU us per answer over HTTP, 8 share a ground truth; the function", served, pure, "<= 2"
    )


def pure_us(items: list[Row], options: ToolsOptions) -> float:
    def score_all() -> None:
        parse_ground_truth.cache_clear()
        for text, truth in items:
            score_answer(text, truth, options)

    return microseconds(score_all, len(items))


def microseconds(work: Callable[[], object], count: int) -> float:
    return seconds_of(work, clock=time.process_time) / count * 1e6


def toolrl() -> list[Ratio]:
    """Print the CPU time of the variant, and of the published function that make was given."""
    items = rows(BATCH * BATCHES, group_size=1)  # that function parses each ground truth
    options = ToolsOptions(variant="toolrl")
    ours = pure_us(items, options)
    print(f"variant toolrl, each answer with its own ground truth: {ours:.1f} us pure")
    if path := os.environ.get("TOOLRL"):
        os.environ["EXPERIMENT_NAME"] = "qwen"
        spec = importlib.util.spec_from_file_location("rlla", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        with contextlib.redirect_stdout(io.StringIO()):  # not the time that a terminal takes
            published = microseconds(
                lambda: [module.compute_score(text, truth) for text, truth in items], len(items)
            )
            differing = sum(
                abs(module.compute_score(text, truth)[0] - score_answer(text, truth, options).task)
                > 1e-9
                for text, truth in items
            )
        print(f"published function: {published:.1f} us; answers with another reward: {differing}")
    return []


def large_answers() -> Iterator[Ratio]:
    """Measure that the time is linear in the answer, for a ground truth of 64 calls."""
    truth = tool_answer("x", *map(call, range(64)))
    options = ToolsOptions()
    score_answer(tool_answer("x", *[call(0)] * 64), truth, options)  # imports what matches calls
    times = {}
    for count in (2_500, 5_000, 10_000):
        text = tool_answer("x", *map(call, range(count)))
        work = partial(score_answer, text, truth, options)
        times[count] = seconds_of(work, clock=time.process_time) * 1000
        print(f"{count} calls ({len(text) / 1e6:.2f} MB): {times[count]:.0f} ms")
    yield Ratio("CPU ms of 10,000 calls; of 2,500", times[10_000], times[2_500], "<= 6")


def call(number: int) -> Item:
    return {"name": "search", "parameters": {"query": f"question {number}", "limit": number % 7}}


if __name__ == "__main__":
    run({"http": http, "toolrl": toolrl, "large answers": large_answers})
