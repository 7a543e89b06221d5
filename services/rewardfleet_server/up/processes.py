"""The processes of a fleet: started, watched, started again, ended."""

import asyncio
import logging
import math
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from logging.handlers import RotatingFileHandler
from pathlib import Path

from rewardfleet_server.system.child_process import describe_end, end_with_parent
from rewardfleet_server.system.listener import CANNOT_BE_BOUND

from . import timeouts
from .replicas import Replica, watch
from .settings import PlannedReplica

log = logging.getLogger(__name__)

#: The log file of a replica, in bytes; one older file is kept.
_LOG_BYTES = 10 * 2**20
_LAST_LINES = 20
#: How often a replica is moved to another port because its own is taken.
_MAX_PORTS = 5


class FleetFailed(Exception):
    """A replica cannot be started with its settings."""


class ReplicaProcess:
    """The process of one replica, which is shared with the gateway and has peers of its service."""

    def __init__(
        self, planned: PlannedReplica, replica: Replica, log_file: Path, peers: Sequence[Replica]
    ) -> None:
        self.planned, self.replica, self._peers = planned, replica, peers
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self.last_line = ""  #: of its log; empty if there is none
        self._log = RotatingFileHandler(log_file, maxBytes=_LOG_BYTES, backupCount=1, delay=True)
        self._process: asyncio.subprocess.Process | None = None

    async def run(self) -> None:
        """Run the replica, and restart it whenever it ends, until this is cancelled.

        Raises FleetFailed if it ends before it was ready for the first time.
        """
        backoff, ports_left = timeouts.MIN_BACKOFF_SECONDS, _MAX_PORTS
        try:
            while True:
                self.replica.ready_since = math.inf
                status = await self._run_once()
                self.replica.is_ready = False
                self.replica.last_failure = reason = describe_end(status)
                is_taken = any(CANNOT_BE_BOUND in line for line in self._last_lines)
                # By another process, after the port was found to be free.
                if is_taken and self.planned.has_free_port and ports_left > 0:
                    ports_left -= 1
                    self.planned = self.planned.on_another_port()
                    self.replica.url = f"http://127.0.0.1:{self.planned.settings.port}"
                    self._last_lines.clear()
                    continue
                if not self.replica.has_been_ready.is_set():
                    lines = "\n".join(self._last_lines)
                    raise FleetFailed(f"{self.planned.name} {reason}:\n{lines}")
                if time.monotonic() - self.replica.ready_since > timeouts.STABLE_SECONDS:
                    backoff, pause = timeouts.MIN_BACKOFF_SECONDS, 0.0
                else:
                    pause, backoff = backoff, min(2 * backoff, timeouts.MAX_BACKOFF_SECONDS)
                log.warning("%s %s; it is restarted in %g s", self.planned.name, reason, pause)
                await asyncio.sleep(pause)
                self.replica.restarts += 1
        finally:
            await self._stop()
            self._log.close()

    async def _run_once(self) -> int:
        command = [sys.executable, "-m", "rewardfleet_server", "serve", self.planned.service]
        self._process = process = await asyncio.create_subprocess_exec(
            *command,
            *self.planned.flags,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for this process, which ends the others
            preexec_fn=partial(end_with_parent, os.getpid(), signal.SIGTERM),
        )
        checks = asyncio.create_task(watch(self.replica, self._peers, self._kill))
        try:
            await self._copy_log(process)
            return await process.wait()
        finally:
            checks.cancel()

    async def _copy_log(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None  # noqa: S101 - a pipe was requested
        rest, chunk = b"", b"-"
        while chunk:
            chunk = await process.stdout.read(2**16)
            *lines, rest = (rest + chunk).split(b"\n")
            if rest and (not chunk or len(rest) > 2**20):  # the last one, or not a line of a log
                lines, rest = [*lines, rest], b""
            for line in lines:
                self.last_line = line.decode(errors="replace")
                self._last_lines.append(self.last_line)
                self._log.emit(logging.makeLogRecord({"msg": self.last_line}))

    def _kill(self) -> None:
        log.warning("%s does not answer and is killed", self.planned.name)
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def _stop(self) -> None:
        """End the process: ask, and after the time that its requests may take, kill it."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        timeout = self.planned.settings.shutdown_timeout_s + timeouts.END_SECONDS
        drain = asyncio.create_task(self._copy_log(process))  # a full pipe would block it
        try:
            async with asyncio.timeout(timeout):
                await process.wait()
        except (TimeoutError, asyncio.CancelledError):
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        finally:
            drain.cancel()
