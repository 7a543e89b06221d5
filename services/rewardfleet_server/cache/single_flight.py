"""Concurrent computations of the same value are done once."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Generic, TypeVar

from rewardfleet_server.observe.tracing import SAMPLE, ItemSpan

T = TypeVar("T")


@dataclass
class _Flight(Generic[T]):
    """A running computation, the item that started it, and the number of its waiters."""

    task: asyncio.Task[T]
    leader: ItemSpan | None
    waiters: int = 0


class SingleFlight(Generic[T]):
    """Shares computations by key.

    A waiter that is cancelled (deadline, disconnect) does not affect the others. The computation
    is cancelled with its last waiter.
    """

    def __init__(self) -> None:
        self._flights: dict[str, _Flight[T]] = {}

    async def do(self, key: str, start: Callable[[], Coroutine[None, None, T]]) -> T:
        """Wait for the computation of `key`; start it if it is not running.

        Raises:
            Exception: Whatever the computation raises, to each of its waiters.
        """
        sample = SAMPLE.get()
        call = self._flights.get(key)
        if call is None:
            call = self._flights[key] = _Flight(asyncio.ensure_future(start()), sample)
            call.task.add_done_callback(lambda _: self._remove(key, call))
        elif sample is not None:
            sample.leader = call.leader
        call.waiters += 1
        try:
            return await asyncio.shield(call.task)
        finally:
            if sample is not None:
                sample.leader = None
            call.waiters -= 1
            if not call.waiters and not call.task.done():
                self._remove(key, call)  # at once: the next caller starts a new computation
                call.task.cancel()

    def _remove(self, key: str, call: _Flight[T] | None) -> None:
        if self._flights.get(key) is call:
            del self._flights[key]
