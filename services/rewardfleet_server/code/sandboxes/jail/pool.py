"""The sandbox `jail`: jails on this machine, each with a warm fork server.

There are more jails than cores, and a job needs both. While its program sleeps, its core is lent to
others. A program that wakes up is paused until it has a core again, so that those that compute are
never more than the cores for longer than it takes to notice. Checkers have jails of their own.
"""

import asyncio
import hashlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from pydantic import JsonValue

from rewardfleet.wire.errors import Unavailable
from rewardfleet.wire.score import Timing
from rewardfleet_server.code.packages import jail_python, warn_without_packages
from rewardfleet_server.code.sandboxes import Job, RunResult
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.extras import require
from rewardfleet_server.threads import run_in_thread
from rewardfleet_server.tracing import stage

from .isolation import FALLBACK_ORDER, IsolationLevel, isolation_spec
from .seccomp import compiled_filters
from .worker import JailUnavailable, PythonUnusable, Worker, WorkerConfig

log = logging.getLogger(__name__)

#: Jails for each core. Those beyond the first are started when programs sleep.
_JAILS_PER_CORE = 4


def build(settings: CodeSettings) -> "JailPool":
    """Start jails at the isolation level of the settings, or at the first one that works.

    Raises:
        ValueError: No level works on this machine, the interpreter or a module to preload cannot
            be used, or `--packages` cannot be installed.
    """
    python = jail_python(settings)
    require("server", "the sandbox jail", "pyseccomp")
    try:
        seccomp = compiled_filters()
    except RuntimeError as error:
        raise ValueError(
            f"the sandbox jail needs libseccomp: apt-get install libseccomp2 ({error})"
        ) from error
    warn_without_packages(settings, python)
    levels: tuple[IsolationLevel, ...] = (
        FALLBACK_ORDER if settings.isolation == "auto" else (settings.isolation,)
    )
    reasons = []
    for level in levels:
        try:
            spec = isolation_spec(level, python, (_JAILS_PER_CORE + 1) * settings.workers)
            config = WorkerConfig(spec, seccomp, tuple(settings.preload))
            pool = JailPool(config, settings.workers)
        except PythonUnusable as error:
            raise ValueError(str(error)) from error
        except (JailUnavailable, ValueError) as error:
            reasons.append(str(error))
            continue
        if reasons:
            log.warning("isolation is %s only: %s", level, "; ".join(reasons))
        return pool
    raise ValueError(
        f"programs cannot be isolated on this machine ({'; '.join(reasons)}). Install bubblewrap "
        "and allow user namespaces, or use a kernel with Landlock (5.13 or newer). On a machine "
        "where programs can do no harm, --isolation none-unsafe runs them without isolation"
    )


class Schedule:
    """Which jobs have a core and a jail. On the event loop only.

    Args:
        cores: How many jobs may use a core.
        workers: The jails for programs. The first ones are used first.
        checkers: The jails for checkers.
    """

    def __init__(self, cores: int, workers: Sequence[Worker], checkers: Sequence[Worker]) -> None:
        self._free_cores = cores
        self._idle = {False: [*reversed(workers)], True: [*reversed(checkers)]}
        self._checkers = set(checkers)
        self._woken: deque[CoreTurn] = deque()
        self._waiting: deque[tuple[bool, asyncio.Future[Worker]]] = deque()

    async def begin(self, *, is_checker: bool) -> Worker:
        """Wait for a core and a jail, and return the jail."""
        future: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
        self._waiting.append((is_checker, future))
        self._assign()
        try:
            return await future
        except asyncio.CancelledError:
            if not future.cancelled():  # it was assigned in the same moment
                self._idle[is_checker].append(future.result())
                self._free_core()
            raise

    def lend(self, turn: "CoreTurn") -> None:
        """Give the core of a job to another one."""
        turn.has_core = False
        self._free_core()

    def request(self, turn: "CoreTurn") -> None:
        """Give a job the next free core. It comes before jobs that have not begun."""
        self._woken.append(turn)
        self._assign()

    def end(self, worker: Worker, turn: "CoreTurn") -> None:
        """End a job: its jail, and its core if it has one, are free."""
        self._idle[worker in self._checkers].append(worker)
        if turn in self._woken:
            self._woken.remove(turn)
        if turn.has_core:
            self._free_core()
        else:
            self._assign()

    def _free_core(self) -> None:
        self._free_cores += 1
        self._assign()

    def _assign(self) -> None:
        while self._free_cores and self._woken:
            self._free_cores -= 1
            self._woken.popleft().grant()
        for waiting in list(self._waiting) if self._free_cores else ():
            is_checker, future = waiting
            if future.done():
                self._waiting.remove(waiting)
            elif self._free_cores and self._idle[is_checker]:
                self._waiting.remove(waiting)
                self._free_cores -= 1
                future.set_result(self._idle[is_checker].pop())


