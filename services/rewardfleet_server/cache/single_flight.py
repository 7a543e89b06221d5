"""Computations of the same value that are done once: concurrent ones, and all that are kept."""

import asyncio
import gc
import sys
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from rewardfleet_server.observe.tracing import SAMPLE, ItemSpan

T = TypeVar("T")

#: Types of which there may be a million values, so that each of them is not looked at.
_NUMBERS = {int, float, bool, type(None)}


@dataclass
class _Flight(Generic[T]):
    task: asyncio.Task[T]
    leader: ItemSpan | None  #: the item that started it
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


@dataclass(eq=False)
class Memo(Generic[T]):
    """Values by key, of which the least recently used ones leave first.

    Those who ask for a value at the same time share its computation; see `SingleFlight`. A failure
    is not kept.
    """

    _max_bytes: int  #: limit on the bytes of keys and values together
    _size: Callable[[T], int]  #: returns the bytes of a value
    _kept: OrderedDict[str, tuple[T, int]] = field(default_factory=OrderedDict, init=False)
    _running: SingleFlight[T] = field(default_factory=SingleFlight, init=False)
    bytes: int = field(default=0, init=False)  #: of the keys and values that are kept

    async def get(self, key: str, compute: Callable[[], Coroutine[None, None, T]]) -> T:
        """Return the value of a key, which is computed unless it is kept; see `SingleFlight.do`."""
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key][0]

        async def computed() -> T:
            value = await compute()
            size = sys.getsizeof(key) + self._size(value)
            self._kept[key] = value, size
            self.bytes += size
            while self.bytes > self._max_bytes:
                _, (_, evicted) = self._kept.popitem(last=False)
                self.bytes -= evicted
            return value

        return await self._running.do(key, computed)


def bytes_of(value: object) -> int:
    """Return the bytes of data and of all that it refers to, each once; of a number, 32."""
    numbers, seen, found = 0, dict[int, object](), [value]
    while found:
        others = [each for each in found if type(each) not in _NUMBERS]
        numbers += len(found) - len(others)
        new = {id(each): each for each in others if not isinstance(each, type)}
        for known in new.keys() & seen.keys():
            del new[known]
        seen |= new
        found = gc.get_referents(*new.values())
    return 32 * numbers + sum(map(sys.getsizeof, seen.values()))
