"""Processes that must not outlive the one that started them, and one that runs tasks.

It imports the standard library only, so that such a process starts fast.
"""

import ctypes
import json
import logging
import mmap
import os
import pkgutil
import resource
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
#: Seconds that a process for tasks may take to start.
_START_SECONDS = 60.0
#: Limit on a task, which is a name and a few numbers.
_MAX_TASK_BYTES = 4096
#: How a process ends that takes too much memory, or too much CPU time.
_TOO_LARGE = {-signal.SIGABRT, -signal.SIGPROF}
#: The child, which imports what its parent can.
_PROGRAM = (
    f"import sys, json; sys.path[:] = json.loads(sys.argv[1]); import {__name__} as m; m.main()"
)


def end_with_parent(parent: int, number: signal.Signals) -> None:
    """Let the kernel send a signal to this process when its parent ends, however that happens."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


def describe_end(status: int | None) -> str:
    """Return how a process ended, by its status; None if that is unknown."""
    if status is None or status >= 0:
        return f"ended with status {status}"
    return f"was ended by {signal.Signals(-status).name}"


class MemoryFile:
    """A file in memory, which another process can read. It is gone as soon as this object is."""

    def __init__(self, *parts: bytes) -> None:
        self.fd = os.memfd_create("rewardfleet")
        weakref.finalize(self, os.close, self.fd)
        for part in parts:
            self.write(part)

    def write(self, content: bytes) -> None:
        """Append bytes."""
        view = memoryview(content)
        while view:
            view = view[os.write(self.fd, view) :]

    def read(self) -> bytes:
        """Return the content."""
        return os.pread(self.fd, os.fstat(self.fd).st_size, 0)

    def mapped(self) -> mmap.mmap:
        """Return the content, which is not empty, without reading it."""
        return mmap.mmap(self.fd, 0, prot=mmap.PROT_READ)


class TaskTooLarge(Exception):
    """A task took more time or memory than it may."""


class TaskLost(Exception):
    """A task was not completed, which is no fault of its own."""


class TaskProcess:
    """Runs tasks, one at a time, in a child process that starts with the first of them.

    If it does not answer, it is killed, and the next task starts another one.

    Args:
        label: What it does, for messages.
        function: Runs a task, with two open files: what to read, and where to write the result. It
            is a function of a module, and aborts for lack of memory.
        memory: Bytes of memory, in addition to what the process has at its start.
    """

    def __init__(
        self, label: str, function: Callable[[Any, int, int], None], *, memory: int, nice: int
    ) -> None:
        self._label = label
        self._arguments = (f"{function.__module__}:{function.__qualname__}", memory, nice)
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._closed = False

    def run(
        self, task: Any, source: MemoryFile, result: MemoryFile, *, seconds: float, cpu_s: float = 0
    ) -> None:
        """Run a task, which reads a source and writes a result.

        Blocks; call it from one thread, which must outlive the process.

        Args:
            task: A small value of JSON.
            seconds: Wall time after which the process is taken to hang.
            cpu_s: CPU time that the task may take; 0: any.

        Raises:
            TaskTooLarge: It took more time or memory than it may.
            TaskLost: The process ended, did not start, or is closed.
        """
        message = json.dumps([cpu_s, task]).encode()
        try:
            self._started().run(message, source.fd, result.fd, seconds)
        except OSError as error:  # also after a timeout
            code = self._stop()
            if self._closed:
                raise TaskLost("the service is shutting down") from None
            log.warning("the process that %s is replaced: %r", self._label, error)
            if isinstance(error, TimeoutError) or code in _TOO_LARGE:
                raise TaskTooLarge from None
            raise TaskLost(f"the process that {self._label} ended") from None

    def close(self) -> None:
        self._closed = True
        self._stop()

    def _started(self) -> "_Child":
        with self._lock:
            if self._closed:
                raise TaskLost("the service is shutting down")
            if self._child is not None and self._child.process.poll() is not None:
                self._child.stop()
                self._child = None
            if self._child is None:
                self._child = _Child(self._label, self._arguments)
            return self._child

    def _stop(self) -> int | None:
        with self._lock:
            child, self._child = self._child, None
            return None if child is None else child.stop()


class _Child:
    def __init__(self, label: str, arguments: tuple[str | int, ...]) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        more = [json.dumps(sys.path), *map(str, (theirs.fileno(), os.getpid(), *arguments))]
        options = ["-X", f"int_max_str_digits={sys.get_int_max_str_digits()}"]
        with theirs:
            self.process = subprocess.Popen(  # noqa: S603 - a fixed command
                [sys.executable, *options, "-P", "-c", _PROGRAM, *more],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        try:
            self._wait(_START_SECONDS)
        except OSError as error:
            self.stop()
            log.warning("the process that %s did not start: %r", label, error)
            raise TaskLost(f"the process that {label} did not start") from error

    def run(self, message: bytes, source: int, result: int, seconds: float) -> None:
        """Run a task; raise OSError if it was not completed, TimeoutError if it took too long."""
        socket.send_fds(self._channel, [message], [source, result])
        self._wait(seconds)

    def _wait(self, seconds: float) -> None:
        self._channel.settimeout(seconds)
        if not self._channel.recv(1):
            raise ConnectionError(f"it ended with status {self.process.poll()}")

    def stop(self) -> int:
        """End the process; return its status, also if it had ended before."""
        self.process.kill()
        self._channel.close()
        return self.process.wait()


# In the child


def _serve(channel: socket.socket, function: Callable[[Any, int, int], None]) -> None:
    """Run tasks until the parent closes the channel."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    channel.send(b".")
    while True:
        message, descriptors, *_ = socket.recv_fds(channel, _MAX_TASK_BYTES, 2)
        if not message:
            return
        cpu_s, task = json.loads(message)
        signal.setitimer(signal.ITIMER_PROF, cpu_s)  # its SIGPROF ends the process
        try:
            function(task, *descriptors)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            for descriptor in descriptors:
                os.close(descriptor)
        if trim is not None:  # else it is another C library
            trim(0)
        channel.send(b".")


def main() -> None:
    """Be the child: its arguments are its modules' path, channel, parent, function and limits."""
    channel, parent = map(int, sys.argv[2:4])
    memory, nice = map(int, sys.argv[5:7])
    end_with_parent(parent, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent ends it
        signal.signal(number, signal.SIG_IGN)
    function = pkgutil.resolve_name(sys.argv[4])
    os.nice(nice)  # now: on a busy machine, it would start for a minute
    with open("/proc/self/statm", encoding="ascii") as statm:  # noqa: PTH123 - not a file
        used = int(statm.read().split()[0]) * mmap.PAGESIZE
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = used + memory
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard < 0 else min(limit, hard), hard))
    with socket.socket(fileno=channel) as connection:
        _serve(connection, function)
