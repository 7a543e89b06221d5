"""`make bench-score-log`: what `--score-log` adds to the CPU time and the latency of scores.

Of items that are computed, pairs of a service with a log and one without are measured in turns,
over loopback. Of items that take microseconds, which such pairs cannot resolve on a busy machine,
the CPU time of the log itself is measured: that of the request's thread and of the log's. Exits
with 1 if a median misses its limit.
"""

import base64
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from harness import Ratio, Server, cpu_seconds, post, run, send, serving
from items import CLIP, TASK, TESTS, frames, numbers, raw_frames, submission

from rewardfleet.episodes import score_episodes
from rewardfleet.score_log import ScoreLog
from rewardfleet.wire.code import CodeRequest, CodeScore, Outcome, Verdict
from rewardfleet.wire.score import Timing
from rewardfleet.wire.tools import ToolsRequest
from rewardfleet.wire.video import VideoRequest, VideoScore
from rewardfleet_server.episode.decode import decode_batch, logged_items
from rewardfleet_server.episode.encode import encode_batch
from rewardfleet_server.observe.score_log import ServiceLog
from rewardfleet_server.observe.telemetry import RequestContext
from rewardfleet_server.settings import ServerSettings

PAIRS = 9
#: Microseconds that an item may take which takes microseconds to score.
FAST_US = 30.0
#: Items of a round: all of them fit into the queue of the log.
FAST_ITEMS = 16_000

# Items that are computed


class Cost(NamedTuple):
    cpu_us: float
    p99_ms: float


def computed(
    name: str, service: str, count: int, next_item: Callable[[], Callable[[], Any]]
) -> Iterator[Ratio]:
    """Compare a service with a log and one without, in turns.

    Args:
        name: Of the items.
        service: What scores them.
        count: Items of a round.
        next_item: Prepares, and returns what returns another item each time.
    """
    item = next_item()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        settings = {"cache": "", "cache_mb": 0}
        servers = [
            stack.enter_context(serving(service, **settings, **log))
            for log in ({}, {"score_log": Path(folder) / "log"})
        ]

        def measure(server: Server) -> Cost:
            requests = [post("/score", item()) for _ in range(count)]
            started = cpu_seconds(server.pid)
            answers, _ = send(server.port, requests, callers=2)
            cpu_us = (cpu_seconds(server.pid) - started) * 1e6 / count
            assert not any(answer.score["cached"] for answer in answers)
            milliseconds = sorted(answer.seconds * 1000 for answer in answers)
            return Cost(cpu_us, milliseconds[int(0.99 * (count - 1))])

        for server in servers:  # warms up
            measure(server)
        pairs = []
        for number in range(PAIRS):
            costs = [measure(each) for each in servers[:: -1 if number % 2 else 1]]
            pairs.append(costs[:: -1 if number % 2 else 1])
    for field, unit, limit in (("cpu_us", "CPU us", "<= 1.05"), ("p99_ms", "p99 ms", "<= 1.1")):
        old, new = ([getattr(pair[side], field) for pair in pairs] for side in (0, 1))
        # The median of the pairs, as other load on the machine affects both of a pair.
        ratio = statistics.median(b / a for a, b in zip(old, new, strict=True))
        baseline = statistics.median(old)
        yield Ratio(f"{unit} of a {name} with a log; without", ratio * baseline, baseline, limit)


def another_size() -> dict[str, int]:
    """Return another `max_pixels` each time: nothing is cached."""
    return {"max_pixels": 200_000 - next(numbers) % 90_000}


def clips() -> Callable[[], Any]:
    content = base64.b64encode(CLIP.read_bytes()).decode()
    return lambda: {"task_text": TASK, "video_base64": content, **another_size()}


def clips_of_raw_frames() -> Callable[[], Any]:
    pixels = frames()
    return lambda: raw_frames(TASK, pixels, **another_size())


# Items that take microseconds


def fast_items() -> dict[str, Callable[[ServiceLog], int]]:
    """Return what adds items of a request to a log, and returns how many, by their name."""
    clip = VideoRequest(task_text=TASK, video_path=CLIP.name)
    text = "Compared how the clip ends with 2 successes and 2 failures of the task."
    of_clip = VideoScore(score=0.9, status="ok", cached=True, model_output=text)
    program = CodeRequest.model_validate(submission(0))
    verdicts = [Verdict(verdict=Outcome.ACCEPTED, cpu_ms=1.5, wall_ms=2.5)] * TESTS
    of_program = CodeScore(score=1.0, status="ok", cached=True, verdicts=verdicts)
    answer = '<think>I look it up.</think>\n<tool_call>\n{"name": "search"}\n</tool_call>'
    answers = [ToolsRequest(response=f"{answer} {n}", ground_truth=answer) for n in range(64)]
    fields = {"score": 4.0, "status": "ok", "components": dict.fromkeys("abcdefg", 1.0)}
    rollouts = [
        {"uid": str(n), "group": str(n // 8), "kind": "efficiency", "success": n % 2,
         "steps": n % 500, "max_steps": 512}
        for n in range(256)
    ]  # fmt: skip
    batch = decode_batch(json.dumps({"items": rollouts}).encode())
    result = score_episodes(batch.items)
    content = encode_batch(result, [], None, None, Timing())

    def single(request: Any, score: Any) -> Callable[[ServiceLog], int]:
        def add(log: ServiceLog) -> int:
            log.add(request, score, RequestContext(), seen=None, provenance=dict)
            return 1

        return add

    def together(items: Callable[[], Any], count: int) -> Callable[[ServiceLog], int]:
        def add(log: ServiceLog) -> int:
            log.add_batch(items, RequestContext(), count=count, provenance={})
            return count

        return add

    return {
        "cached clip": single(clip, of_clip),
        "cached program": single(program, of_program),
        "answer with tools": together(lambda: ((each, fields) for each in answers), 64),
        "episode": together(lambda: logged_items(batch, content), 256),
    }


def fast(name: str) -> Iterator[Ratio]:
    """Measure the CPU time of a log, of all threads, with the default sample and with all kept."""
    default = ServerSettings.model_fields["score_log_sample"].default
    medians = {}
    for sample in (1.0, default):
        costs = [fast_cost(fast_items()[name], sample) for _ in range(PAIRS)]
        medians[sample] = statistics.median(costs)
    print(f"{name}: CPU us per item, by the share that is kept: {medians}")
    yield Ratio(f"CPU us added to a {name}; the limit", medians[default], FAST_US, "<= 1")


def fast_cost(add: Callable[[ServiceLog], int], sample: float) -> float:
    with tempfile.TemporaryDirectory() as folder:
        log = ScoreLog(Path(folder) / "log")
        service = ServiceLog("tools", log, sample)
        items = 0
        started = time.process_time()
        while items < FAST_ITEMS:
            items += add(service)
        while log._items:
            time.sleep(0.01)
        log.close()
        cpu_s = time.process_time() - started
        assert not sum(log.dropped.values())
    return cpu_s / items * 1e6


if __name__ == "__main__":
    run(
        {
            **{name: partial(fast, name) for name in fast_items()},
            "clip": partial(computed, "clip", "video", 60, clips),
            "raw frames": partial(computed, "raw frames", "video", 100, clips_of_raw_frames),
            "program": partial(
                computed, "program", "code", 60, lambda: lambda: submission(next(numbers))
            ),
        }
    )
