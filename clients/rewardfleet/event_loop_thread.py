"""An event loop in its own thread, for synchronous callers."""

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar
from weakref import WeakSet

T = TypeVar("T")


class _LoopThread:
    """An event loop, its thread, and the coroutines that were started in it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.calls: WeakSet[Coroutine[Any, Any, Any]] = WeakSet()
        self.thread = threading.Thread(
            target=self.loop.run_forever, name="rewardfleet", daemon=True
        )


class EventLoopThread:
    """A thread that runs coroutines for synchronous callers, even inside another event loop.

    It starts on first use, and again in a forked process, which has no threads.
    """

    def __init__(self) -> None:
        # By process. A parent's event loop is not released in a child: that would unregister the
        # parent's sockets, as both processes share the selector that watches them.
        self._workers: dict[int, _LoopThread] = {}

    def __reduce__(self) -> tuple[type["EventLoopThread"], tuple[()]]:
        return EventLoopThread, ()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine and return at once, with the future of its result."""
        worker = self._worker()
        worker.calls.add(work)
        return asyncio.run_coroutine_threadsafe(work, worker.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result; an interrupt of the wait cancels it.

        Raises:
            Exception: Whatever the coroutine raises.
        """
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Cancel the pending calls, run a last coroutine, and end the thread."""
        worker = self._workers.pop(os.getpid(), None)  # calls from now on start a new one
        if worker is None:
            last.close()
            return
        asyncio.run_coroutine_threadsafe(_finish(worker.calls, last), worker.loop).result()
        worker.loop.call_soon_threadsafe(worker.loop.stop)
        worker.thread.join()
        worker.loop.close()

    def _worker(self) -> _LoopThread:
        worker = self._workers.get(os.getpid())
        if worker is None:
            new = _LoopThread()
            # setdefault is atomic. A lock could be held forever by a thread that a fork dropped.
            worker = self._workers.setdefault(os.getpid(), new)
            if worker is new:
                worker.thread.start()
            else:
                new.loop.close()
        return worker


async def _finish(
    started: WeakSet[Coroutine[Any, Any, Any]], last: Coroutine[Any, Any, None]
) -> None:
    """Cancel the calls of other threads, which would wait forever for a stopped loop.

    A call cancels the tasks that it started. They are not cancelled here: AnyIO's tasks must not be
    cancelled before their first step ("coroutine was never awaited").
    """
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    calls = [task for task in tasks if task.get_coro() in started]
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await last
    await asyncio.get_running_loop().shutdown_default_executor()
