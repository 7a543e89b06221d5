"""The sandbox `jail`: a fixed number of jails on this machine, each with a warm fork server."""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from pydantic import JsonValue

from rewardfleet.wire.errors import Unavailable
from rewardfleet_server.code.sandboxes import Job, RunResult
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.threads import run_in_thread

from .isolation import FALLBACK_ORDER, Level, cell, find_python
from .seccomp import compiled_filters
from .worker import NoJail, Worker, WorkerConfig

log = logging.getLogger(__name__)


def build(settings: CodeSettings) -> "JailPool":
    """Climb down the ladder to the first level that holds here, and start its jails.

    Raises:
        ValueError: None holds.
    """
    python = find_python(settings.python)
    try:
        seccomp = compiled_filters()
    except (RuntimeError, ImportError) as error:
        raise ValueError(f"no jail without libseccomp2 and pyseccomp: {error}") from error
    levels: tuple[Level, ...] = (
        FALLBACK_ORDER if settings.isolation == "auto" else (settings.isolation,)
    )
    refusals = []
    for level in levels:
        try:
            orders = WorkerConfig(cell(level, python), seccomp, tuple(settings.preload))
            jail = JailPool(orders, settings.workers)
        except (NoJail, ValueError) as error:
            refusals.append(str(error))
            continue
        if refusals:
            log.warning("isolation is %s only: %s", level, "; ".join(refusals))
        return jail
    raise ValueError(
        f"there is no safe way to run programs here ({'; '.join(refusals)}). Install bubblewrap "
        "and allow user namespaces, or use a kernel with Landlock (5.13 or newer). On a machine "
        "where nothing can be harmed, --isolation none-unsafe does without"
    )


def _digest(*said: object) -> str:
    return hashlib.sha256(repr(said).encode()).hexdigest()[:16]


class JailPool:
    """A sandbox on this machine.

    Args:
        orders: How its jails are started.
        count: How many there are.

    Raises:
        NoJail: They do not come up, or do not hold.
    """

    def __init__(self, orders: WorkerConfig, count: int) -> None:
        self._workers = [Worker(orders) for _ in range(count)]
        # A jail is started by one of these threads and ends with it: the kernel sees to that.
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="jail")
        try:
            list(self._threads.map(Worker.probe, self._workers))
        except NoJail:
            self._threads.shutdown(wait=True, cancel_futures=True)
            self._close()
            raise
        self._idle: asyncio.Queue[Worker] = asyncio.Queue()
        for worker in self._workers:
            self._idle.put_nowait(worker)
        hello = self._workers[0].hello
        self._provenance: dict[str, JsonValue] = {
            "sandbox": "jail",
            "isolation": orders.cell.level,
            "landlock": hello["landlock"],
            "python": hello["python"],
            "packages": _digest(hello["environment"], orders.preload),
            "seccomp": hashlib.sha256(orders.seccomp.warden + orders.seccomp.run).hexdigest()[:16],
        }
        if hello["missing"]:
            log.warning("not to be had in the jail: %s", ", ".join(hello["missing"]))

    @property
    def provenance(self) -> Mapping[str, JsonValue]:
        return self._provenance

    async def run(self, job: Job, on_result: Callable[[RunResult], bool]) -> float:
        """See `Sandbox.run`."""
        asked = time.monotonic()
        worker = await self._idle.get()
        worker.ready()
        waited = time.monotonic() - asked
        running = run_in_thread(self._threads, lambda: worker.run(job, on_result))
        # Whoever waits for it or not, the place is free when the thread says so.
        running.add_done_callback(lambda _: self._idle.put_nowait(worker))
        try:
            whole = await asyncio.shield(running)
        except asyncio.CancelledError:
            running.add_done_callback(lambda done: done.cancelled() or done.exception())
            if not running.done():  # else the worker may be somebody else's by now
                worker.stop()
            raise
        except NoJail as error:
            raise Unavailable(f"no jail can be had now: {error}", retry_after=1) from error
        if not whole:  # what was not run is no failure of the program's
            raise Unavailable("the service is shutting down", retry_after=1)
        return waited

    async def aclose(self) -> None:
        """End every jail."""
        for worker in self._workers:
            worker.stop()
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)
        self._close()

    def _close(self) -> None:
        for worker in self._workers:
            worker.close()
