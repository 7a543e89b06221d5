"""Services in real processes, their memory, and how long they make others wait."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self, TypeVar

T = TypeVar("T")


@contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[str]]:
    # Programs outside of the package of tests import this module, too.
    own = {name: each for name, each in os.environ.items() if not name.startswith("REWARDFLEET_")}
    started = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=own)
    try:
        yield started
    finally:
        started.kill()
        started.wait()
        started.stderr.close()


def url_in_log(service: subprocess.Popen[str]) -> str:
    """Read the log of a service until it says where it listens."""
    messages = (json.loads(line)["message"] for line in service.stderr)
    return next(each.partition(" on ")[2] for each in messages if each.startswith("serving "))


@contextmanager
def service_process(
    name: str, *arguments: str, prefix: Sequence[str] = ()
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start `rewardfleet serve NAME` on a free port; yield the process and its URL.

    The prefix is a command that starts another one.
    """
    command = [*prefix, sys.executable, "-m", "rewardfleet_server", "serve", name, "--port", "0"]
    with process(*command, *arguments) as started:
        url = url_in_log(started)
        reader = threading.Thread(target=started.stderr.read)  # else the pipe would be full
        reader.start()
        try:
            yield started, url
        finally:
            started.kill()
            reader.join()


def descendants(pid: int | None = None, depth: int = 99) -> set[int]:
    """Return the descendants of a process, this one by default, that are not zombies.

    With a depth of 1, these are its children only; of 2, also their children, and so on.
    """
    found: set[int] = set()
    with suppress(OSError):  # it has ended
        for task in Path(f"/proc/{pid or os.getpid()}/task").iterdir():
            with suppress(OSError):  # the thread has ended
                found.update(map(int, (task / "children").read_text().split()))
    found -= set(filter(is_zombie, found))
    return found.union(*(descendants(each, depth - 1) for each in found if depth > 1))


def is_zombie(pid: int) -> bool:
    """Return whether a process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].startswith(" Z")
    except OSError:
        return True


def memory_of(pid: int) -> int:
    """Return the bytes that a process and its descendants take, with files in memory."""
    total = 0
    for each in (pid, *descendants(pid)):
        with suppress(OSError):
            rollup = Path(f"/proc/{each}/smaps_rollup").read_text()
            total += int(re.search(r"Pss:\s+(\d+)", rollup)[1]) * 1024
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if "memfd:" in os.readlink(descriptor):
                total += descriptor.stat().st_blocks * 512
    return total


#: Requests `/healthz`, or a score, until its standard input ends; prints the longest answer in
#: seconds.
_ASK = """
import http.client, select, sys, time
slowest = 0.0
while not select.select([sys.stdin], [], [], 0.01)[0]:
    started = time.monotonic()
    connection = http.client.HTTPConnection(sys.argv[1], timeout=60)
    if sys.argv[2]:
        json = {"content-type": "application/json"}
        connection.request("POST", "/score", sys.argv[2], json)
    else:
        connection.request("GET", "/healthz")
    assert connection.getresponse().status == 200
    connection.close()
    slowest = max(slowest, time.monotonic() - started)
    print(slowest, flush=True)
"""


class Watch:
    """Requests `/healthz` again and again, each time on a new connection; or scores `body`.

    `slowest` is the longest answer in seconds, at the end; `peak` the most memory in bytes.
    """

    def __init__(self, url: str, pid: int, body: bytes = b"") -> None:
        self._body = body
        self.slowest = 0.0
        self.peak = 0
        self._address = url.partition("//")[2]
        self._pid = pid
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._weigh)

    def __enter__(self) -> Self:
        # A process of its own: the threads of this one would delay it.
        self._asker = subprocess.Popen(
            [sys.executable, "-c", _ASK, self._address, self._body],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._asker.stdout.readline()  # it has begun
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        answers, _ = self._asker.communicate()
        self._end.set()
        self._thread.join()
        assert self._asker.returncode == 0
        self.slowest = max(map(float, answers.split()), default=0.0)

    def _weigh(self) -> None:
        while not self._end.wait(0.02):
            self.peak = max(self.peak, memory_of(self._pid))


def idle_seconds(url: str, pid: int, body: bytes = b"") -> float:
    """Return the longest answer of a service that has nothing to do, within 0.15 s."""
    with Watch(url, pid, body) as watch:
        time.sleep(0.15)
    return watch.slowest


def watched(url: str, pid: int, work: Callable[[], T], *, most_seconds: float) -> tuple[T, Watch]:
    """Watch a service during `work`; return its result and the watch.

    Repeat it up to four times if an answer took too long: a busy machine delays one now and then, a
    blocked event loop one each time.
    """
    for _ in range(5):
        with Watch(url, pid) as watch:
            result = work()
        if watch.slowest < most_seconds:
            break
    return result, watch
