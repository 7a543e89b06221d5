"""`make bench-tail`: small requests beside a caller that sends the largest allowed ones.

For each service and each kind of large request, small requests are sent one after another: alone
first, then beside another process that sends the large request again and again. All small requests
differ, so nothing is cached. Loopback only. Exits with 1 if the p99 beside it is more than three
times the p99 alone.
"""

import base64
import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from multiprocessing.connection import Connection as Pipe
from typing import NamedTuple

from harness import Ratio, Server, before, p99, post, run, send, serving, until_stopped
from items import VIDEOS, Item, answer, numbers, random_frames, raw_frames, stdio

from rewardfleet.wire.score import MAX_BATCH_ITEMS
from rewardfleet_server.testing import FakeJudge

#: Small requests that are sent at least, and for so many seconds.
COUNT, SECONDS = 300, 6.0


class Service(NamedTuple):
    """How a service is run, and a small item of it, of which each call returns another one."""

    serving: Callable[[], AbstractContextManager[Server]]
    small: Callable[[], object]


SERVICES = {
    "tools": Service(
        lambda: serving("tools"),
        lambda: answer(f"thought {next(numbers)}"),
    ),
    "code": Service(
        lambda: serving("code", cache_mb=0, cache=None),
        lambda: stdio(f"print(1)  # {next(numbers)}\nx = {next(numbers)}", ("", "1\n")),
    ),
    "video": Service(
        lambda: serving("video", FakeJudge(), video_root=[VIDEOS], cache_mb=0, cache=None),
        lambda: raw_frames("small", random_frames(4, 64, 64, seed=next(numbers))),
    ),
}


def measure(name: str, large: Callable[[], bytes]) -> Iterator[Ratio]:
    service = SERVICES[name.partition(":")[0]]

    def small() -> bytes:
        return post("/score", service.small())

    with service.serving() as server:
        send(server.port, (small() for _ in range(20)))
        alone = small_requests(server.port, small)
        with until_stopped(send_again, server.port, large()) as count:
            beside = small_requests(server.port, small)
            repeated, slowest = count()
    print(f"{name}: alone {describe(alone)}; beside {repeated} large ones {describe(beside)}")
    print(f"    the slowest large one took {slowest:.2f} s")
    yield Ratio(f"p99 ms beside {name}; alone", p99(beside), p99(alone), "<= 3")


def small_requests(port: int, small: Callable[[], bytes]) -> list[float]:
    """Return the milliseconds of small requests, one after another."""
    is_before = before(SECONDS)
    taken: list[float] = []
    while len(taken) < COUNT or is_before(None):
        answers, _ = send(port, (small() for _ in range(20)))
        taken += (answer.seconds * 1000 for answer in answers)
    return taken


def describe(taken: list[float]) -> str:
    return (
        f"p50 {statistics.median(taken):.2f} ms, p99 {p99(taken):.2f} ms, max {max(taken):.1f} ms"
    )


def send_again(pipe: Pipe, port: int, request: bytes) -> None:
    """Send a request again and again; the result is how many were answered, and the slowest."""

    def again() -> Iterator[bytes]:
        yield request
        pipe.send("sending")
        while not pipe.poll():
            yield request

    answers, _ = send(port, again())
    pipe.send((len(answers), max(answer.seconds for answer in answers)))


# The large requests


def batch(*items: Item) -> bytes:
    return post("/score/batch", {"items": items})


def large_program(size: int, tests: int, stdin: int = 0) -> Item:
    lines = "\n".join(f"x{n} = [{n}, 'text {n}']" for n in range(size // 30))
    return stdio(f"{lines}\nprint(1)", *((f"{n}" * stdin, "1\n") for n in range(tests)))


def encoded_clips(count: int) -> bytes:
    files = [base64.b64encode(each.read_bytes()).decode() for each in sorted(VIDEOS.glob("*.mp4"))]
    items = [(f"task {number}", files[number % len(files)]) for number in range(count)]
    return batch(*({"task_text": task, "video_base64": content} for task, content in items))


def raw_clips(count: int) -> bytes:
    clip = random_frames(5, 256, 256)
    return post("/score/batch", [raw_frames(f"task {n}", clip) for n in range(count)])


LARGE: dict[str, Callable[[], bytes]] = {
    "tools: 60 answers of 1 MB": lambda: batch(*[answer("word " * 200_000)] * 60),
    "tools: an answer of 60 MB": lambda: post("/score", answer("word " * 12_000_000)),
    "tools: 256 answers of 1,000 calls": lambda: batch(*[answer("x", 1000)] * MAX_BATCH_ITEMS),
    "code: a program of 1 MB": lambda: post("/score", large_program(980_000, 4)),
    "code: 1,000 tests with 60 MB of input": lambda: post(
        "/score", large_program(1000, 1000, stdin=20_000)
    ),
    "code: 60 programs of 0.9 MB": lambda: batch(
        *(large_program(900_000 + 30 * n, 1) for n in range(60))
    ),
    "video: 64 raw clips of 5 frames": lambda: raw_clips(64),
    "video: raw frames of 1080p": lambda: post(
        "/score", raw_frames("large", random_frames(10, 1080, 1920))
    ),
    "video: 256 mp4 clips": lambda: encoded_clips(MAX_BATCH_ITEMS),
}


if __name__ == "__main__":
    run({name: partial(measure, name, large) for name, large in LARGE.items()})
