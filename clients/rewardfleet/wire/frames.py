"""Bodies with frames as raw bytes, next to the JSON that describes them.

A body of the type `FRAMES_TYPE` is

    4 bytes    the length of the JSON, unsigned, little-endian
    JSON       the body of `POST /score` or `POST /score/batch`, where items have `frames`
    the rest   the pixels of all items: uint8, RGB

With `Content-Encoding: zstd`, all of it is compressed.
"""

import math
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, PrivateAttr, model_validator

from .errors import InvalidRequest
from .score import BatchRequest, Request
from .validation import encode_json

JSON_TYPE = "application/json"
FRAMES_TYPE = "application/vnd.rewardfleet.frames"
ZSTD = "zstd"
LENGTH_BYTES = 4
#: The most frames of an item, also as images.
MAX_FRAMES_SENT = 1024

#: Bytes, as an object that shares memory with others.
Buffer = bytes | memoryview

#: The order of dimensions: frames, height, width and channels.
FrameOrder = Literal["THWC", "TCHW"]

_Size = Annotated[int, Field(ge=1, le=2**20)]


class Frames(Request):
    """The shape of an item's frames, and where their pixels are in the body."""

    shape: tuple[Annotated[int, Field(ge=1, le=MAX_FRAMES_SENT)], _Size, _Size, _Size] = Field(
        description="The number of frames, and their dimensions as in `order`."
    )
    order: FrameOrder = Field("THWC", description="`[T, H, W, 3]` or `[T, 3, H, W]`, row by row.")
    offset: Annotated[int, Field(ge=0, le=2**53)] = Field(
        0, description="Where the pixels begin, in bytes after the JSON."
    )
    _pixels: Sequence[Buffer] = PrivateAttr(())

    @model_validator(mode="after")
    def _has_three_channels(self) -> Self:
        if self.shape[self.order.index("C")] != 3:
            raise ValueError(f"shape: {self.order} needs 3 channels; got {list(self.shape)}")
        return self

    @property
    def size(self) -> int:
        """The number of bytes of the pixels."""
        return math.prod(self.shape)

    @property
    def end(self) -> int:
        """Where the pixels end, in bytes after the JSON."""
        return self.offset + self.size

    @property
    def pixels(self) -> Sequence[Buffer]:
        """The pixels, in one part or more; `InvalidRequest` if there are none: the body is JSON."""
        if not self._pixels:
            raise InvalidRequest(f"frames: their pixels are in a body of the type {FRAMES_TYPE}")
        return self._pixels

    def set_pixels(self, *parts: Buffer) -> None:
        """Add the pixels, `size` bytes. They are not copied."""
        self._pixels = parts

    def __deepcopy__(self, memo: Any = None) -> Self:
        """Return a copy, also of the pixels."""
        copied = self.model_copy()
        copied.set_pixels(*map(bytes, self._pixels))
        return copied

    def __getstate__(self) -> dict[Any, Any]:
        """Return the state with a copy of the pixels: a view of memory cannot be pickled."""
        private = {"_pixels": tuple(map(bytes, self._pixels))}
        return {**super().__getstate__(), "__pydantic_private__": private}


def encode_body(body: BaseModel) -> tuple[str, list[Buffer]]:
    """Return the media type of a request's body, and its parts; see `encode_json`."""
    parts: list[Buffer] = []
    placed: list[BaseModel] = []
    end = 0
    for item in body.items if isinstance(body, BatchRequest) else [body]:
        frames = getattr(item, "frames", None)
        if isinstance(frames, Frames):
            parts += frames.pixels
            moved = frames.model_copy(update={"offset": end})
            placed.append(item.model_copy(update={"frames": moved}))
            end += frames.size
        else:
            placed.append(item)
    if not parts:
        return JSON_TYPE, [encode_json(body)]
    is_batch = isinstance(body, BatchRequest)
    content = encode_json(BatchRequest.model_construct(items=placed) if is_batch else placed[0])
    return FRAMES_TYPE, [len(content).to_bytes(LENGTH_BYTES, "little") + content, *parts]


def compress(parts: Iterable[Buffer]) -> bytes:
    """Return a body compressed with zstd, for which `zstandard` must be installed."""
    zstandard = import_module("zstandard")  # an optional package
    compressor = zstandard.ZstdCompressor(level=1).compressobj()
    return b"".join([*map(compressor.compress, parts), compressor.flush()])
