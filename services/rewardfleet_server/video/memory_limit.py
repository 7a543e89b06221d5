"""The memory that decoders and decoded frames take: a semaphore whose weights are bytes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from rewardfleet.wire.errors import TooLarge

#: The largest small reservation: that of 16 frames of an H.264 clip of 1280x720 pixels is.
_SMALL_BYTES = 160 * 2**20
#: The share of the memory that large reservations get together, so that small ones need not wait.
_LARGE_SHARE = 0.75


def is_large(size: int) -> bool:
    """Return whether a reservation of so many bytes waits with the large ones."""
    return size > _SMALL_BYTES


@dataclass(eq=False)
class _Reservation:
    size: int
    is_large: bool
    granted: asyncio.Future[None]


class MemoryLimit:
    """Limits the memory of all requests together. Requests that do not fit wait in order.

    Small requests overtake large ones, which get three quarters of the memory. While a large one
    waits, small ones get the remaining quarter only, so it does not wait for those that come later.
    """

    CAPACITY = 4 * 2**30

    def __init__(self) -> None:
        self._held: set[_Reservation] = set()
        self._waiting: list[_Reservation] = []

    @asynccontextmanager
    async def reserve(self, frames: int, decoder: int = 0) -> AsyncIterator[Callable[[], None]]:
        """Reserve memory for the block.

        Args:
            frames: Bytes of the decoded frames.
            decoder: Bytes that are needed until the function that the context gives is called.

        Raises:
            TooLarge: It is more than the limit.
        """
        size = frames + decoder
        if size > self.CAPACITY:
            raise TooLarge(
                f"decoding takes up to {size / 2**30:.1f} GiB; at most "
                f"{self.CAPACITY / 2**30:g} GiB are available: send smaller or fewer frames, or "
                "another codec"
            )
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        own = _Reservation(size, is_large(size), granted)

        def close_decoder() -> None:
            own.size = frames
            self._grant()

        self._waiting.append(own)
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
        """Let those start that are next and fit."""
        large = sum(each.size for each in self._held if each.is_large)
        small = sum(each.size for each in self._held if not each.is_large)
        kept, small_waits = 0, False
        for each in self._waiting.copy():
            if each.is_large:
                # One that needs more than this share runs when no other large one does.
                share = max(int(self.CAPACITY * _LARGE_SHARE), each.size)
                fits = not kept and large + each.size <= min(share, self.CAPACITY - small)
                large += each.size if fits else 0
                kept = kept if fits or kept else share
            else:
                fits = not small_waits and small + each.size <= self.CAPACITY - max(large, kept)
                small += each.size if fits else 0
                small_waits = not fits
            if fits:
                self._waiting.remove(each)
                self._held.add(each)
                if not each.granted.done():  # else its task was cancelled and has not run since
                    each.granted.set_result(None)