class CoreTurn:
    """The permit of one job; see `Turn`.

    Args:
        schedule: Grants it.
        timing: The time for which a program that woke up waits is added to its `queue`.

    Attributes:
        is_lent: See `Turn`.
        has_core: The same as `schedule` sees it.
    """

    def __init__(self, schedule: Schedule, timing: Timing) -> None:
        self.is_lent = False
        self.has_core = True
        self._schedule = schedule
        self._timing = timing
        self._loop = asyncio.get_running_loop()
        self._granted = threading.Event()
        self._cancelled = False

    def lend(self) -> None:
        """See `Turn`."""
        self.is_lent = True
        self._loop.call_soon_threadsafe(self._schedule.lend, self)

    def take(self) -> None:
        """See `Turn`."""
        with stage(self._timing, "queue"):
            self._granted.clear()
            if not self._cancelled:  # `cancel` after this ends the wait
                self._loop.call_soon_threadsafe(self._schedule.request, self)
                self._granted.wait()
        self.is_lent = False

    def grant(self) -> None:
        """Give the job a core."""
        self.has_core = True
        self._granted.set()

    def cancel(self) -> None:
        """See `Turn`."""
        self._cancelled = True
        self._granted.set()


class JailPool:
    """A sandbox of jails on this machine.

    Args:
        config: How to start the jails.
        count: How many programs may use a core at the same time.

    Raises:
        JailUnavailable: A jail does not start, or does not isolate.
    """

    def __init__(self, config: WorkerConfig, count: int) -> None:
        programs = [Worker(config) for _ in range(_JAILS_PER_CORE * count)]
        checkers = [Worker(config) for _ in range(count)]  # each is started by its first job
        self._workers = [*programs, *checkers]
        # The kernel ends a jail together with the thread that started it, so these threads live on.
        self._threads = ThreadPoolExecutor(len(self._workers), thread_name_prefix="jail")
        try:
            list(self._threads.map(Worker.probe, self._workers[:count]))
        except JailUnavailable:
            self._threads.shutdown(wait=True, cancel_futures=True)
            self._close()
            raise
        self._schedule = Schedule(count, programs, checkers)
        handshake = self._workers[0].handshake
        self._provenance: dict[str, JsonValue] = {
            "sandbox": "jail",
            "isolation": config.spec.level,
            "landlock": handshake["landlock"],
            "python": handshake["python"],
            "packages": _digest(repr((handshake["environment"], config.preload)).encode()),
            "seccomp": _digest(config.seccomp.supervisor + config.seccomp.run),
        }

    @property
    def provenance(self) -> Mapping[str, JsonValue]:
        return self._provenance

    @property
    def restarts(self) -> int:
        return sum(worker.restarts for worker in self._workers)

    async def run(self, job: Job, on_result: Callable[[RunResult], bool], timing: Timing) -> None:
        """See `Sandbox.run`."""
        with stage(timing, "queue"):
            worker = await self._schedule.begin(is_checker=job.is_checker)
        turn = CoreTurn(self._schedule, timing)
        worker.begin(turn)
        running = run_in_thread(self._threads, lambda: worker.run(job, on_result))
        # The worker is free when its thread is done, even if this task was cancelled before.
        running.add_done_callback(lambda _: self._schedule.end(worker, turn))
        try:
            with stage(None, "jail"):
                finished = await asyncio.shield(running)
        except asyncio.CancelledError:
            running.add_done_callback(lambda done: done.cancelled() or done.exception())
            if not running.done():  # otherwise the worker may have another job already
                worker.stop()
            raise
        except JailUnavailable as error:
            raise Unavailable(f"no jail is available: {error}", retry_after=1) from error
        if not finished:  # the program did not fail: the rest of its runs did not take place
            raise Unavailable("the service is shutting down", retry_after=1)

    async def aclose(self) -> None:
        """End all jails."""
        for worker in self._workers:
            worker.stop()
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)
        self._close()

    def _close(self) -> None:
        for worker in self._workers:
            worker.close()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
