"""`make bench-tail`: small requests beside a caller that sends the largest allowed ones.

For each service and each kind of large request, small requests are sent one after another: alone
first, then beside another process that sends the large request again and again. All small requests
differ, so nothing is cached. Loopback only. Exits with 1 if the p99 beside it is more than three
times the p99 alone.
"""

import base64
import itertools
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import NamedTuple

import numpy as np
from harness import Answer, Ratio, before, post, report, send, serving, spawned

from rewardfleet.wire.frames import FRAMES_TYPE
from rewardfleet.wire.score import MAX_BATCH_ITEMS
from rewardfleet_server.code.app import create_app as create_code
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.testing import FakeJudge
from rewardfleet_server.tools.app import create_app as create_tools
from rewardfleet_server.tools.settings import ToolsSettings
from rewardfleet_server.video.app import create_app as create_video
from rewardfleet_server.video.settings import VideoSettings

MIB = 2**20
#: Small requests that are sent at least, and for so many seconds.
COUNT, SECONDS = 300, 6.0
CLIPS = Path(__file__).parent.parent / "data" / "libero" / "videos"

_numbers = itertools.count()


class Kind(NamedTuple):
    """A service, a small request of which each call returns another one, and a large one."""

    name: str
    serving: Callable[[], AbstractContextManager[tuple[int, int]]]
    small: Callable[[], bytes]
    large: Callable[[], bytes]


def main() -> int:
    wanted = sys.argv[1:]
    return report([measure(kind) for kind in KINDS if not wanted or kind.name in wanted])


def measure(kind: Kind) -> Ratio:
    with kind.serving() as (port, _):
        send(port, (kind.small() for _ in range(20)))
        alone = small_requests(port, kind.small)
        with sent_again(port, kind.large()) as count:
            beside = small_requests(port, kind.small)
            large, slowest = count()
    print(f"{kind.name}: alone {describe(alone)}; beside {large} large ones {describe(beside)}")
    print(f"    the slowest large one took {slowest:.2f} s")
    return Ratio(f"p99 ms beside {kind.name}; alone", p99(beside), p99(alone), "<= 3")


def small_requests(port: int, small: Callable[[], bytes]) -> list[float]:
    """Return the milliseconds of small requests, one after another."""
    is_before = before(SECONDS)
    taken: list[float] = []
    while len(taken) < COUNT or is_before(None):
        answers, _ = send(port, (small() for _ in range(20)))
        taken += (answer.seconds * 1000 for answer in answers)
    return taken


def p99(taken: list[float]) -> float:
    return statistics.quantiles(taken, n=100)[98]


def describe(taken: list[float]) -> str:
    return (
        f"p50 {statistics.median(taken):.2f} ms, p99 {p99(taken):.2f} ms, max {max(taken):.1f} ms"
    )


@contextmanager
def sent_again(port: int, request: bytes) -> Iterator[Callable[[], tuple[int, float]]]:
    """Send a request again and again from another process, once it has been answered once.

    Yields a function that ends this, and returns how many were answered, and the slowest seconds.
    """
    with spawned(_send_again, port, request) as (pipe, _):
        assert pipe.poll(120), "the large request was not answered"
        pipe.recv()

        def count() -> tuple[int, float]:
            pipe.send("stop")
            answered: tuple[int, float] = pipe.recv()
            return answered

        yield count


def _send_again(pipe: Pipe, port: int, request: bytes) -> None:
    def again() -> Iterator[bytes]:
        yield request
        pipe.send("sending")
        while not pipe.poll():
            yield request

    answers: list[Answer]
    answers, _ = send(port, again())
    pipe.send((len(answers), max(answer.seconds for answer in answers)))


# The services


def tools() -> AbstractContextManager[tuple[int, int]]:
    return serving(create_tools, ToolsSettings(port=0))


def answer(think: str) -> dict[str, str]:
    call = '<tool_call>\n{"name": "search", "parameters": {"query": "weather"}}\n</tool_call>'
    return {
        "response": f"<think>{think}</think>\n{call}",
        "ground_truth": f"<think>x</think>\n{call}",
    }


def small_answer() -> bytes:
    return as_json("/score", answer(f"thought {next(_numbers)}"))


