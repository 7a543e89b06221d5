"""Bodies with frames as raw bytes; `rewardfleet.wire.frames` describes them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import zstandard

from rewardfleet.wire.errors import InvalidRequest, TooLarge
from rewardfleet.wire.frames import FRAMES_TYPE, LENGTH_BYTES

from .routes import AttachedFrames

DecodedT = TypeVar("DecodedT")

#: The most memory of a decompressor: what level 19 of zstd needs.
_MAX_WINDOW_BYTES = 8 * 2**20


class FramesBody:
    """A body of the type `FRAMES_TYPE`, which is decompressed as far as it is read.

    Args:
        body: Its bytes as they arrived.
        is_compressed: Whether they are compressed with zstd.
        max_bytes: The most bytes of it without compression.
    """

    def __init__(self, body: memoryview, *, is_compressed: bool, max_bytes: int) -> None:
        self._rest, self._arrived = body, len(body)
        self._max_bytes = max_bytes
        self._stream: zstandard.ZstdDecompressionReader | None = None
        if is_compressed:
            decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
            self._stream = decompressor.stream_reader(self._rest, read_across_frames=True)

    async def decode(
        self,
        decode: Callable[[bytes], Awaitable[DecodedT]],
        frames_of: Callable[[DecodedT], AttachedFrames],
        on_size: Callable[[int], None],
    ) -> DecodedT:
        """Decode the JSON, and give its frames their pixels.

        Args:
            decode: Decodes the JSON.
            frames_of: Returns the frames of what was decoded.
            on_size: Called with the number of bytes before they are decompressed.

        Raises:
            InvalidRequest: It cannot be decoded, or the frames do not fit into it.
            TooLarge: It has too many bytes.
        """
        length = int.from_bytes(await self._take(LENGTH_BYTES), "little")
        if length > self._max_bytes:
            raise InvalidRequest(
                f"the JSON in a body of the type {FRAMES_TYPE} may have {self._max_bytes} bytes; "
                f"its first {LENGTH_BYTES} bytes state {length}"
            )
        if self._stream is not None:
            on_size(self._arrived + length)
        decoded = await decode(bytes(await self._take(length)))
        frames, is_complete = frames_of(decoded)
        size = max((each.end for each in frames), default=0)
        if length + size > self._max_bytes:
            limit = self._max_bytes / 2**20
            raise TooLarge(f"the frames are larger than this service accepts ({limit:g} MiB)")
        if self._stream is not None:
            on_size(self._arrived + length + size)
        pixels = await self._take(size)
        for each in frames:
            each.set_pixels(pixels[each.offset : each.end])
        if is_complete and await self._next(1):
            raise InvalidRequest(f"the body is longer than the {size} bytes of its frames")
        return decoded

    async def _take(self, size: int) -> memoryview:
        """Return the next `size` bytes; refuse fewer."""
        part = await self._next(size)
        if len(part) < size:
            raise InvalidRequest(f"the body ends {size - len(part)} bytes too early")
        return part

    async def _next(self, size: int) -> memoryview:
        """Return the next bytes, at most `size`; refuse what cannot be decompressed."""
        if self._stream is None:
            part, self._rest = self._rest[:size], self._rest[size:]
            return part
        try:
            return memoryview(await asyncio.to_thread(self._stream.read, size))
        except zstandard.ZstdError as error:
            raise InvalidRequest(f"the body cannot be decompressed: {error}") from None
