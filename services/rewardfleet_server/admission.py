"""Who may come in, and who may work: two bounds, both tried and never waited for without end.

`admit` is asked on a request's headers, before its body is read. `slot` is a place at the
backend; requests wait for one in the order in which they came, and no more than `max_waiting`.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from rewardfleet.wire.errors import Overloaded, Unavailable

#: How much the newest request counts in the running mean of backend times.
_MEAN_WEIGHT = 0.1


class Admission:
    """The bounds of one process.

    Args:
        max_in_flight: Requests (or items of batches) at the backend at the same time.
        max_waiting: Requests (or items of batches) that wait for a place at the backend.
        max_body_bytes: Bytes of all request bodies in the house together.
    """

    def __init__(self, *, max_in_flight: int, max_waiting: int, max_body_bytes: int) -> None:
        self._places = asyncio.Semaphore(max_in_flight)
        self._max_in_flight = max_in_flight
        self._max_waiting = max_waiting
        self._max_body_bytes = max_body_bytes
        self._body_bytes = 0
        self._mean_seconds = 0.0
        self._idle = asyncio.Event()
        self._idle.set()
        self.admitted = 0  #: requests in the house
        self.waiting = 0  #: requests and items waiting for a place at the backend
        self.draining = False

    @contextmanager
    def admit(self, body_bytes: int) -> Iterator[None]:
        """Hold a place in the house for a request that announces a body of `body_bytes`.

        Raises:
            Unavailable: The service is shutting down.
            Overloaded: The house is full.
        """
        if self.draining:
            raise Unavailable("the service is shutting down; try another replica", retry_after=1)
        if self.admitted >= self._max_in_flight + self._max_waiting:
            raise self._full(f"{self.admitted} requests are in flight or waiting already")
        if self.admitted and self._body_bytes + body_bytes > self._max_body_bytes:
            raise self._full(f"the requests in flight already fill {self._body_bytes} bytes")
        self.admitted += 1
        self._body_bytes += body_bytes
        self._idle.clear()
        try:
            yield
        finally:
            self.admitted -= 1
            self._body_bytes -= body_bytes
            if not self.admitted:
                self._idle.set()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold a place at the backend; the caller's deadline bounds the wait.

        Raises:
            Overloaded: Too many are waiting already.
        """
        if self._places.locked() and self.waiting >= self._max_waiting:
            raise self._full(f"{self.waiting} are waiting for the backend already")
        self.waiting += 1
        try:
            await self._places.acquire()
        finally:
            self.waiting -= 1
        started = time.monotonic()
        try:
            yield
        finally:
            self._places.release()
            took = time.monotonic() - started
            self._mean_seconds += _MEAN_WEIGHT * (took - self._mean_seconds)

    async def drain(self, grace_s: float) -> bool:
        """Admit nobody from now on; wait for those inside. True if all left within the grace."""
        self.draining = True
        try:
            async with asyncio.timeout(grace_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def _full(self, reason: str) -> Overloaded:
        """The refusal, with a guess at when a place will be free."""
        seconds = math.ceil(self._mean_seconds * (self.waiting + 1) / self._max_in_flight)
        retry_after = min(max(seconds, 1), 60)
        return Overloaded(
            f"the service is full ({reason}); try again in {retry_after} s", retry_after=retry_after
        )