def code() -> AbstractContextManager[tuple[int, int]]:
    return serving(create_code, CodeSettings(port=0, cache_mb=0, cache=None))


def program(revision: str, inputs: list[str]) -> dict[str, object]:
    cases = [{"stdin": stdin, "stdout": "1\n"} for stdin in inputs]
    return {"revision": revision, "tests": {"kind": "stdio", "cases": cases}}


def small_program() -> bytes:
    return as_json("/score", program(f"print(1)  # {next(_numbers)}\nx = {next(_numbers)}", [""]))


def large_program(size: int, tests: int, stdin: int = 0) -> dict[str, object]:
    lines = "\n".join(f"x{n} = [{n}, 'text {n}']" for n in range(size // 30))
    return program(f"{lines}\nprint(1)", [f"{n}" * stdin for n in range(tests)])


def video() -> AbstractContextManager[tuple[int, int]]:
    return serving(
        create_video,
        VideoSettings(port=0, video_root=[CLIPS], cache_mb=0, cache=None),
        {"fake": FakeJudge()},
    )


def small_frames() -> bytes:
    rng = np.random.default_rng(next(_numbers))
    return frames("/score", [rng.integers(0, 256, (4, 64, 64, 3), np.uint8)])


def frames(path: str, clips: list[np.ndarray]) -> bytes:
    """Return a request with raw frames, of one clip or of a batch of clips."""
    items, offset = [], 0
    for clip in clips:
        shape = {"shape": list(clip.shape), "offset": offset}
        items.append({"task_text": f"task {next(_numbers)}", "frames": shape})
        offset += clip.nbytes
    document = json.dumps(items[0] if path == "/score" else {"items": items}).encode()
    body = len(document).to_bytes(4, "little") + document + b"".join(c.tobytes() for c in clips)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {FRAMES_TYPE}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def random_clip(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def encoded_clips(count: int) -> bytes:
    files = sorted(CLIPS.glob("*.mp4"))
    files = [files[number % len(files)] for number in range(count)]
    items = [
        {"task_text": f"task {number}", "video_base64": base64.b64encode(f.read_bytes()).decode()}
        for number, f in enumerate(files)
    ]
    return as_json("/score/batch", {"items": items})


def as_json(path: str, body: object) -> bytes:
    return post(path, json.dumps(body).encode())


KINDS = [
    Kind(
        "tools: 60 answers of 1 MB",
        tools,
        small_answer,
        lambda: as_json("/score/batch", {"items": [answer("word " * 200_000)] * 60}),
    ),
    Kind(
        "tools: an answer of 60 MB",
        tools,
        small_answer,
        lambda: as_json("/score", answer("word " * 12_000_000)),
    ),
    Kind(
        "tools: 256 answers of 1,000 calls",
        tools,
        small_answer,
        lambda: as_json(
            "/score/batch",
            {
                "items": [answer("x") | {"response": answer("x")["response"] * 1000}]
                * MAX_BATCH_ITEMS
            },
        ),
    ),
    Kind(
        "code: a program of 1 MB",
        code,
        small_program,
        lambda: as_json("/score", large_program(980_000, 4)),
    ),
    Kind(
        "code: 1,000 tests with 60 MB of input",
        code,
        small_program,
        lambda: as_json("/score", large_program(1000, 1000, stdin=20_000)),
    ),
    Kind(
        "code: 60 programs of 0.9 MB",
        code,
        small_program,
        lambda: as_json(
            "/score/batch", {"items": [large_program(900_000 + 30 * n, 1) for n in range(60)]}
        ),
    ),
    Kind(
        "video: 64 raw clips of 5 frames",
        video,
        small_frames,
        lambda: frames("/score/batch", [random_clip(5, 256, 256, 3)] * 64),
    ),
    Kind(
        "video: raw frames of 1080p",
        video,
        small_frames,
        lambda: frames("/score", [random_clip(10, 1080, 1920, 3)]),
    ),
    Kind("video: 256 mp4 clips", video, small_frames, lambda: encoded_clips(MAX_BATCH_ITEMS)),
]


if __name__ == "__main__":
    sys.exit(main())
