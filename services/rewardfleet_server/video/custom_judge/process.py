"""The process in which a judge of the user's runs: started, watched, killed and restarted.

A thread cannot be stopped, but a process can: if all threads of a judge are at work on calls for
which no caller waits any more, the process is killed, and a new one is started.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

import msgspec
from pydantic import JsonValue
from pydantic_core import PydanticSerializationError, to_json

from rewardfleet.wire.errors import BackendFailed, Problem, RewardFleetError, TooLarge, Unavailable
from rewardfleet_server.system.child_process import describe_end
from rewardfleet_server.video.judges import BackendKwargs, Judgment

from . import child
from .child import LENGTH, MAX_ANSWER_BYTES, MAX_BYTES

log = logging.getLogger(__name__)
#: What judges print. It is logged at any `log_level`, as standard error would be.
_output = logging.getLogger(f"{__name__}.output")
_output.setLevel(logging.INFO)

#: Seconds that a full pool of abandoned calls has at least and at most to answer one of them.
_MIN_PATIENCE, _MAX_PATIENCE = 1.0, 60.0
#: Seconds before a process is started in place of one that ended soon after its start: none at
#: first, then doubled up to a maximum.
_MIN_BACKOFF, _MAX_BACKOFF = 0.5, 30.0
_STABLE_SECONDS = 60.0  #: a process that ran for so many seconds is restarted at once
#: The longest that a restart may take: so many times as long as the first start, but at least so
#: many seconds. The first start has no limit: it may download a model.
_RESTART_FACTOR, _MIN_RESTART_SECONDS = 10, 60.0
#: Seconds for the last answers of a process that has ended, and for its end once it is killed.
_DRAIN_SECONDS, _KILL_SECONDS = 0.2, 2.0
_BUFFER_BYTES = 4 * 2**20  #: bytes of answers that are buffered
#: What reading a message raises if the process has ended, or wrote something else.
_CONNECTION_ENDED = (asyncio.IncompleteReadError, ConnectionError, ValueError, msgspec.MsgspecError)
_MAX_LINE = 64 * 1024  #: the longest line of a judge's output, in bytes


@dataclass(frozen=True)
class JudgeOrder:
    name: str
    factory: str  #: `module:function`
    settings: Mapping[str, JsonValue]  #: the attributes of the factory's argument
    threads: int  #: how many calls a judge without coroutines works on at the same time
    path: list[str]  #: where modules are searched
    log_level: str  #: the level of the judge's own log lines


class JudgeAnswer(msgspec.Struct):
    """A message of the judge's process: it is ready (number 0), or the result of a call."""

    id: int
    is_async: bool = False
    score: float | None = None
    text: str = ""
    error: str | None = None
    traceback: str = ""
    problem: dict[str, Any] | None = None


_decode_answer = msgspec.json.Decoder(JudgeAnswer).decode


