"""The sandbox `jail`: jails on this machine, each with a warm fork server.

There are more jails than cores, and a job needs both. While its program sleeps, its core is lent to
others, and a job that has not taken long gets the core of one that has; see `Schedule`. A program
without a core is paused until it has one, so that those that compute are never more than the cores
for longer than it takes to notice. Checkers have jails of their own.

A job waits for memory as well, and has it from its beginning to its end; see `memory`.
"""

import asyncio
import hashlib
import itertools
import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from operator import attrgetter

from pydantic import JsonValue

from rewardfleet.wire.errors import Unavailable
from rewardfleet.wire.optional_imports import require
from rewardfleet.wire.score import Timing
from rewardfleet_server.code.running.packages import jail_python, warn_without_packages
from rewardfleet_server.code.sandboxes import Job, RunResult
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.observe.tracing import stage
from rewardfleet_server.system.threads import run_in_thread

from .guest.descriptors import LONG_S
from .isolation import SCRATCH_BYTES, isolation_spec
from .memory import Capacity, Memory, Share, run_bytes
from .run_files import has_tests_apart
from .seccomp import compiled_filters
from .worker import JailUnavailable, Killed, PythonUnusable, Worker, WorkerConfig

log = logging.getLogger(__name__)

#: Jails for each core. Those beyond the first are started when programs sleep, or take long.
_JAILS_PER_CORE = 4
#: Jobs for each jail from which on so many wait that they only begin in order.
_FULL_FROM = 4
#: Characters of a program from which on its job is long from the beginning: compiling it takes ms.
_LONG_PROGRAM = 10_000
#: Seconds after which a job that was paused comes before those that have not begun, and for which
#: it then has a core.
_LONGEST_PAUSE_S, _QUANTUM_S = 1.0, 0.025
#: Jails import what so many of the last programs that import a package do.
_POPULAR, _RECENT = 3, 200
_IMPORT = re.compile(r"^(?:from|import)[ \t]+([\w.]+)", re.MULTILINE)


def build(settings: CodeSettings) -> "JailPool":
    """Start jails at the isolation level of the settings, or at the first one that works.

    Raises:
        ValueError: No level works on this machine, the interpreter or a module to preload cannot
            be used, `--packages` cannot be installed, or there is too little memory.
    """
    check_memory(settings)
    python, levels = jail_python(settings), settings.isolation_levels
    require("server", "the sandbox jail", "pyseccomp")
    try:
        filters = {each: compiled_filters(sets_times=each == "bubblewrap") for each in levels}
    except RuntimeError as error:
        raise ValueError(
            f"the sandbox jail needs libseccomp: apt-get install libseccomp2 ({error})"
        ) from error
    warn_without_packages(settings, python)
    reasons = []
    for level in levels:
        try:
            spec = isolation_spec(level, python, (_JAILS_PER_CORE + 1) * settings.workers)
            config = WorkerConfig(spec, filters[level], tuple(settings.preload))
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


def check_memory(settings: CodeSettings) -> Capacity:
    """Return how much memory there is.

    Raises:
        ValueError: It is too little for one program per worker.
    """
    capacity = Capacity.here()
    is_given = "max_memory_mb" in settings.model_fields_set
    capacity.check(settings.workers, settings.max_memory_mb if is_given else None)
    return capacity


