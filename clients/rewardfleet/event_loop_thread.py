"""An event loop on a thread of its own, for synchronous callers."""

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Worker:
    """An event loop and its thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(
            target=self.loop.run_forever, name="rewardfleet", daemon=True
        )


class EventLoopThread:
    """Runs coroutines for synchronous callers, who may be inside another event loop.

    The thread starts on first use, and again in a forked process, which has no threads.
    """

    def __init__(self) -> None:
        # By process. A parent's event loop stays in the child: to let go of it would unregister
        # the parent's sockets, as both processes share what watches them.
        self._workers: dict[int, _Worker] = {}

    def __reduce__(self) -> tuple[type["EventLoopThread"], tuple[()]]:
        return EventLoopThread, ()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work and wait for it; an interrupt of the wait cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._worker().loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """End the calls under way, do the last work, end the thread."""
        if os.getpid() not in self._workers:
            last.close()
            return
        self.run(_end_calls())
        self.run(last)
        worker = self._workers.pop(os.getpid())
        ending = worker.loop.shutdown_default_executor()
        asyncio.run_coroutine_threadsafe(ending, worker.loop).result()
        worker.loop.call_soon_threadsafe(worker.loop.stop)
        worker.thread.join()
        worker.loop.close()

    def _worker(self) -> _Worker:
        worker = self._workers.get(os.getpid())
        if worker is None:
            made = _Worker()
            # Atomic, where a lock might be held for ever by a thread that a fork left behind.
            worker = self._workers.setdefault(os.getpid(), made)
            if worker is made:
                worker.thread.start()
            else:
                made.loop.close()
        return worker


async def _end_calls() -> None:
    """Cancel what other threads wait for; a loop that stops would leave them waiting for ever."""
    calls = asyncio.all_tasks() - {asyncio.current_task()}
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