class CustomJudge:
    """Calls a judge in a process of its own; ValueError if the factory failed.

    Its scores are not cached, because it is unknown what they depend on.
    """

    deterministic = False

    def __init__(self, order: JudgeOrder) -> None:
        self.provenance: Mapping[str, JsonValue] = {"judge": "custom", "factory": order.factory}
        self._order = order
        self._label = f"judge {order.name}"
        started = time.monotonic()
        self._child = _JudgeChild(order)
        try:
            ready = self._child.started(None)
        except ValueError as error:
            raise ValueError(f"--custom-backend-factory {order.factory}: {error}") from error
        longest_s = _RESTART_FACTOR * (time.monotonic() - started)
        self._max_restart_s = max(longest_s, _MIN_RESTART_SECONDS)
        # A judge of coroutines takes as many calls as the service admits.
        self._slots = asyncio.Semaphore(sys.maxsize if ready.is_async else order.threads)
        self._problem: str | None = f"{self._label} has not started"  # why it is not running
        self._writer: asyncio.StreamWriter | None = None
        self._calls: dict[int, asyncio.Future[JudgeAnswer]] = {}
        self._last_number = 0
        self._longest_s = 0.0
        self._kill_timer: asyncio.TimerHandle | None = None
        self._killed_because: str | None = None
        self.restarts = 0  #: how many processes were started in place of another one
        self.abandoned = 0  #: calls at work for which no caller waits any more
        self.failure: str | None = None  #: why no process can be started ever again, or None

    @property
    def outage(self) -> str | None:
        """Why it can take no call now, or None."""
        if self._problem is None and self.abandoned >= self._order.threads:
            return (
                f"{self._label} hangs: {self.abandoned} calls are at work for which no caller "
                "waits any more"
            )
        return self._problem

    def check_options(self, backend_kwargs: BackendKwargs) -> None:
        """Accept any option: they are passed to `score_video`."""

    async def judge_file(
        self,
        task_text: str,
        path: str,
        nframes: int,
        max_pixels: int,
        backend_kwargs: BackendKwargs,
    ) -> Judgment:
        """Call `score_video`.

        Raises:
            BackendFailed: It raised an exception, or the process died during the call.
            RewardFleetError: It raised this failure.
            TooLarge: The arguments are too large.
            Unavailable: The process is being restarted.
        """
        answer = await self._call(task_text, path, nframes, max_pixels, dict(backend_kwargs))
        if answer.problem is not None:
            raise RewardFleetError.from_problem(Problem.model_validate(answer.problem))
        if answer.error is not None:
            log.error("%s failed: %s", self._label, f"{answer.error}\n{answer.traceback}".rstrip())
            raise BackendFailed(f"{self._label} failed: {answer.error}"[:500])
        return Judgment(answer.score, answer.text)

    async def _call(self, *arguments: JsonValue) -> JudgeAnswer:
        self._check()
        await self._slots.acquire()
        try:
            self._check()
            self._last_number = number = self._last_number + 1
            self._send({"id": number, "arguments": arguments})
        except BaseException:
            self._slots.release()
            raise
        call: asyncio.Future[JudgeAnswer] = asyncio.get_running_loop().create_future()
        self._calls[number] = call
        call.add_done_callback(lambda _: self._slots.release())
        started = time.monotonic()
        try:
            answer = await asyncio.shield(call)
        except asyncio.CancelledError:
            if not call.done():
                self._abandon(number, call)
            raise
        self._longest_s = max(self._longest_s, time.monotonic() - started)
        return answer

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Connect to the process and restart it whenever it ends; kill it at the end."""
        reader = await self._connect()
        self._problem = None
        supervising = asyncio.create_task(self._supervise(reader))
        try:
            yield
        finally:
            self._problem = "the service is shutting down"
            supervising.cancel()
            await asyncio.wait({supervising})
            await self._end(_KILL_SECONDS)

    def _check(self) -> None:
        if (reason := self.outage) is not None:
            raise Unavailable(reason, retry_after=1)

    def _send(self, message: Mapping[str, Any]) -> None:
        content = _encoded(message)
        if len(content) > MAX_BYTES:
            raise TooLarge(f"{self._label} takes at most {MAX_BYTES} bytes of arguments")
        assert self._writer is not None  # noqa: S101 - connected while it runs
        self._writer.write(LENGTH.pack(len(content)) + content)

    # Abandoned calls

    def _abandon(self, number: int, call: asyncio.Future[JudgeAnswer]) -> None:
        self._count_abandoned(1)
        call.add_done_callback(lambda _: self._count_abandoned(-1))
        if self._problem is None:
            self._send({"id": number, "cancel": True})

    def _count_abandoned(self, change: int) -> None:
        """Count calls, and start or stop the time after which a full pool is killed.

        A pool may be full because a trainer ended. It gets as long as a call can take, so that a
        model is not loaded again for nothing.
        """
        self.abandoned += change
        is_full = self._problem is None and self.abandoned >= self._order.threads
        if not is_full and self._kill_timer is not None:
            self._kill_timer.cancel()
            self._kill_timer = None
        elif is_full and self._kill_timer is None:
            seconds = min(max(self._longest_s, _MIN_PATIENCE), _MAX_PATIENCE)
            self._kill_timer = asyncio.get_running_loop().call_later(seconds, self._kill_hung)

    def _kill_hung(self) -> None:
        self._killed_because = f"it hung: no caller waited for its {self.abandoned} calls"
        self._child.kill()

    # The process

    async def _connect(self) -> asyncio.StreamReader:
        reader, self._writer = await asyncio.open_unix_connection(
            sock=self._child.connection, limit=_BUFFER_BYTES
        )
        return reader

    async def _supervise(self, reader: asyncio.StreamReader) -> None:
        backoff, started = 0.0, time.monotonic()
        try:
            reason = await self._answer_calls(reader)
            while True:
                if time.monotonic() - started > _STABLE_SECONDS:
                    backoff = 0.0
                self._problem = f"{self._label} is restarted in {backoff:g} s: {reason}"
                log.error(self._problem)
                await asyncio.sleep(backoff)
                backoff = min(max(2 * backoff, _MIN_BACKOFF), _MAX_BACKOFF)
                self._problem = f"{self._label} is restarting: {reason}"
                self.restarts += 1
                started = time.monotonic()
                try:
                    self._child = _JudgeChild(self._order)
                    # If this is cancelled, the process is killed, which ends the thread's wait.
                    await asyncio.to_thread(self._child.started, self._max_restart_s)
                    reader = await self._connect()
                except (ValueError, OSError) as error:
                    reason = str(error)
                else:
                    log.info("%s runs again", self._label)
                    reason = await self._answer_calls(reader)
        except Exception as error:
            log.exception("the process of %s cannot be supervised", self._label)
            self.failure = f"{self._label}: {type(error).__name__}: {error}"

    async def _answer_calls(self, reader: asyncio.StreamReader) -> str:
        """Hand out answers until the process ends; return why it did."""
        self._problem = self._killed_because = None
        exited = asyncio.wrap_future(self._child.exited)
        reading = asyncio.create_task(self._read(reader))
        try:
            either: set[asyncio.Future[Any]] = {reading, exited}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({reading}, timeout=_DRAIN_SECONDS)  # its last answers
        finally:
            reading.cancel()
        # First of all: calls that wait for a slot must not be sent to it.
        self._problem = f"{self._label} is restarting"
        status = await self._end(None)
        reason = self._killed_because or f"its process {describe_end(status)}"
        for call in self._calls.values():
            if not call.done():
                # Unless it was killed, any of the calls may have been the reason.
                call.set_exception(
                    Unavailable(f"{self._label} was killed: {reason}", retry_after=1)
                    if self._killed_because
                    else BackendFailed(f"{self._label} died: {reason}")
                )
                call.exception()  # of an abandoned call: nobody else retrieves it
        self._calls.clear()
        return reason

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Hand out answers until the connection ends."""
        with contextlib.suppress(*_CONNECTION_ENDED):
            while True:
                (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                if size > MAX_ANSWER_BYTES:  # not a message of a judge
                    return
                answer = _decode_answer(await reader.readexactly(size))
                call = self._calls.pop(answer.id, None)
                if call is not None and not call.done():
                    call.set_result(answer)

    async def _end(self, seconds: float | None) -> int | None:
        """Kill the process; return its status, or None if it does not end within that time."""
        self._child.kill()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        exited = asyncio.wrap_future(self._child.exited)
        done, _ = await asyncio.wait({exited}, timeout=seconds)
        return exited.result() if done else None


class _JudgeChild:
    """One process. It ends when this object does."""

    def __init__(self, order: JudgeOrder) -> None:
        self.exited: Future[int] = Future()  #: its exit status, once it has ended
        self.exited.set_running_or_notify_cancel()  # it cannot be cancelled
        self.connection, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-u", "-P", "-m", child.__name__]
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [*command, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C is for the service; all of it is killed at once
            )
        process, lock = self._process, threading.Lock()
        self.kill = partial(_kill, process, lock)  #: kills it and those that it started
        weakref.finalize(self, self.kill)
        self._label = f"judge {order.name}"
        self._output_thread = self._run(_copy_output, self._label, process.stdout)
        self._run(_reap, process, lock, self.exited)
        content = _encoded(msgspec.to_builtins(order))
        with contextlib.suppress(OSError):  # it has ended already
            self.connection.sendall(LENGTH.pack(len(content)) + content)

    def _run(self, work: Callable[..., None], *arguments: object) -> threading.Thread:
        # A daemon, as it may not delay the end of the service.
        thread = threading.Thread(target=work, args=arguments, name=self._label, daemon=True)
        thread.start()
        return thread

    def started(self, timeout_s: float | None) -> JudgeAnswer:
        """Wait until it is ready; ValueError if the factory fails or takes longer. Blocks."""
        self.connection.settimeout(timeout_s)
        try:
            with self.connection.makefile("rb") as file:
                (size,) = LENGTH.unpack(file.read(LENGTH.size))
                ready = _decode_answer(file.read(min(size, MAX_ANSWER_BYTES)))
            if ready.error is None:
                return ready
            log.error("%s cannot be built\n%s", self._label, ready.traceback.rstrip())
            reason = ready.error
        except Exception as error:  # noqa: BLE001 - it has ended, or wrote something else
            is_late = isinstance(error, TimeoutError)
            reason = f"it was not ready within {timeout_s or 0:.0f} s" if is_late else ""
        self.kill()
        status = self.wait()
        raise ValueError(reason or f"its process {describe_end(status)} before it was ready")

    def wait(self) -> int:
        """Wait until it has ended and its output is logged; close the connection. Blocks."""
        self.connection.close()
        status = self.exited.result()
        self._output_thread.join(_KILL_SECONDS)
        return status


def _kill(process: subprocess.Popen[bytes], lock: threading.Lock) -> None:
    with lock, contextlib.suppress(ProcessLookupError):
        if process.returncode is None:  # else its number may be that of another process
            os.killpg(process.pid, signal.SIGKILL)


def _reap(process: subprocess.Popen[bytes], lock: threading.Lock, exited: Future[int]) -> None:
    """Wait for the end of a process; then kill what it has left behind."""
    with contextlib.suppress(ChildProcessError):  # its status was read elsewhere
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    _kill(process, lock)
    with lock:
        status = process.wait()
    exited.set_result(status)


def _copy_output(label: str, output: IO[bytes]) -> None:
    with output:
        while line := output.readline(_MAX_LINE):
            # Of a progress bar, which returns to the start of its line, the last state.
            text = line.rstrip(b"\r\n").rpartition(b"\r")[2].decode(errors="replace")
            if text.strip():
                _output.info("%s: %s", label, text)


def _encoded(message: Mapping[str, Any]) -> bytes:
    try:
        return to_json(message, inf_nan_mode="constants")
    except PydanticSerializationError:  # the name of a file that is not UTF-8
        return json.dumps(message).encode()
