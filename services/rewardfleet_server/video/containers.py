"""Video files from outside: what they are, and whether they are whole, before they are decoded."""

import os
from collections.abc import Iterator

from rewardfleet.wire.errors import InvalidRequest, TooLarge

ACCEPTED = "give an mp4, mov, mkv, webm or avi file"

#: The names with which an mp4 or mov may begin.
_MP4_BEGINNINGS = {b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"}


def check_container(fd: int, what: str, *, max_bytes: int) -> None:
    """Refuse what is no whole video container.

    Decoders guess; among what they would accept are playlists, which name other files. And of a
    file that was cut short they decode what there is, which is not how the rollout ended.

    Raises:
        InvalidRequest: It is empty, truncated, or its first bytes are none of a known container.
        TooLarge: It has more than `max_bytes`.
    """
    head, size = os.pread(fd, 16, 0), os.fstat(fd).st_size
    if size > max_bytes:
        raise TooLarge(
            f"{what} has {size / 2**20:.1f} MiB; at most {max_bytes / 2**20:g} MiB a video are "
            "accepted"
        )
    if not head:
        raise InvalidRequest(f"{what} is empty; {ACCEPTED}")
    if head[4:8] in _MP4_BEGINNINGS:
        claimed = max((end for _, end in _mp4_boxes(fd, size)), default=0)
    elif head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        claimed = 8 + int.from_bytes(head[4:8], "little")
    elif head[:4] == b"\x1a\x45\xdf\xa3":  # Matroska; a live recording need not know its length
        claimed = size
    else:
        raise InvalidRequest(f"{what} is not a video; {ACCEPTED}")
    if claimed > size:
        raise InvalidRequest(f"{what} is truncated: it claims {claimed} bytes and has {size}")


def counts_its_frames(path: str) -> bool:
    """Whether the file has a table of its frames, so that their number is known, not guessed.

    An mp4 or mov has, unless it was written in fragments.
    """
    with open(path, "rb") as file:
        fd = file.fileno()
        if os.pread(fd, 16, 0)[4:8] not in _MP4_BEGINNINGS:
            return False
        names = {name for name, _ in _mp4_boxes(fd, os.fstat(fd).st_size)}
    return b"moov" in names and b"moof" not in names


def _mp4_boxes(fd: int, size: int) -> Iterator[tuple[bytes, int]]:
    """Give the name and the claimed end of each outer box (ISO/IEC 14496-12, 4.2)."""
    position = 0
    while position < size:
        head = os.pread(fd, 16, position)
        length, name = int.from_bytes(head[:4], "big"), head[4:8]
        if length == 1:  # a long box: its length stands behind its name
            length = int.from_bytes(head[8:16], "big")
        if length == 0:  # the last box, up to the end
            length = size - position
        if length < 8:  # no box: what follows the last one is not our affair
            return
        position += length
        yield name, position
