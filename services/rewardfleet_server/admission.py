"""Limits on the requests that are admitted, and on the items at the backend, `in_flight`.

A request is admitted on its headers, before its body is read. `admit` never waits; `wait_in_line`
is for clients that cannot repeat a request. `permit` is the right to use the backend; at most
`max_queue_depth` items queue for one. Requests take turns, so that a single item does not wait for
all items of a batch, and some permits are for requests that hold none. Large items get at most
three quarters of the permits and of the queue, so that they never take all.
"""

import asyncio
import bisect
import logging
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

from rewardfleet.wire.errors import Overloaded, Unavailable
from rewardfleet.wire.score import Timing

from .observe.tracing import SAMPLE, stage

log = logging.getLogger(__name__)

#: Requests that wait in line, bodies unread. Each takes 20 KiB, and no trainer sends more at once.
MAX_WAITING = 10_000
#: The share of the permits and of the queue that large items may take.
_LARGE_SHARE = 0.75
#: One permit in so many is for the first item of a request.
_FIRST_SHARE = 16
#: Weight of the newest item in the moving average of backend times.
_MEAN_WEIGHT = 0.1


def fitting_line(free_files: int, open_files: int) -> int:
    """Return how many requests may wait in line, each of which is an open connection."""
    fitting = max(min(MAX_WAITING, free_files), 1)
    if fitting < MAX_WAITING:
        log.warning(
            "at most %d requests wait in line instead of %d: each is an open connection, and the "
            "limit of open files is %d (`ulimit -n`)",
            fitting, MAX_WAITING, open_files,
        )  # fmt: skip
    return fitting


@dataclass(eq=False, slots=True)
class _Share:
    """What a request has of the permits."""

    turn: int = 0  #: of the item that came last
    items: int = 0  #: how many hold a permit or wait for one
    held: int = 0  #: how many hold one


@dataclass(eq=False, slots=True)
class _Item:
    share: _Share
    turn: int
    is_large: bool
    granted: asyncio.Future[None]


