"""`make bench-score-log`: what `--score-log` adds to the CPU time and the latency of scores.

Of items that are computed, pairs of a service with a log and one without are measured in turns,
over loopback. Of items that take microseconds, which such pairs cannot resolve on a busy machine,
the CPU time of the log itself is measured: that of the request's thread and of the log's. Exits
with 1 if a median misses its limit.
"""

import base64
import itertools
import json
import statistics
import sys
import tempfile
import threading
import time
from code import TESTS, score_request, submission
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from harness import Ratio, cpu_seconds, post, report, send, serving

from rewardfleet import video_request as video_request_of
from rewardfleet.episodes import score_episodes
from rewardfleet.score_log import ScoreLog
from rewardfleet.wire.code import CodeRequest, CodeScore, Outcome, Verdict
from rewardfleet.wire.frames import encode_body
from rewardfleet.wire.score import Timing
from rewardfleet.wire.tools import ToolsRequest
from rewardfleet.wire.video import VideoRequest, VideoScore
from rewardfleet_server.code import app as code
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.episode.decode import decode_batch, logged_items
from rewardfleet_server.episode.encode import encode_batch
from rewardfleet_server.observe.score_log import ServiceLog
from rewardfleet_server.observe.telemetry import RequestContext
from rewardfleet_server.settings import ServerSettings
from rewardfleet_server.video import app as video
from rewardfleet_server.video.clip.frames import decode_video
from rewardfleet_server.video.settings import VideoSettings

PAIRS = 9
CLIP = (Path(__file__).parent.parent / "data" / "libero" / "videos") / (
    "libero_10__LIVING_ROOM_SCENE2_put_both_the_alphabet_soup_and_the_tomato__success__s30970.mp4"
)
TASK = "put both the alphabet soup and the tomato sauce in the basket"
#: Microseconds that an item may take which takes microseconds to score.
FAST_US = 30.0
#: Items of a round: all of them fit into the queue of the log.
FAST_ITEMS = 16_000
_numbers = itertools.count()


class Cost(NamedTuple):
    """What an item of a round took."""

    cpu_us: float
    p99_ms: float


class Load(NamedTuple):
    """Requests of a round."""

    name: str
    service: tuple[Any, Any]  #: what creates its application, and the type of its settings
    request: Callable[[], bytes]  #: returns another request each time, or the same
    requests: int  #: of a round


def video_request(**changes: Any) -> bytes:
    # Another `max_pixels` each time: nothing is cached.
    request = {"task_text": TASK, "max_pixels": 200_000 - next(_numbers) % 90_000, **changes}
    return post("/score", json.dumps(request).encode())


def raw_frames(pixels: "np.ndarray[Any, Any]") -> bytes:
    request = video_request_of(TASK, pixels, max_pixels=200_000 - next(_numbers) % 90_000)
    media_type, parts = encode_body(request)
    return post("/score", b"".join(map(bytes, parts)), media_type)


def loads() -> list[Load]:
    """Return loads of items that are computed."""
    clip = base64.b64encode(CLIP.read_bytes()).decode()
    stop = threading.Event()
    decoded = decode_video(str(CLIP), count=16, max_pixels=200_704, stop=stop)
    pixels = np.stack(decoded.frames)
    of_video, of_code = (video.create_app, VideoSettings), (code.create_app, CodeSettings)
    return [
        Load("clip", of_video, lambda: video_request(video_base64=clip), 60),
        Load("raw frames", of_video, lambda: raw_frames(pixels), 100),
        Load("program", of_code, lambda: score_request(submission(next(_numbers))), 60),
    ]


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


@contextmanager
def pair(load: Load) -> Iterator[list[tuple[int, int]]]:
    """Run a service without a log and one with a log; yield their ports and pids."""
    create_app, settings_type = load.service
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        log = {"score_log": Path(folder) / "log"}
        yield [
            stack.enter_context(
                serving(create_app, settings_type(port=0, cache="", cache_mb=0, **more))
            )
            for more in ({}, log)
        ]


def measure(load: Load, port: int, pid: int) -> Cost:
    requests = [load.request() for _ in range(load.requests)]
    started = cpu_seconds(pid)
    answers, _ = send(port, requests, callers=2)
    cpu_us = (cpu_seconds(pid) - started) * 1e6 / load.requests
    assert not any(json.loads(answer.body)["cached"] for answer in answers)
    milliseconds = sorted(answer.seconds * 1000 for answer in answers)
    return Cost(cpu_us, milliseconds[int(0.99 * (len(milliseconds) - 1))])


def rounds(load: Load) -> tuple[Sequence[Cost], Sequence[Cost]]:
    """Return what items took without a log, and with one, measured in turns."""
    with pair(load) as services:
        for service in services:
            measure(load, *service)
        found: list[list[Cost]] = [[], []]
        for number in range(PAIRS):
            for which in (0, 1) if number % 2 else (1, 0):
                found[which].append(measure(load, *services[which]))
    return found[0], found[1]


def of_computed(load: Load) -> list[Ratio]:
    without, with_log = rounds(load)
    ratios = []
    for field, unit, limit in (("cpu_us", "CPU us", "<= 1.05"), ("p99_ms", "p99 ms", "<= 1.1")):
        old = [getattr(each, field) for each in without]
        new = [getattr(each, field) for each in with_log]
        # The median of the pairs, as other load on the machine affects both of a pair.
        ratio = statistics.median(b / a for a, b in zip(old, new, strict=True))
        baseline = statistics.median(old)
        name = f"{unit} of a {load.name} with a log; without"
        ratios.append(Ratio(name, ratio * baseline, baseline, limit))
    return ratios


def of_fast(name: str, add: Callable[[ServiceLog], int]) -> Ratio:
    """Measure the CPU time of a log, of all threads, with the default sample and with all kept."""
    default = ServerSettings.model_fields["score_log_sample"].default
    medians = {}
    for sample in (1.0, default):
        costs = [fast_cost(name, add, sample) for _ in range(PAIRS)]
        medians[sample] = statistics.median(costs)
    print(f"{name}: CPU us per item, by the share that is kept: {medians}")
    return Ratio(f"CPU us added to a {name}; the limit", medians[default], FAST_US, "<= 1")


def fast_cost(name: str, add: Callable[[ServiceLog], int], sample: float) -> float:
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


def main() -> int:
    wanted = sys.argv[1:]
    fast = {name: add for name, add in fast_items().items() if not wanted or name in wanted}
    ratios = [of_fast(name, add) for name, add in fast.items()]
    for load in loads():
        if not wanted or load.name in wanted:
            ratios += of_computed(load)
    return report(ratios)


if __name__ == "__main__":
    sys.exit(main())
