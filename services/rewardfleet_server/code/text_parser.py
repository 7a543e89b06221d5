"""Parsing of policies' texts, of which none holds up other requests."""

import asyncio
import contextvars
import itertools
import math
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from functools import partial
from queue import PriorityQueue
from typing import Literal, TypeVar, cast

from rewardfleet.wire.code import CritiqueJudgment
from rewardfleet.wire.errors import BackendFailed
from rewardfleet_server.system.child_process import MemoryFile, TaskLost, TaskProcess, TaskTooLarge

from .normal_form import LARGEST
from .normal_form.introspection import Uses
from .tests.chance import MENTIONS, chance_in
from .text_tasks import TASKS, encode_form, form_digest, run_task

T = TypeVar("T")

#: Characters per millisecond of CPU time, at worst: of a program that is normalized, of a text in
#: which a program or a judgment is sought.
_FORM_SPEED, _PROGRAM_SPEED, _JUDGMENT_SPEED = 200, 1_000, 5_000
#: Milliseconds of work that is done on the event loop: without a pause, and by turns.
_FREE_MS, _NOW_MS, _FORM_NOW_MS = 0.1, 2, 10
_QUICK_MS = 25  #: milliseconds of work that does not wait for longer one
#: CPU seconds of a normal form, and seconds until there is one. Then a program's key is its text.
_FORM_CPU_S, _FORM_S = 2.0, 5.0
_PATIENCE = 20  #: how many times as long as its own work a text lets shorter ones come first
_HANG_S = 60.0  #: seconds after which a process is taken to hang
#: Memory of a process, in addition to what it has at its start. 70 MB have been seen.
_MEMORY_BYTES = 2**28


class TextParser:
    """Parses what policies wrote: the shortest texts at once, the others in two child processes.

    CPython's parser and regular expressions hold the interpreter's lock, and a policy can write
    what takes them a second. One process is for what takes milliseconds, one for the rest; in each,
    short texts come before long ones.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._quick = _Lane("parses texts", nice=5)
        self._slow = _Lane("parses long texts", nice=10)

    async def program(self, text: str, called: Collection[str] = ()) -> str:
        """Return `extract_program` of a text; raise BackendFailed if the process failed."""
        ms = len(text) / _PROGRAM_SPEED
        return await self._parsed("program", f"{' '.join(called)}\n{text}", ms)

    async def judgment(self, critique: str) -> CritiqueJudgment | None:
        """Return `overall_judgment` of a critique; raise BackendFailed if the process failed."""
        found = await self._parsed("judgment", critique, len(critique) / _JUDGMENT_SPEED)
        return cast(CritiqueJudgment | None, found or None)

    async def form(self, program: str, tests: Uses | None) -> tuple[str, bool]:
        """Return `form_digest`, and whether it is that; else it is that of the text."""
        is_final = True
        if tests is not None:
            try:
                now, text = (partial(each, program, tests) for each in (form_digest, encode_form))
                return await self._analyzed("form", program, now, text), True
            except (TimeoutError, TaskLost):
                is_final = False
            except TaskTooLarge:
                pass
        return form_digest(program, None), is_final

    async def chance(self, program: str) -> str:
        """Return `chance_in`; of a program that takes too long, a word that may be one."""
        mentioned = MENTIONS.search(program)
        if mentioned is None:
            return ""
        try:
            now = partial(chance_in, program)
            return await self._analyzed("chance", program, now, lambda: program)
        except (TimeoutError, TaskLost, TaskTooLarge):
            return mentioned[0]

    async def _analyzed(
        self, task: str, program: str, now: Callable[[], str], text: Callable[[], str]
    ) -> str:
        """Return what a task finds in a program, within limits.

        Args:
            now: Does the task here.
            text: Returns what the task reads in the process.
        """
        if len(program) > LARGEST:
            raise TaskTooLarge
        ms = len(program) / _FORM_SPEED
        if ms <= _FORM_NOW_MS:
            return await self._now(ms, now)
        async with asyncio.timeout(_FORM_S):
            return await self._lane(ms).run(task, text(), ms, cpu_s=_FORM_CPU_S)

    def close(self) -> None:
        self._quick.close()
        self._slow.close()

    async def _now(self, ms: float, work: Callable[[], T]) -> T:
        """Do short work; between two works of this kind, others of the event loop get a turn."""
        if ms <= _FREE_MS:
            return work()
        async with self._turn:
            done = work()
            await asyncio.sleep(0)
        return done

    async def _parsed(self, task: Literal["program", "judgment"], text: str, ms: float) -> str:
        if ms <= _NOW_MS:
            return await self._now(ms, lambda: TASKS[task](text))
        try:
            return await self._lane(ms).run(task, text, ms)
        except TaskTooLarge:
            raise BackendFailed("a text takes too long to parse", retry_after=1) from None
        except TaskLost as error:
            raise BackendFailed(str(error), retry_after=1) from error

    def _lane(self, ms: float) -> "_Lane":
        return self._quick if ms <= _QUICK_MS else self._slow


class _Lane:
    """A process, and the thread that waits for it."""

    def __init__(self, label: str, *, nice: int) -> None:
        self._process = TaskProcess(label, run_task, memory=_MEMORY_BYTES, nice=nice)
        #: In the order of the first numbers; the second ones only break ties.
        self._queue: PriorityQueue[tuple[float, int, Future[str], Callable[[], str]]] = (
            PriorityQueue()
        )
        self._numbers = itertools.count()
        self._closed = False
        threading.Thread(target=self._work, name="parse-text", daemon=True).start()

    async def run(self, task: str, text: str, ms: float, *, cpu_s: float = 0.0) -> str:
        """Run a task of about `ms` in the process; see `TaskProcess.run`."""
        if self._closed:
            raise TaskLost("the service is shutting down")
        future: Future[str] = Future()
        work = partial(contextvars.copy_context().run, self._run, task, text, cpu_s)
        turn = time.monotonic() + _PATIENCE * ms / 1000
        self._queue.put((turn, next(self._numbers), future, work))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """End the process and the thread. What waits is lost."""
        self._closed = True
        self._process.close()
        self._queue.put((math.inf, next(self._numbers), Future(), str))

    def _work(self) -> None:
        turn = 0.0
        while turn < math.inf:
            turn, _, future, work = self._queue.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except Exception as error:  # noqa: BLE001 - it reaches the caller
                future.set_exception(error)

    def _run(self, task: str, text: str, cpu_s: float) -> str:
        source, result = MemoryFile(text.encode(errors="surrogatepass")), MemoryFile()
        self._process.run(task, source, result, seconds=_HANG_S, cpu_s=cpu_s)
        return result.read().decode(errors="surrogatepass")
