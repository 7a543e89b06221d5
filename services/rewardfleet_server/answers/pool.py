"""The worker processes of the answers service, as it uses them.

A check that takes long gives its place to others: it goes on at a lower priority, or begins again
once there is room. A worker is used again after a short check that has ended well, else killed.
"""

import asyncio
import json
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

from rewardfleet.wire.errors import Unavailable
from rewardfleet_server.system.child_process import describe_end

log = logging.getLogger(__name__)

#: CPU time after which a check is a long one, and how many of these there may be for each core.
_QUICK_S, _LONG_PER_CORE = 0.1, 2
_NICE = 5  #: niceness of long checks; of others, it is 0
_MAX_CHECKS = 500  #: checks of one worker: caches of its libraries grow
#: Seconds in which the server process must have imported the libraries, and bytes of a reply.
_START_S, _MAX_REPLY = 120.0, 2**16
#: How a worker ends that has used up its CPU time, or its stack.
_LIMITS = {-signal.SIGPROF, -signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS}
#: The complete environment of the processes. With a fixed hash seed, sets have the same order.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
_PROGRAM = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "import rewardfleet_server.answers.worker as worker; worker.main()"
)


class _Killed(Exception):
    """Something else has killed a worker."""


class Workers:
    """Checks answers in processes that can be killed.

    Args:
        cores: How many checks may use a core at the same time, before they are long.
        memory: Bytes of memory of a worker, in addition to the libraries.
    """

    def __init__(self, cores: int, cpu_s: float, memory: int) -> None:
        self._cpu_s = cpu_s
        self._memory = memory
        self._quick = asyncio.Semaphore(cores)
        self._long = asyncio.Semaphore(_LONG_PER_CORE * cores)
        self._idle: list[_Worker] = []
        self._forking = asyncio.Lock()
        self._server: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        #: By the names of the service's metrics: checks that exceeded a limit, and workers that
        #: something else has killed.
        self.counts = {"check_limits": 0, "check_kills": 0}

    async def start(self) -> None:
        """Start the process that workers are forked from; raise ValueError if it cannot be."""
        try:
            self._idle.append(await self._worker())
        except Unavailable as error:
            raise ValueError(f"{error}; needs Linux with seccomp, and libseccomp2") from None

    async def check(self, job: dict[str, Any]) -> dict[str, Any]:
        """Return the reply of a check; beyond a limit, `too_complex` and verdicts so far.

        Raises:
            Unavailable: No worker can be started, or something else kills them.
        """
        message = json.dumps({**job, "cpu_s": self._cpu_s}).encode() + b"\n"
        for _ in range(2):
            try:
                reply = await self._check(message)
            except _Killed:
                self.counts["check_kills"] += 1
            else:
                self.counts["check_limits"] += reply["outcome"] == "too_complex"
                return reply
        raise Unavailable("SIGKILL ended two workers, e.g. for lack of memory", retry_after=1)

    async def _check(self, message: bytes) -> dict[str, Any]:
        async with self._quick:
            worker = await self._worker()
            try:
                worker.ask(message)
                while worker.cpu_s < _QUICK_S:
                    if (reply := await worker.reply(_QUICK_S)) is not None:
                        is_well = reply["outcome"] not in {"too_complex", "failed"}
                        if is_well and worker.checks < _MAX_CHECKS:
                            self._idle.append(worker)
                        else:
                            worker.end()
                        return reply
                if self._long.locked():
                    worker.end()
                else:
                    await self._long.acquire()
            except BaseException:
                worker.end()
                raise
        if worker.has_ended:  # it begins again, after those that have come before
            await self._long.acquire()
        try:
            if worker.has_ended:
                worker = await self._worker()
                worker.ask(message)
            with suppress(OSError):  # it has ended
                os.setpriority(os.PRIO_PROCESS, worker.pid, _NICE)
            return await worker.reply(None) or {}
        finally:
            worker.end()
            self._long.release()

    async def _worker(self) -> "_Worker":
        if self._idle:
            return self._idle.pop()
        async with self._forking:
            for _ in range(2):
                try:
                    pid, channel = await asyncio.to_thread(self._fork)
                    streams = await asyncio.open_connection(sock=channel, limit=_MAX_REPLY)
                    return _Worker(pid, *streams)
                except (OSError, ValueError) as error:
                    self._stop_server()
                    log.warning("the process that starts workers is replaced: %r", error)
        raise Unavailable("no process that checks answers can be started", retry_after=1)

    def _fork(self) -> tuple[int, socket.socket]:
        orders = self._start_server() if self._server is None else self._server[1]
        channel, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(orders, [b"."], [theirs.fileno()])
        return int(orders.recv(20)), channel  # empty if it has ended

    def _start_server(self) -> socket.socket:
        """Start the process that has imported the libraries, of which workers are forked."""
        orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arguments = [json.dumps(sys.path), *map(str, (theirs.fileno(), os.getpid(), self._memory))]
        with theirs:
            process = subprocess.Popen(  # noqa: S603 - a fixed command
                [sys.executable, "-P", "-c", _PROGRAM, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=_ENVIRONMENT,
            )
        self._server = process, orders
        orders.settimeout(_START_S)
        if not orders.recv(20):
            raise ConnectionError(f"it {describe_end(process.wait())}")
        return orders

    def _stop_server(self) -> None:
        if self._server is not None:
            process, orders = self._server
            orders.close()
            process.kill()
            process.wait()
        self._server = None

    async def aclose(self) -> None:
        for worker in self._idle:
            worker.end()
        self._idle.clear()
        self._stop_server()


class _Worker:
    """A worker process, which checks one answer at a time."""

    def __init__(
        self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.pid = pid
        self._reader = reader
        self._writer = writer
        self._checkers: dict[str, str] = {}
        self._cpu_before = 0.0
        self.checks = 0
        self.has_ended = False

    def ask(self, message: bytes) -> None:
        self.checks += 1
        self._cpu_before = self._cpu_clock()
        self._checkers = {}
        self._writer.write(message)

    async def reply(self, seconds: float | None) -> dict[str, Any] | None:
        """Return its reply, None if it takes longer; raise _Killed if something else ended it."""
        reply: dict[str, Any] = {}
        try:
            async with asyncio.timeout(seconds):
                while line := await self._reader.readline():
                    reply = json.loads(line)
                    if "interim" not in reply:
                        return {"checkers": self._checkers, **reply}
                    self._checkers = reply["interim"]
        except TimeoutError:
            return None
        except ConnectionError:
            pass
        status = self.end()
        if status in _LIMITS:
            return {"outcome": "too_complex", "checkers": self._checkers}
        if status == -signal.SIGKILL:
            raise _Killed
        raise Unavailable(f"a worker {describe_end(status)}", retry_after=1)

    @property
    def cpu_s(self) -> float:
        return self._cpu_clock() - self._cpu_before

    def _cpu_clock(self) -> float:
        try:
            return time.clock_gettime((~self.pid << 3) | 2)
        except OSError:  # it has ended
            return math.inf

    def end(self) -> int:
        """End it, if it has not ended by itself; return its status, negative for a signal."""
        if self.has_ended:
            return 0
        self.has_ended = True
        self._writer.close()
        os.kill(self.pid, signal.SIGKILL)  # no change if it has ended
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
