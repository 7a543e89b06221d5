"""`make bench-score-log`: what `--score-log` adds to the CPU time and the latency of scores.

Pairs of a service with a log and one without are measured in turns. It uses loopback only, and
exits with 1 if a median misses its limit.
"""

import base64
import itertools
import json
import statistics
import sys
import tempfile
import threading
from code import score_request, submission
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from harness import Ratio, cpu_seconds, post, report, send, serving

from rewardfleet import video_request as video_request_of
from rewardfleet.wire.frames import encode_body
from rewardfleet_server.code import app as code
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.episode import app as episode
from rewardfleet_server.episode.settings import EpisodeSettings
from rewardfleet_server.tools import app as tools
from rewardfleet_server.tools.settings import ToolsSettings
from rewardfleet_server.video import app as video
from rewardfleet_server.video.frames import decode_video
from rewardfleet_server.video.settings import VideoSettings

PAIRS = 9
CLIP = (Path(__file__).parent.parent / "data" / "libero" / "videos") / (
    "libero_10__LIVING_ROOM_SCENE2_put_both_the_alphabet_soup_and_the_tomato__success__s30970.mp4"
)
TASK = "put both the alphabet soup and the tomato sauce in the basket"
#: Microseconds that an item may take which takes microseconds to score.
FAST_US = 30.0
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
    items: int = 1  #: of a request
    settings: dict[str, Any] = {}  # noqa: RUF012 - not changed


def video_request(**changes: Any) -> bytes:
    # Another `max_pixels` each time: nothing is cached.
    request = {"task_text": TASK, "max_pixels": 200_000 - next(_numbers) % 90_000, **changes}
    return post("/score", json.dumps(request).encode())


def raw_frames(pixels: "np.ndarray[Any, Any]") -> bytes:
    request = video_request_of(TASK, pixels, max_pixels=200_000 - next(_numbers) % 90_000)
    media_type, parts = encode_body(request)
    return post("/score", b"".join(map(bytes, parts)), media_type)


def loads() -> tuple[list[Load], list[Load]]:
    """Return loads of items that are computed, and of those that take microseconds."""
    clip = base64.b64encode(CLIP.read_bytes()).decode()
    stop = threading.Event()
    decoded = decode_video(str(CLIP), count=16, max_pixels=200_704, stop=stop)
    pixels = np.stack(decoded.frames)
    of_video, of_code = (video.create_app, VideoSettings), (code.create_app, CodeSettings)
    same_clip = post("/score", json.dumps({"task_text": TASK, "video_path": CLIP.name}).encode())
    same_program = score_request(submission(0))
    answer = '<think>I look it up.</think>\n<tool_call>\n{"name": "search"}\n</tool_call>'
    answers = [{"response": f"{answer} {n}", "ground_truth": answer} for n in range(64)]
    batch = post("/score/batch", json.dumps({"items": answers}).encode())
    fields = {"kind": "efficiency", "max_steps": 512}
    rollouts = [
        {"uid": str(n), "group": str(n // 8), "success": n % 2, "steps": n % 500, **fields}
        for n in range(256)
    ]
    options = {"normalize": "group_std"}
    groups = post("/score/batch", json.dumps({"items": rollouts, "options": options}).encode())
    computed = [
        Load("clip", of_video, lambda: video_request(video_base64=clip), 60),
        Load("raw frames", of_video, lambda: raw_frames(pixels), 100),
        Load("program", of_code, lambda: score_request(submission(next(_numbers))), 60),
    ]
    fast = [
        Load(
            "cached clip",
            of_video,
            lambda: same_clip,
            1000,
            settings={"video_root": [CLIP.parent]},
        ),
        Load("cached program", of_code, lambda: same_program, 2000),
        Load("answer with tools", (tools.create_app, ToolsSettings), lambda: batch, 60, 64),
        Load("episode", (episode.create_app, EpisodeSettings), lambda: groups, 200, 256),
    ]
    return computed, fast


@contextmanager
def pair(load: Load, **with_log: Any) -> Iterator[list[tuple[int, int]]]:
    """Run a service without a log and one with a log; yield their ports and pids."""
    create_app, settings_type = load.service
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        log = {"score_log": Path(folder) / "log", **with_log}
        yield [
            stack.enter_context(serving(create_app, settings_type(port=0, **load.settings, **more)))
            for more in ({}, log)
        ]


def measure(load: Load, port: int, pid: int) -> Cost:
    requests = [load.request() for _ in range(load.requests)]
    started = cpu_seconds(pid)
    answers, _ = send(port, requests, callers=2)
    cpu_us = (cpu_seconds(pid) - started) * 1e6 / load.requests / load.items
    milliseconds = sorted(answer.seconds * 1000 for answer in answers)
    return Cost(cpu_us, milliseconds[int(0.99 * (len(milliseconds) - 1))])


def rounds(load: Load, **with_log: Any) -> tuple[Sequence[Cost], Sequence[Cost]]:
    """Return what items took without a log, and with one, measured in turns."""
    with pair(load, **with_log) as services:
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


def of_fast(load: Load) -> Ratio:
    without, with_log = rounds(load)
    added = statistics.median(b.cpu_us - a.cpu_us for a, b in zip(without, with_log, strict=True))
    own = statistics.median(each.cpu_us for each in without)
    print(f"{load.name}: {added:+.1f} CPU us per item, which takes {own:.1f}")
    return Ratio(f"CPU us added to a {load.name}; the limit", max(added, 0.0), FAST_US, "<= 1")


def main() -> int:
    computed, fast = loads()
    wanted = sys.argv[1:]
    chosen = [each for each in computed if not wanted or each.name in wanted]
    chosen_fast = [each for each in fast if not wanted or each.name in wanted]
    ratios = [ratio for load in chosen for ratio in of_computed(load)]
    return report(ratios + [of_fast(load) for load in chosen_fast])


if __name__ == "__main__":
    sys.exit(main())
