"""The sandbox `jail`: a fixed number of jails on this machine, each with a warm fork server."""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from pydantic import JsonValue

from rewardfleet.wire.errors import Unavailable
from rewardfleet.wire.score import Timing
from rewardfleet_server.code.sandboxes import Job, RunResult
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.extras import require
from rewardfleet_server.threads import run_in_thread
from rewardfleet_server.tracing import stage

from .isolation import FALLBACK_ORDER, IsolationLevel, find_python, isolation_spec
from .seccomp import compiled_filters
from .worker import JailUnavailable, Worker, WorkerConfig

log = logging.getLogger(__name__)


def build(settings: CodeSettings) -> "JailPool":
    """Start jails at the isolation level of the settings, or at the first one that works.

    Raises:
        ValueError: No level works on this machine.
    """
    python = find_python(settings.python)
    require("server", "the sandbox jail", "pyseccomp")
    try:
        seccomp = compiled_filters()
    except RuntimeError as error:
        raise ValueError(
            f"the sandbox jail needs libseccomp: apt-get install libseccomp2 ({error})"
        ) from error
    levels: tuple[IsolationLevel, ...] = (
        FALLBACK_ORDER if settings.isolation == "auto" else (settings.isolation,)
    )
    reasons = []
    for level in levels:
        try:
            spec = isolation_spec(level, python)
            config = WorkerConfig(spec, seccomp, tuple(settings.preload))
            pool = JailPool(config, settings.workers)
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


class JailPool:
    """A sandbox of jails on this machine.

    Args:
        config: How to start the jails.
        count: How many jails to start.

    Raises:
        JailUnavailable: A jail does not start, or does not isolate.
    """

    def __init__(self, config: WorkerConfig, count: int) -> None:
        self._workers = [Worker(config) for _ in range(count)]
        # The kernel ends a jail together with the thread that started it, so these threads live on.
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="jail")
        try:
            list(self._threads.map(Worker.probe, self._workers))
        except JailUnavailable:
            self._threads.shutdown(wait=True, cancel_futures=True)
            self._close()
            raise
        self._idle: asyncio.Queue[Worker] = asyncio.Queue()
        for worker in self._workers:
            self._idle.put_nowait(worker)
        handshake = self._workers[0].handshake
        self._provenance: dict[str, JsonValue] = {
            "sandbox": "jail",
            "isolation": config.spec.level,
            "landlock": handshake["landlock"],
            "python": handshake["python"],
            "packages": _digest(repr((handshake["environment"], config.preload)).encode()),
            "seccomp": _digest(config.seccomp.supervisor + config.seccomp.run),
        }
        if handshake["missing"]:
            log.warning("modules not found in the jail: %s", ", ".join(handshake["missing"]))

    @property
    def provenance(self) -> Mapping[str, JsonValue]:
        return self._provenance

    async def run(self, job: Job, on_result: Callable[[RunResult], bool], timing: Timing) -> None:
        """See `Sandbox.run`."""
        with stage(timing, "queue"):
            worker = await self._idle.get()
        worker.clear_stop()
        running = run_in_thread(self._threads, lambda: worker.run(job, on_result))
        # The worker is free when its thread is done, even if this task was cancelled before.
        running.add_done_callback(lambda _: self._idle.put_nowait(worker))
        try:
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
