"""Who decodes next: a semaphore whose weights are the bytes of decoders and decoded frames."""

import asyncio
import bisect
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from rewardfleet.wire.errors import TooLarge
from rewardfleet_server.observe.telemetry import REQUEST

#: The most that a small request takes: the bytes of 16 frames of an H.264 clip of 1280x720 pixels,
#: and the pixels of a clip that is decoded in a fifth of a second.
_SMALL_BYTES, _SMALL_PIXELS = 160 * 2**20, 64_000_000
#: The share of the memory that large requests get together, so that small ones need not wait.
_LARGE_SHARE = 0.75
#: By how many seconds a request may come later and still be next, for each pixel that it has less:
#: a clip is overtaken for about 150 times as long as it takes.
_SECONDS_PER_PIXEL = 5e-7
#: The clips of a request are due one after the other, and the last one after so long at most.
_MAX_BATCH_SECONDS = 10.0


def is_large(size: int, pixels: int) -> bool:
    """Return whether a request leaves threads, memory and permits to smaller ones."""
    return size > _SMALL_BYTES or pixels > _SMALL_PIXELS


@dataclass(eq=False)
class _Reservation:
    size: int
    is_large: bool
    due: float
    granted: asyncio.Future[None]
    request: object
    decodes: bool = True


@dataclass(eq=False)
class DecodingLimit:
    """Limits the clips that are decoded at a time, and the memory of all that are decoded.

    Smaller requests overtake larger ones for some time, and single clips a batch of them. Small and
    large ones have a number of decoders each. Large ones get three quarters of the memory. While
    one of them waits for memory, small ones get the remaining quarter only, so it does not wait for
    those that come later.
    """

    CAPACITY = 4 * 2**30  #: bytes

    _decoders: int  #: small requests, and large ones, that are decoded at a time
    _held: set[_Reservation] = field(default_factory=set, init=False)
    _waiting: list[_Reservation] = field(default_factory=list, init=False)

    @asynccontextmanager
    async def reserve(
        self, frames: int, decoder: int = 0, pixels: int = 0
    ) -> AsyncIterator[Callable[[], None]]:
        """Reserve a decoder and memory for the block.

        Args:
            frames: Bytes of the decoded frames.
            decoder: Bytes that are needed until the function that the context gives is called.
            pixels: How many are decoded until then.

        Raises:
            TooLarge: It is more memory than there is.
        """
        size = frames + decoder
        if size > self.CAPACITY:
            raise TooLarge(
                f"decoding takes up to {size / 2**30:.1f} GiB; at most {self.CAPACITY / 2**30:g} "
                "GiB are available: send smaller or fewer frames, or another codec"
            )
        request, now = REQUEST.get(None) or object(), time.monotonic()
        last = max((each.due for each in self._waiting if each.request is request), default=now)
        due = min(max(now, last), now + _MAX_BATCH_SECONDS) + pixels * _SECONDS_PER_PIXEL
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        own = _Reservation(size, is_large(size, pixels), due, granted, request)

        def close_decoder() -> None:
            own.size, own.decodes = frames, False
            self._grant()

        bisect.insort(self._waiting, own, key=lambda each: each.due)
        try:
            self._grant()
            await granted
            yield close_decoder
        finally:
            self._held.discard(own)
            if own in self._waiting:
                self._waiting.remove(own)
            self._grant()

    def _grant(self) -> None:
        waits_for_memory = self._start(large=True, most=int(self.CAPACITY * _LARGE_SHARE))
        self._start(large=False, most=self.CAPACITY - waits_for_memory)

    def _start(self, *, large: bool, most: int) -> int:
        """Start large, or small, requests while they fit; return what is kept for the next one."""
        for own in [each for each in self._waiting if each.is_large is large]:
            same = [each for each in self._held if each.is_large is large]
            if sum(each.decodes for each in same) >= self._decoders:
                return 0
            # One that needs more than the share of large ones runs when no other large one does.
            share = max(most, own.size) if large else most
            used = own.size + sum(each.size for each in same)
            if used > share or own.size + sum(each.size for each in self._held) > self.CAPACITY:
                return share
            self._waiting.remove(own)
            self._held.add(own)
            if not own.granted.done():  # else its task was cancelled and has not run since
                own.granted.set_result(None)
        return 0
