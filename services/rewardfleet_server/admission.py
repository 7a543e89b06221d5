"""Two limits: on the requests that are admitted, and on the items at the backend, `in_flight`.

`admit` is called on a request's headers, before its body is read; it never waits. `permit` is the
right to use the backend; items queue for one in the order in which they came, at most
`max_queue_depth` of them. Large items get at most three quarters of the permits and of the queue,
so that they never take all.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

from rewardfleet.wire.errors import Overloaded, Unavailable
from rewardfleet.wire.score import Timing

from .tracing import SAMPLE, stage

#: The share of the permits and of the queue that large items may take.
_LARGE_SHARE = 0.75
#: Weight of the newest item in the moving average of backend times.
_MEAN_WEIGHT = 0.1


class Admission:
    """The limits of one process.

    Args:
        max_in_flight: Items at the backend at the same time.
        max_queue_depth: Items that wait for the backend.
        max_total_body_bytes: Bytes of all admitted request bodies together.

    Attributes:
        max_in_flight: As above.
        max_queue_depth: As above.
        admitted: Requests admitted and not answered yet.
        in_flight: Items that hold a permit.
        queue_depth: Items that wait for a permit.
        draining: Whether new requests are refused because the service is shutting down.
    """

    def __init__(
        self, *, max_in_flight: int, max_queue_depth: int, max_total_body_bytes: int
    ) -> None:
        self._permits = asyncio.Semaphore(max_in_flight)
        self._large_permits = asyncio.Semaphore(max(1, int(max_in_flight * _LARGE_SHARE)))
        self._max_large_queued = math.ceil(max_queue_depth * _LARGE_SHARE)
        self._large_queued = 0
        self.max_in_flight = max_in_flight
        self.max_queue_depth = max_queue_depth
        self._max_total_body_bytes = max_total_body_bytes
        self._body_bytes = 0
        self._mean_seconds = 0.0
        self._idle = asyncio.Event()
        self._idle.set()
        self._admission_times: dict[object, float] = {}
        self.admitted = 0
        self.in_flight = 0
        self.queue_depth = 0
        self.draining = False

    @property
    def oldest_seconds(self) -> float:
        """Seconds since the oldest request was admitted that is not answered yet; 0 for none."""
        oldest = next(iter(self._admission_times.values()), None)
        return 0.0 if oldest is None else time.monotonic() - oldest

    @property
    def free_permits(self) -> int:
        """How many items could start now; 0 or less if items wait."""
        return self.max_in_flight - self.in_flight - self.queue_depth

    @contextmanager
    def admit(self, body_bytes: int) -> Iterator[Callable[[int], None]]:
        """Admit a request. Only the bytes that have arrived count, not those that are announced.

        Args:
            body_bytes: Announced size of its body, 0 if unknown: it is refused if there is no room
                for it now.

        Yields:
            Call it with the bytes of the body that have arrived, whenever there are more. It raises
            `Overloaded` if there is no room for them.

        Raises:
            Unavailable: The service is shutting down.
            Overloaded: There is no capacity.
        """
        if self.draining:
            raise Unavailable("the service is shutting down; try another replica", retry_after=1)
        if self.admitted >= self.max_in_flight + self.max_queue_depth:
            raise self._overloaded(f"{self.admitted} requests are admitted already")
        if self.admitted:
            self._check_room(body_bytes)
        self.admitted += 1
        self._admission_times[request := object()] = time.monotonic()
        self._idle.clear()
        arrived = 0

        def resize(size: int) -> None:
            nonlocal arrived
            if self.admitted > 1:
                self._check_room(size - arrived)
            self._body_bytes += size - arrived
            arrived = size

        try:
            yield resize
        finally:
            self.admitted -= 1
            del self._admission_times[request]
            self._body_bytes -= arrived
            if not self.admitted:
                self._idle.set()

    def _check_room(self, more_bytes: int) -> None:
        if self._body_bytes + more_bytes > self._max_total_body_bytes:
            raise self._overloaded(f"admitted request bodies already take {self._body_bytes} bytes")

    @asynccontextmanager
    async def permit(self, timing: Timing, *, is_large: bool = False) -> AsyncIterator[None]:
        """Hold a permit for the backend. The caller's deadline limits the wait.

        Args:
            timing: The wait is added to its `queue`.
            is_large: Whether the item takes much longer than most.

        Raises:
            Overloaded: The queue is full.
        """
        if self._permits.locked() and self.queue_depth >= self.max_queue_depth:
            raise self._overloaded(f"{self.queue_depth} items are queued for the backend")
        large_is_full = (
            self._large_permits.locked() and self._large_queued >= self._max_large_queued
        )
        if is_large and large_is_full:
            raise self._overloaded(f"{self._large_queued} large items are queued for the backend")
        async with AsyncExitStack() as permits:
            self.queue_depth += 1
            self._large_queued += is_large
            try:
                with stage(timing, "queue"):
                    if is_large:
                        await permits.enter_async_context(self._large_permits)
                    await permits.enter_async_context(self._permits)
            finally:
                self.queue_depth -= 1
                self._large_queued -= is_large
            self.in_flight += 1
            started = time.monotonic()
            sample = SAMPLE.get()
            if sample is not None:
                sample.stage, sample.since = "backend", started
            try:
                yield
            finally:
                self.in_flight -= 1
                seconds = time.monotonic() - started
                self._mean_seconds += _MEAN_WEIGHT * (seconds - self._mean_seconds)

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new requests and wait for the admitted ones. True if all finished in time."""
        self.draining = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def _overloaded(self, reason: str) -> Overloaded:
        """Return the refusal, with an estimate of when there will be capacity."""
        seconds = math.ceil(self._mean_seconds * (self.queue_depth + 1) / self.max_in_flight)
        retry_after = min(max(seconds, 1), 60)
        return Overloaded(
            f"the service is at capacity ({reason}); retry in {retry_after} s",
            retry_after=retry_after,
        )
