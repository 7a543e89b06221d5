"""An event loop in its own thread, for synchronous callers."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar
from weakref import WeakSet, finalize

T = TypeVar("T")
_Close = Callable[[], Coroutine[Any, Any, None]]


class _LoopThread:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.calls: WeakSet[Coroutine[Any, Any, Any]] = WeakSet()  #: that were started in it
        self.thread = threading.Thread(target=self._run, name="rewardfleet", daemon=True)

    def _run(self) -> None:
        self.loop.run_forever()
        self.loop.close()

    def end(self, last: Coroutine[Any, Any, None]) -> Future[None]:
        """Cancel the pending calls, run a last coroutine, and end the thread, without waiting."""
        finished = asyncio.run_coroutine_threadsafe(self._finish(last), self.loop)
        finished.add_done_callback(lambda _: self.loop.call_soon_threadsafe(self.loop.stop))
        return finished

    async def _finish(self, last: Coroutine[Any, Any, None]) -> None:
        """Cancel the calls of other threads, which would wait forever for a stopped loop.

        A call cancels the tasks that it started. They are not cancelled here: AnyIO's tasks must
        not be cancelled before their first step ("coroutine was never awaited").
        """
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        calls = [task for task in tasks if task.get_coro() in self.calls]
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await last
        await asyncio.get_running_loop().shutdown_default_executor()


class EventLoopThread:
    """A thread that runs coroutines for synchronous callers, even inside another event loop.

    It starts on first use, and again in a forked process, which has no threads. It ends when
    nothing refers to this object any more: each task of a process pool may unpickle another one.

    Args:
        aclose: Closes the connections of an event loop; None if it has the life of the process.
    """

    def __init__(self, aclose: _Close | None = None) -> None:
        self._aclose = aclose
        # By process. A parent's event loop is not released in a child: that would unregister the
        # parent's sockets, as both processes share the selector that watches them.
        self._workers: dict[int, _LoopThread] = {}
        if aclose is not None:
            finalize(self, _release, self._workers, aclose).atexit = False

    def __reduce__(self) -> tuple[type["EventLoopThread"], tuple[Any]]:
        return EventLoopThread, (self._aclose,)

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine and return at once, with the future of its result."""
        worker = self._worker()
        worker.calls.add(work)
        return asyncio.run_coroutine_threadsafe(work, worker.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result; an interrupt of the wait cancels it."""
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
        finished = worker.end(last)
        worker.thread.join()
        finished.result()

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


def _release(workers: dict[int, _LoopThread], aclose: _Close) -> None:
    """End the thread of what was collected. That happens in any thread, also in this one."""
    worker = workers.pop(os.getpid(), None)
    if worker is not None:
        worker.end(aclose())
