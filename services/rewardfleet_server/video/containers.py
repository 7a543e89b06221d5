"""Check the container of a video file before it is decoded."""

import os
from collections.abc import Iterator

from rewardfleet.wire.errors import InvalidRequest, TooLarge

#: The advice in error messages about files of another type.
ACCEPTED = "give an mp4, mov, mkv, webm or avi file"

#: Types of the first box of an mp4 or mov file.
_FIRST_BOXES = {b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"}


def check_container(fd: int, label: str, *, max_bytes: int) -> None:
    """Check that a file is a complete video container.

    Decoders guess the format, and also accept playlists, which name other files. They decode a
    truncated file up to its end; the judge would then get a frame in the middle of the rollout.

    Args:
        fd: The open file.
        label: How error messages call it.
        max_bytes: The largest file accepted.

    Raises:
        InvalidRequest: It is empty, truncated, or not of a known container format.
        TooLarge: It has more than `max_bytes`.
    """
    head, size = os.pread(fd, 16, 0), os.fstat(fd).st_size
    if size > max_bytes:
        raise TooLarge(
            f"{label} has {size / 2**20:.1f} MiB; at most {max_bytes / 2**20:g} MiB per video are "
            "accepted"
        )
    if not head:
        raise InvalidRequest(f"{label} is empty; {ACCEPTED}")
    if head[4:8] in _FIRST_BOXES:
        claimed = max((end for _, end in _mp4_boxes(fd, size)), default=0)
    elif head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        claimed = 8 + int.from_bytes(head[4:8], "little")
    elif head[:4] == b"\x1a\x45\xdf\xa3":  # Matroska; live recordings do not state a length
        claimed = size
    else:
        raise InvalidRequest(f"{label} is not a video; {ACCEPTED}")
    if claimed > size:
        raise InvalidRequest(f"{label} is truncated: it claims {claimed} bytes and has {size}")


def has_frame_index(path: str) -> bool:
    """Return whether a file has an index of its frames, so that their number is known.

    An mp4 or mov file has one, unless it was written in fragments.
    """
    with open(path, "rb") as file:
        fd = file.fileno()
        if os.pread(fd, 16, 0)[4:8] not in _FIRST_BOXES:
            return False
        names = {name for name, _ in _mp4_boxes(fd, os.fstat(fd).st_size)}
    return b"moov" in names and b"moof" not in names


def _mp4_boxes(fd: int, size: int) -> Iterator[tuple[bytes, int]]:
    """Yield the type and the claimed end of each top-level box (ISO/IEC 14496-12, 4.2)."""
    position = 0
    while position < size:
        head = os.pread(fd, 16, position)
        length, name = int.from_bytes(head[:4], "big"), head[4:8]
        if length == 1:  # a long box: its length follows its type
            length = int.from_bytes(head[8:16], "big")
        if length == 0:  # the last box, up to the end
            length = size - position
        if length < 8:  # not a box: bytes after the last box are ignored
            return
        position += length
        yield name, position
