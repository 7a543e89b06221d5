"""One jail and its warden, seen from outside: started, talked to, ended. All of it blocks."""

import json
import logging
import os
import select
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from rewardfleet_server.code.sandboxes import MAX_REPORT_BYTES, Check, Job, ProgramRun, RunResult

from .isolation import IsolationSpec, spawn
from .seccomp import Filters

log = logging.getLogger(__name__)

_WARDEN = Path(__file__).with_name("warden.py")
_LENGTHS = struct.Struct("!II")
_START_SECONDS = 20.0
#: What an answer may come later than the run's own bound: a loaded host.
_LATE_SECONDS = 20.0
_END_SECONDS = 5.0

#: What programs usually import. The more, the longer each fork: a millisecond for some 20 MB.
_PRELOAD = (
    "abc array ast bisect cmath collections collections.abc contextlib copy dataclasses datetime "
    "decimal enum fractions functools heapq io itertools json math numbers operator os queue "
    "random re statistics string sys textwrap threading time typing"
)


class NoJail(Exception):
    """A jail could not be started, or does not do what it must."""


class JailDied(Exception):
    """A jail ended, or fell silent, while a program ran."""


@dataclass(frozen=True)
class WorkerConfig:
    """What every warden of a service is told."""

    cell: IsolationSpec
    seccomp: Filters
    preload: tuple[str, ...]


class Worker:
    """One place where programs run, and the jail in it, which is made anew when it broke.

    Used by one thread at a time, but for `stop`.
    """

    def __init__(self, orders: WorkerConfig) -> None:
        self.orders = orders
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._stopped = threading.Event()
        self._sending = threading.Lock()
        self.hello: Mapping[str, Any] = {}  #: what the warden said of itself

    def start(self) -> None:
        """Start a jail, where there is none.

        Raises:
            NoJail: It did not come up.
        """
        if self._channel is not None:
            if not _is_closed(self._channel):
                return
            self.close()  # it died while nobody was in it, which no program answers for
        ours, theirs = socket.socketpair()
        errors = os.memfd_create("errors")
        cell = self.orders.cell
        orders = {
            "preload": [*_PRELOAD.split(), *self.orders.preload],
            "readable": cell.readable,
            "writable": cell.writable,
            "processes": cell.processes,
            "landlock": cell.landlock,
            "warden_filter_bytes": len(self.orders.seccomp.warden),
        }
        try:
            self._channel = ours
            self._process = spawn(cell.command, theirs.fileno(), errors)
            theirs.close()
            assert self._process.stdin is not None  # noqa: S101 - it was asked for
            with self._process.stdin as stdin:
                stdin.write(_WARDEN.read_bytes())
            ours.settimeout(_START_SECONDS)
            _send(ours, orders, self.orders.seccomp.warden + self.orders.seccomp.run)
            self.hello, _ = _receive(ours)
        except (OSError, subprocess.SubprocessError, JailDied) as error:
            self.close()
            said = os.pread(errors, 2000, 0).decode(errors="replace").strip()[-500:]
            raise NoJail(f"{cell.level}: {said or error}") from error
        finally:
            theirs.close()
            os.close(errors)
        if cell.level == "landlock" and not self.hello["landlock"]:
            self.close()
            raise NoJail("landlock: this kernel has none")

    def ready(self) -> None:
        """Forget that the job before was stopped."""
        self._stopped.clear()

    def run(self, job: Job, on_result: Callable[[RunResult], bool]) -> bool:
        """Run a job; see `Sandbox.run`. Return whether it was let come to its end.

        Raises:
            NoJail: There is none to be had now.
        """
        self.start()
        try:
            return self._run_all(job, on_result)
        except JailDied:
            self.close()
            self.probe()  # in a fresh jail: else it is not the program's fault
            on_result(RunResult(exit_code=-signal.SIGKILL, stopped="died"))
            return True
        except BaseException:
            self.close()  # an answer may be under way that nobody waits for
            raise

    def _run_all(self, job: Job, on_result: Callable[[RunResult], bool]) -> bool:
        """Run and look; the next run is under way while the last one is looked at."""
        wall_s = job.bounds.wall_s
        following = [*job.runs[1:], None]
        self._ask(_order(job, job.runs[0], job.program), job.runs[0].stdin, wall_s)
        for run in following:
            ended, odd = self._answer()
            if odd:
                log.warning("a jail could not be cleared after a run, and is made anew")
                self.close()
                self.start()
            if self._stopped.is_set():
                return False
            if run is not None:
                self._ask(_order(job, run, job.program if odd else None), run.stdin, wall_s)
            if not on_result(ended):
                if run is not None:
                    self._tell_to_stop()
                    self._answer()
                return True
        return True

    def probe(self) -> None:
        """Run a program that is known to be good, and one that tries what must not be.

        Raises:
            NoJail: There is none, or it does not hold.
        """
        self.start()
        order = {**_PROBE_LIMITS, "source": _PROBE, "setup": "", "checks": []}
        try:
            self._ask(order, b"in", _PROBE_LIMITS["wall_s"])
            ended, odd = self._answer()
        except JailDied as error:
            self.close()
            raise NoJail(
                f"{self.orders.cell.level}: a known-good program ended the jail"
            ) from error
        said = ended.stdout.decode(errors="replace")
        if self.orders.cell.level == "none-unsafe":
            said = said.replace(_IS_UNSAFE, "")
        if odd or ended.exit_code or said != "in\n":
            self.close()
            what = said.strip() or ended.stderr.decode(errors="replace").strip()
            raise NoJail(f"{self.orders.cell.level}: does not hold: {what[-300:]}")

    def stop(self) -> None:
        """Make the job under way end soon. From any thread, while there is a job."""
        self._stopped.set()
        self._tell_to_stop()

    def _tell_to_stop(self) -> None:
        channel = self._channel
        # Whoever is sending right now looks again when he has sent.
        if channel is not None and self._sending.acquire(blocking=False):
            try:
                _send(channel, {}, b"")
            except JailDied:
                log.debug("the jail that was to stop is gone already")
            finally:
                self._sending.release()

    def close(self) -> None:
        """End the jail."""
        process, channel = self._process, self._channel
        self._process = self._channel = None
        if channel is not None:
            channel.close()
        if process is not None:
            process.kill()
            process.wait(_END_SECONDS)

    def _ask(self, order: Mapping[str, Any], stdin: bytes, wall_s: float) -> None:
        channel = self._channel
        if channel is None:
            raise JailDied
        channel.settimeout(wall_s + _LATE_SECONDS)
        with self._sending:
            _send(channel, order, stdin)
        if self._stopped.is_set():
            self._tell_to_stop()

    def _answer(self) -> tuple[RunResult, bool]:
        channel = self._channel
        if channel is None:
            raise JailDied
        header, blob = _receive(channel)
        if "refused" in header:
            raise NoJail(f"{self.orders.cell.level}: {header['refused']}")
        outputs, place = [], 0
        for length in header["lengths"]:
            outputs.append(blob[place : place + length])
            place += length
        stdout, stderr, report = outputs
        ended = RunResult(
            exit_code=header["exit"],
            stopped=header["stopped"],
            stdout=stdout,
            stderr=stderr,
            report=report,
            cpu_ms=header["cpu_ms"],
            fork_ms=header["fork_ms"],
            run_ms=header["run_ms"],
            clean_ms=header["clean_ms"],
        )
        return ended, header["odd"]