class Schedule:
    """Which jobs have a core, memory and a jail. On the event loop only.

    A job is long once its runs have used `LONG_S` of CPU time, or one has slept, or if its program
    is. Short jobs come first, so that long ones hardly delay them:

    - A short job gets the core of a long one, which is paused and gets the next one that is left.
      After `_LONGEST_PAUSE_S` it comes first, and keeps its core for `_QUANTUM_S`; one core is left
      to short ones.
    - Long jobs leave jails and memory to short ones. A job that becomes long when others have all
      that is for these is stopped, and begins again when there is room; its run is repeated.

    If very many jobs wait, each would wait for others in any case. Then they begin in order, and
    none is paused for another one.
    """

    def __init__(
        self,
        cores: int,
        memory: Memory,
        workers: Sequence[Worker],
        checkers: Sequence[Worker],
        threads: ThreadPoolExecutor,
    ) -> None:
        self._cores = self._free_cores = cores  #: how many jobs may use one
        self._memory = memory
        self._jails = len(workers)
        self._workers = [*workers, *checkers]
        self._threads = threads
        self._recent: deque[frozenset[str]] = deque(maxlen=_RECENT)
        self._idle = {False: [*reversed(workers)], True: [*reversed(checkers)]}
        self._new: deque[CoreTurn] = deque()
        self._stopped: deque[CoreTurn] = deque()
        self._woken: list[CoreTurn] = []
        self._begun: set[CoreTurn] = set()

    async def begin(self, turn: "CoreTurn") -> Worker:
        """Wait for a core, memory and a jail, and return the jail."""
        turn.begins = asyncio.get_running_loop().create_future()
        queue = self._stopped if turn.is_long else self._new
        queue.append(turn)
        self._assign()
        try:
            return await turn.begins
        except asyncio.CancelledError:
            if turn in self._begun:  # in the same moment
                self.end(turn)
            else:
                queue.remove(turn)
                self._memory.forget(turn.share)
                self._assign()
            raise

    def take_long(self, turn: "CoreTurn") -> None:
        """Let others come before a job, and have its core if it sleeps."""
        turn.is_long = True
        if turn.is_lent:
            self._release(turn)
        self._assign()
        self._start_ahead()

    def request(self, turn: "CoreTurn") -> None:
        """Give a core to a job that has none."""
        self._woken.append(turn)
        self._assign()

    def end(self, turn: "CoreTurn") -> None:
        """End a job: its jail, its memory, and its core if it has one, are free."""
        idle = self._idle[turn.is_checker]
        # One whose jail could not be started is the last to be used again.
        idle.insert(len(idle) if turn.worker.has_started else 0, turn.worker)
        self._memory.give_back(turn.share)
        self._release(turn)
        self._begun.remove(turn)
        if turn in self._woken:
            self._woken.remove(turn)
        self._assign()

    def _assign(self) -> None:
        self._grant()
        while self._short_one_waits() and (paused := self._last_that_may_be_paused()):
            self._release(paused)
            paused.worker.pause()
            self._grant()
        long = self._long
        while long and not self._may_be_long(long):  # the last ones of too many
            long.pop().stop()

    def _grant(self) -> None:
        begin, resume = self._begin, self._resume
        while self._free_cores and (
            self._grant_urgent() or begin(self._new) or resume() or begin(self._stopped)
        ):
            pass

    def _grant_urgent(self) -> bool:
        """Give a core to a job that has had none for long, unless these keep all cores but one."""
        keeping = sum(turn.has_core and turn.keeps_core for turn in self._begun)
        may_keep = keeping < max(self._cores - 1, 1) or self._is_full
        return may_keep and (self._resume(urgent=True) or self._begin(self._stopped, urgent=True))

    def _resume(self, *, urgent: bool = False) -> bool:
        turn = min(self._woken, key=attrgetter("number"), default=None)
        if turn is None or (urgent and not (self._is_full or turn.has_waited_long)):
            return False
        self._woken.remove(turn)
        self._take(turn, urgent=urgent)
        turn.granted.set()
        return True

    def _begin(self, queue: "deque[CoreTurn]", *, urgent: bool = False) -> bool:
        for turn in queue:
            if turn.begins.done() or (urgent and not turn.has_waited_long):  # its task is cancelled
                continue
            if self._has_jail(turn) and self._memory.take(turn.share):
                queue.remove(turn)
                self._take(turn, urgent=urgent)
                self._begun.add(turn)
                turn.begin(self._take_jail(turn))
                if turn.is_long:
                    self._start_ahead()
                return True
        return False

    def _take_jail(self, turn: "CoreTurn") -> Worker:
        """Take the idle jail that imports most of what a program does, and nothing else.

        One that imports nothing may begin to, as long as fewer than there are cores do.
        """
        idle, modules = self._idle[turn.is_checker], turn.modules
        jail = max(idle[::-1], key=lambda each: (each.modules <= modules, len(each.modules)))
        if modules and modules not in jail.config.not_preloaded:
            self._recent.append(modules)
            if not jail.modules and self._recent.count(modules) >= _POPULAR:
                others = {each for each in self._workers if each.modules}
                needed = {each for each in others if self._recent.count(each.modules) >= _POPULAR}
                if len(needed) < self._cores:
                    jail = next(filter((others - needed).__contains__, idle), jail)
                    jail.modules = modules
        jail.modules &= modules
        idle.remove(jail)
        return jail

    def _take(self, turn: "CoreTurn", *, urgent: bool) -> None:
        self._free_cores -= 1
        turn.has_core, turn.since = True, time.monotonic()
        if urgent and self._new:
            turn.keeps_core_until = turn.since + _QUANTUM_S
            asyncio.get_running_loop().call_later(_QUANTUM_S, self._assign)

    def _release(self, turn: "CoreTurn") -> None:
        if turn.has_core:
            self._free_cores += 1
            turn.has_core, turn.since = False, time.monotonic()

    @property
    def _is_full(self) -> bool:
        """Whether so many jobs wait that they begin in order."""
        return len(self._new) > _FULL_FROM * self._jails

    def _has_jail(self, turn: "CoreTurn") -> bool:
        has_room = turn.is_checker or not turn.is_long or self._may_be_long([*self._long, turn])
        return bool(self._idle[turn.is_checker]) and has_room

    def _short_one_waits(self) -> bool:
        """Return whether a short job waits only for a core that another one may give up."""
        waiting = [] if self._is_full else [each for each in self._new if not each.begins.done()]
        return any(self._has_jail(turn) and self._memory.has(turn.share) for turn in waiting)

    def _last_that_may_be_paused(self) -> "CoreTurn | None":
        using = [each for each in self._begun if each.has_core and each.is_long]
        may_be_paused = [each for each in using if not each.keeps_core]
        return max(may_be_paused, key=attrgetter("number"), default=None)

    @property
    def _long(self) -> "list[CoreTurn]":
        """The long jobs that have begun, in order."""
        long = [each for each in self._begun if each.is_long and not each.is_checker]
        return sorted([each for each in long if not each.is_stopped], key=attrgetter("number"))

    def _may_be_long(self, turns: "Sequence[CoreTurn]") -> bool:
        taken = sum(turn.share.size for turn in turns)
        has_memory = len(turns) <= self._cores or taken <= self._memory.total / 2
        return has_memory and len(turns) <= self._jails - self._cores

    def _start_ahead(self) -> None:
        """Start the next jail before a short job needs it, as a long job keeps its own."""
        idle = self._idle[False]
        if not idle or idle[-1].has_started:
            return
        try:
            starting = run_in_thread(self._threads, idle[-1].start)
        except RuntimeError:  # the service is shutting down
            return
        worker = idle.pop()

        def is_idle(started: asyncio.Future[None]) -> None:
            failed = started.cancelled() or started.exception()  # the job that gets it says why
            idle.insert(0 if failed else len(idle), worker)
            self._assign()

        starting.add_done_callback(is_idle)