class Admission:
    """The limits of one process, as its settings have them.

    `max_total_body_bytes` is that of all admitted requests together, `max_waiting` of the line.
    """

    def __init__(
        self,
        *,
        max_in_flight: int,
        max_queue_depth: int,
        max_total_body_bytes: int,
        max_waiting: int = 0,
    ) -> None:
        self._queue: list[_Item] = []  # by turns
        self._turn = 0  # of the item that got a permit last
        self._shares: dict[object, _Share] = {}
        self._kept_for_first = max_in_flight // _FIRST_SHARE
        self._free_for_large = max(1, int(max_in_flight * _LARGE_SHARE))
        self._max_large_queued = math.ceil(max_queue_depth * _LARGE_SHARE)
        self.max_in_flight, self.max_queue_depth = max_in_flight, max_queue_depth
        self.max_waiting = max_waiting
        self._line: OrderedDict[asyncio.Future[Place], int] = OrderedDict()
        # As many bodies are in memory as the backend takes soon; the other places are for `admit`.
        self._free_of_line = 2 * max_in_flight
        self._max_total_body_bytes, self._body_bytes = max_total_body_bytes, 0
        self._mean_seconds = 0.0
        self._idle = asyncio.Event()
        self._idle.set()
        self._places: dict[Place, None] = {}
        self.in_flight = 0  #: items that hold a permit
        self.draining = False  #: whether new requests are refused, as the service shuts down

    @property
    def admitted(self) -> int:
        """How many requests are admitted and not answered yet."""
        return len(self._places)

    @property
    def queue_depth(self) -> int:
        """How many items wait for a permit."""
        return len(self._queue)

    @property
    def oldest_seconds(self) -> float:
        """Seconds since the oldest request was admitted that is not answered yet; 0 for none."""
        oldest = next(iter(self._places), None)
        return 0.0 if oldest is None else time.monotonic() - oldest.admitted_at

    @property
    def waiting(self) -> int:
        """How many requests wait in line."""
        return len(self._line)

    @property
    def free_permits(self) -> int:
        """How many items could start now; 0 or less if items wait."""
        return self.max_in_flight - self.in_flight - self.queue_depth

    def admit(self, body_bytes: int) -> "Place":
        """Admit a request. Only the bytes that have arrived count, not those that are announced.

        Args:
            body_bytes: Announced size of its body, 0 if unknown.

        Raises:
            Unavailable: The service is shutting down.
            Overloaded: There is no capacity, or no room for the body now.
        """
        self._check_open()
        if self._is_full():
            raise self._overloaded(f"{self.admitted} requests are admitted already")
        if not self._has_room(body_bytes):
            raise self._no_room()
        return self._enter()

    async def wait_in_line(self, body_bytes: int, until: float) -> "Place":
        """Wait, in order, until a request can be admitted with the whole of its body.

        Enter the place before anything else is awaited.

        Args:
            body_bytes: Announced size of its body, 0 if unknown.
            until: Time of the event loop's clock at which it leaves the line.

        Raises:
            Unavailable: The service is shutting down.
            Overloaded: The line is full, or is too long.
        """
        self._check_open()
        if not self._line and self._has_place(body_bytes):
            return self._enter(body_bytes, from_line=True)
        if len(self._line) >= self.max_waiting:
            raise self._overloaded(f"{len(self._line)} requests wait in line already")
        turn: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        self._line[turn] = body_bytes
        self._idle.clear()
        try:
            async with asyncio.timeout_at(until):
                return await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():  # both in the same turn of the event loop
                turn.result().leave()
            self._line.pop(turn, None)
            self._note_idle()
            if isinstance(error, TimeoutError):
                raise self._overloaded("the line was too long") from None
            raise

    def _admit_line(self) -> None:
        """Admit those requests at the front of the line for which there is a place."""
        while self._line:
            turn, body_bytes = next(iter(self._line.items()))
            if not turn.done():
                if not self._has_place(body_bytes):
                    break
                turn.set_result(self._enter(body_bytes, from_line=True))
            del self._line[turn]
        self._note_idle()

    def _is_full(self) -> bool:
        return self.admitted >= self.max_in_flight + self.max_queue_depth

    def _has_place(self, body_bytes: int) -> bool:
        return not self._is_full() and self._free_of_line > 0 and self._has_room(body_bytes)

    def _has_room(self, more_bytes: int) -> bool:
        """Return whether the bodies may take more memory; a single body always may."""
        return not self.admitted or self._body_bytes + more_bytes <= self._max_total_body_bytes

    def _no_room(self) -> Overloaded:
        return self._overloaded(f"admitted request bodies already take {self._body_bytes} bytes")

    def _check_open(self) -> None:
        if self.draining:
            raise Unavailable("the service is shutting down; try another replica", retry_after=1)

    def _enter(self, reserved: int = 0, *, from_line: bool = False) -> "Place":
        place = Place(self, reserved, reserved, from_line)
        self._free_of_line -= from_line
        self._body_bytes += reserved
        self._places[place] = None
        self._idle.clear()
        return place

    def resize(self, place: "Place", size: int) -> None:
        """Count the bytes of a body so far; raise Overloaded if there is no room for them."""
        size = max(size, place.reserved)
        total = self._body_bytes + size - place.body_bytes
        if self.admitted > 1 and total > self._max_total_body_bytes:
            raise self._no_room()
        self._body_bytes, place.body_bytes = total, size

    def leave(self, place: "Place") -> None:
        """Count a request as answered, and admit those in line that take its place."""
        del self._places[place]
        self._free_of_line += place.from_line
        self._body_bytes -= place.body_bytes
        self._admit_line()

    def _note_idle(self) -> None:
        if not (self.admitted or self._line):
            self._idle.set()

    @asynccontextmanager
    async def permit(
        self,
        timing: Timing,
        request: object | None = None,
        *,
        is_large: bool = False,
        is_patient: bool = False,
    ) -> AsyncIterator[None]:
        """Hold a permit for the backend. The caller's deadline limits the wait.

        Args:
            timing: The wait is added to its `queue`.
            request: Not the id that its caller may choose; None if it has no other items.
            is_large: Whether the item takes much longer than most.
            is_patient: Whether its request has waited in line: else Overloaded for a full queue.
        """
        key = request or object()
        share = self._shares.get(key) or _Share()
        if not is_patient:
            self._check_queue(share, is_large=is_large)
        self._shares[key] = share
        share.items += 1
        # Start-time fair queueing: the items of a request have one turn after the other, and its
        # first one that of whichever request is served now.
        share.turn = max(self._turn, share.turn) + 1
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        own = _Item(share, share.turn, is_large, granted)
        try:
            bisect.insort(self._queue, own, key=lambda each: each.turn)
            with stage(timing, "queue"):
                self._grant()
                await granted
            started = time.monotonic()
            sample = SAMPLE.get()
            if sample is not None:
                sample.stage, sample.since = "backend", started
            try:
                yield
            finally:
                seconds = time.monotonic() - started
                self._mean_seconds += _MEAN_WEIGHT * (seconds - self._mean_seconds)
        finally:
            if own in self._queue:
                self._queue.remove(own)
            else:
                self.in_flight -= 1
                self._free_for_large += is_large
                share.held -= 1
                self._grant()
            share.items -= 1
            if not share.items:
                del self._shares[key]

    def _check_queue(self, share: _Share, *, is_large: bool) -> None:
        """Refuse an item that has to wait if too many do already."""
        if self._fits(share, is_large=is_large):
            return
        if self.queue_depth >= self.max_queue_depth:
            raise self._overloaded(f"{self.queue_depth} items are queued for the backend")
        large = sum(each.is_large for each in self._queue) if is_large else 0
        if is_large and large >= self._max_large_queued:
            raise self._overloaded(f"{large} large items are queued for the backend")

    def _fits(self, share: _Share, *, is_large: bool) -> bool:
        kept = self._kept_for_first if share.held else 0
        free = self.max_in_flight - self.in_flight
        return free > kept and not (is_large and not self._free_for_large)

    def _grant(self) -> None:
        for each in [*self._queue] if self.in_flight < self.max_in_flight else ():
            free = self.max_in_flight - self.in_flight
            only_first = free <= self._kept_for_first
            if not free or (only_first and all(s.held for s in self._shares.values())):
                return
            if not self._fits(each.share, is_large=each.is_large):
                continue
            self._queue.remove(each)
            self.in_flight += 1
            self._free_for_large -= each.is_large
            each.share.held += 1
            self._turn = max(self._turn, each.turn)
            if not each.granted.done():  # else its task was cancelled, and gives it back
                each.granted.set_result(None)

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new requests; wait for those in line and admitted. True if all end in time."""
        self.draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        return self._idle.is_set()

    def _overloaded(self, reason: str) -> Overloaded:
        """Return the refusal, with an estimate of when there will be capacity."""
        seconds = math.ceil(self._mean_seconds * (self.queue_depth + 1) / self.max_in_flight)
        retry_after = min(max(seconds, 1), 60)
        return Overloaded(
            f"the service is at capacity ({reason}); retry in {retry_after} s",
            retry_after=retry_after,
        )


@dataclass(eq=False, slots=True)
class Place:
    """The place of an admitted request, until it is left.

    As a context manager, it returns a function. Call it with the bytes of the body that have
    arrived, whenever there are more. It raises `Overloaded` if there is no room for them.
    """

    _admission: Admission
    reserved: int  #: bytes of the body for which there is room, whenever they arrive
    body_bytes: int  #: those that count
    from_line: bool
    admitted_at: float = field(default_factory=time.monotonic)

    def __enter__(self) -> Callable[[int], None]:
        return partial(self._admission.resize, self)

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Give the place to another request."""
        self._admission.leave(self)
