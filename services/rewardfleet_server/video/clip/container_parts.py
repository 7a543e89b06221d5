"""The parts that video files consist of: boxes (mp4), elements (Matroska) or chunks (avi)."""

import os
from collections.abc import Iterator
from typing import Literal, NamedTuple

#: The most reads of a file: they take a second. One with 20,000 frames and sound needs 150,000.
_MAX_READS = 200_000


class TruncatedError(Exception):
    """A part of the file ends after the file."""


class DamagedError(Exception):
    """The parts of the file, or the fields of its header, contradict each other."""


class DescriptorReader:
    """The content of an open file. Reads are limited: it may consist of millions of parts."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._size = os.fstat(fd).st_size
        self._reads = 0

    def __len__(self) -> int:
        """Return its bytes when it was opened."""
        return self._size

    def __getitem__(self, at: slice) -> bytes:
        """Read bytes.

        Raises:
            DamagedError: The file has been read too often.
        """
        self._reads += 1
        if self._reads > _MAX_READS:
            raise DamagedError("it has too many parts")
        return os.pread(self._fd, at.stop - at.start, at.start)


class Part(NamedTuple):
    """A part of a file, or the whole file."""

    source: bytes | DescriptorReader  #: what it is read from
    name: bytes  #: its type; empty for the whole file
    start: int  #: where its header starts
    content: int  #: where its content starts
    end: int  #: where its content ends; if the file does not state it, where its parent ends
    is_sized: bool = True  #: whether the file states it

    @property
    def length(self) -> int:
        """The bytes of its content."""
        return self.end - self.content

    def read(self, position: int = 0, length: int | None = None) -> bytes:
        """Return up to `length` bytes from a position of its content; by default all."""
        start = self.content + position
        end = self.end if length is None else min(start + length, self.end)
        return self.source[start : max(start, end)]

    def number(
        self, position: int = 0, length: int = 4, order: Literal["big", "little"] = "big"
    ) -> int:
        """Return the number of `length` bytes at a position of its content."""
        return int.from_bytes(self.read(position, length), order)

    def child(self, name: bytes, start: int, content: int, length: int) -> "Part":
        """Return a part in this one.

        Raises:
            TruncatedError: It ends after the file.
            DamagedError: It ends after this part.
        """
        self.check_end(content + length)
        return Part(self.source, name, start, content, content + length)

    def check_end(self, end: int) -> None:
        """Check that a position is in this part; see `child`."""
        size = len(self.source)
        if end > size:
            raise TruncatedError(f"it claims {end} bytes and has {size}")
        if end > self.end:
            raise DamagedError("a part is longer than the part that contains it")


def whole(source: bytes | DescriptorReader) -> Part:
    """Return a whole file as a part."""
    return Part(source, b"", 0, 0, len(source))


def boxes(parent: Part) -> Iterator[Part]:
    """Yield the boxes of an mp4 or mov file, or of a box: ISO/IEC 14496-12, 4.2."""
    position = parent.content
    while position + 8 <= parent.end:
        head = parent.read(position - parent.content, 16)
        length, name, header = int.from_bytes(head[:4], "big"), head[4:8], 8
        if length == 1:  # a long box: its length follows its type
            length, header = int.from_bytes(head[8:16], "big"), 16
        if length == 0 and not parent.name and any(name):  # the last box, up to the end
            length = parent.end - position
        if length < header:  # not a box: bytes after the last box are ignored
            return
        yield parent.child(name, position, position + header, length - header)
        position += length