class CoreTurn:
    """The permit of one job to have a jail and a core.

    The thread of its worker calls `needs_core`, `take_long`, `lend` and `take`. All else but
    `cancel` is called on the event loop.
    """

    _numbers = itertools.count()

    def __init__(self, schedule: Schedule, share: Share, timing: Timing, job: Job) -> None:
        self.share = share
        self.is_checker = job.is_checker
        self.number = next(self._numbers)  #: the order in which jobs came
        self.begins: asyncio.Future[Worker]  #: gets the jail, while it waits to begin
        self.modules = frozenset[str]()  #: those that its program imports, of installed packages
        self.has_core = self.is_stopped = False  #: it is to begin again if it was stopped
        #: Whether it has used a core for long, or has slept, or its program is long.
        self.is_long = len(job.program) > _LONG_PROGRAM
        self.is_lent = False  #: whether others may have its core, as it sleeps
        self.keeps_core_until = 0.0  #: until when it is not paused for another one
        self.since = time.monotonic()  #: since when it has a core, or has none (`time.monotonic`)
        self.granted = threading.Event()  #: set when it has a core again
        self._schedule = schedule
        self._timing = timing  #: the time of pauses is added to its `queue`
        self._loop = asyncio.get_running_loop()
        self._cancelled = False

    @property
    def keeps_core(self) -> bool:
        """Whether it is not paused for another one now."""
        return time.monotonic() < self.keeps_core_until

    @property
    def has_waited_long(self) -> bool:
        """Whether it has had no core for long."""
        return not self.has_core and time.monotonic() - self.since >= _LONGEST_PAUSE_S

    @property
    def needs_core(self) -> bool:
        """Whether others may use the core, because the program sleeps or must pause for them."""
        return self.is_lent or not self.has_core

    def begin(self, worker: Worker) -> None:
        self.is_stopped = self.is_lent = self._cancelled = False
        self.worker = worker  #: the jail, once it has begun
        self.begins.set_result(worker)

    def stop(self) -> None:
        """Stop the job, so that it begins again later."""
        self.is_stopped = True
        self.worker.stop()

    def take_long(self) -> None:
        """Note that a run takes long, so that others may come first."""
        self._loop.call_soon_threadsafe(self._schedule.take_long, self)

    def lend(self) -> None:
        """Let others use the core."""
        self.is_lent = True
        self.take_long()

    def take(self) -> None:
        """Wait for a core again, until `cancel`."""
        with stage(self._timing, "queue"):
            self.granted.clear()
            if not self._cancelled:  # `cancel` after this ends the wait
                self._loop.call_soon_threadsafe(self._schedule.request, self)
                self.granted.wait()
        self.is_lent = False

    def cancel(self) -> None:
        """End the wait, from any thread."""
        self._cancelled = True
        self.granted.set()