def _is_closed(channel: socket.socket) -> bool:
    """Whether the other end has gone: a warden that is not asked says nothing."""
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    return bool(poll.poll(0))


def _order(job: Job, run: ProgramRun, source: str | None) -> dict[str, Any]:
    bounds = job.bounds
    order = {
        "cpu_s": bounds.cpu_s,
        "wall_s": bounds.wall_s,
        "memory_bytes": bounds.memory_bytes,
        "output_bytes": bounds.output_bytes,
        "report_bytes": MAX_REPORT_BYTES,
        "setup": run.setup,
        "checks": [_asked(check) for check in run.checks],
    }
    return order if source is None else {**order, "source": source}


def _asked(check: Check) -> dict[str, JsonValue]:
    return {check.kind: check.source, "args": list(check.args), "nonce": check.nonce}


def _send(channel: socket.socket, header: Mapping[str, Any], blob: bytes) -> None:
    text = json.dumps(header).encode()
    try:
        channel.sendall(b"".join((_LENGTHS.pack(len(text), len(blob)), text, blob)))
    except OSError as error:
        raise JailDied from error


def _receive(channel: socket.socket) -> tuple[Any, bytes]:
    header_size, blob_size = _LENGTHS.unpack(_receive_exactly(channel, _LENGTHS.size))
    header = json.loads(_receive_exactly(channel, header_size))
    return header, _receive_exactly(channel, blob_size)


def _receive_exactly(channel: socket.socket, size: int) -> bytes:
    content = bytearray(size)
    view, got = memoryview(content), 0
    try:
        while got < size:
            count = channel.recv_into(view[got:])
            if not count:
                raise JailDied
            got += count
    except OSError as error:
        raise JailDied from error
    return bytes(content)


_PROBE_LIMITS: dict[str, float] = {
    "cpu_s": 5.0,
    "wall_s": 20.0,
    "memory_bytes": 256 * 2**20,
    "output_bytes": 2**20,
    "report_bytes": 2**20,
}
#: What the level that is none lets through.
_IS_UNSAFE = "a program could read /etc/passwd\n"
#: Prints what it read, and whatever it could do that it must not.
_PROBE = """
import ctypes, os, socket
print(input())
for name, attempt in {
    "read /etc/passwd": lambda: open("/etc/passwd"),
    "write to /usr": lambda: open("/usr/.probe", "w"),
    "fork": os.fork,
    "signal": lambda: os.kill(os.getppid(), 0),
    "open a socket": socket.socket,
}.items():
    try:
        attempt()
    except OSError:
        continue
    if os.getpid() > 0:
        print("a program could " + name)
"""