class JailPool:
    """A sandbox of jails on this machine.

    Args:
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
        self._is_closing = False
        self._memory = Memory(Capacity.here().of_programs)
        self._writable = len(config.spec.writable) * SCRATCH_BYTES
        self._schedule = Schedule(count, self._memory, programs, checkers, self._threads)
        handshake = self._workers[0].handshake
        self._importable = frozenset(() if config.preload else handshake["environment"])
        #: Whether the kernel counts how long programs wait for a core.
        self.counts_delays: bool = handshake["counts_delays"]
        self.provenance: Mapping[str, JsonValue] = {
            "sandbox": "jail",
            "isolation": config.spec.level,
            "landlock": handshake["landlock"],
            "python": handshake["python"],
            "packages": _digest(repr((handshake["environment"], config.preload)).encode()),
            "seccomp": _digest(config.seccomp.supervisor + config.seccomp.run),
        }

    @property
    def counts(self) -> Mapping[str, int]:
        return {
            "jail_restarts": sum(worker.restarts for worker in self._workers),
            "program_kills": sum(worker.kills for worker in self._workers),
            "memory_waits": self._memory.waits,
        }

    async def run(self, job: Job, on_result: Callable[[RunResult], bool], timing: Timing) -> None:
        """See `Sandbox.run`."""
        tests_apart = any(map(has_tests_apart, job.runs))
        share = Share(run_bytes(job.limits, tests_apart=tests_apart, writable=self._writable))
        turn = CoreTurn(self._schedule, share, timing, job)
        names = _IMPORT.findall(job.program[:_LONG_PROGRAM])
        turn.modules = frozenset(n for n in names if n.partition(".")[0] in self._importable)
        runs, cpu_ms = deque(job.runs), 0.0

        def on_next(result: RunResult) -> bool:
            nonlocal cpu_ms
            runs.popleft()
            cpu_ms += result.cpu_ms
            if cpu_ms - result.cpu_ms < 1000 * LONG_S <= cpu_ms:
                turn.take_long()
            return on_result(result)

        while not await self._run(replace(job, runs=[*runs]), on_next, turn, timing):
            if not turn.is_stopped or self._is_closing:
                raise Unavailable("the service is shutting down", retry_after=1)

    async def _run(
        self, job: Job, on_result: Callable[[RunResult], bool], turn: CoreTurn, timing: Timing
    ) -> bool:
        """Run a job until it ends; return False if it was stopped before."""
        with stage(timing, "queue"):
            worker = await self._schedule.begin(turn)
        worker.begin(turn)
        running = run_in_thread(self._threads, lambda: worker.run(job, on_result))
        # The worker is free when its thread is done, even if this task was cancelled before.
        running.add_done_callback(lambda _: self._schedule.end(turn))
        try:
            with stage(None, "jail"):
                return await asyncio.shield(running)
        except asyncio.CancelledError:
            running.add_done_callback(lambda done: done.cancelled() or done.exception())
            if not running.done():  # otherwise the worker may have another job already
                worker.stop()
            raise
        except JailUnavailable as error:
            raise Unavailable(f"no jail is available: {error}", retry_after=1) from error
        except Killed:
            raise Unavailable(
                "SIGKILL ended the program twice, e.g. because the machine has no memory left",
                retry_after=1,
            ) from None

    async def aclose(self) -> None:
        self._is_closing = True
        for worker in self._workers:
            worker.stop()
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)
        self._close()

    def _close(self) -> None:
        for worker in self._workers:
            worker.close()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
