"""Intact mp4 files of every writer are decoded, and damage in their headers seldom goes unnoticed.

The files are those of different writers: see tests/data/mp4/README.md. A SHA-256 finds all damage.
"""

from collections.abc import Iterator

import numpy as np
import pytest

from rewardfleet.wire.errors import RewardFleetError

from ...conftest import DATA, table
from .test_damaged_video import decode

FOLDER = DATA / "mp4"
#: Each file, and the frames that it shows.
FRAMES = dict(table("frames_of_writers"))
#: One in so many changes is tried.
STEP = 50
_PARENTS = {b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf", b"mfra"}


def headers(video: bytes, start: int, end: int) -> Iterator[int]:
    """Yield the positions of all bytes that are not in samples."""
    while start + 8 <= end:
        length, name = int.from_bytes(video[start : start + 4], "big"), video[start + 4 : start + 8]
        if name in _PARENTS:
            yield from range(start, start + 8)
            yield from headers(video, start + 8, start + length)
        elif name not in {b"mdat", b"free", b"wide"}:
            yield from range(start, start + length)
        start += length


def changes(video: bytes) -> list[bytes]:
    """Return the file with a changed byte of a header: its lowest bit, or all its bits."""
    found = []
    places = [(at, mask) for at in headers(video, 0, len(video)) for mask in (1, 0xFF)]
    for at, mask in places[::STEP]:
        damaged = bytearray(video)
        damaged[at] ^= mask
        found.append(bytes(damaged))
    return found


def shows(video: bytes) -> list[np.ndarray] | None:
    """Return the frames of a file; None if it is refused."""
    try:
        return list(decode(video).frames)
    except RewardFleetError:
        return None


@pytest.mark.parametrize(
    ("name", "frames"),
    # In Matroska, a frame before the start of the file has no time.
    [*FRAMES.items(), ("ffmpeg_cut_hevc.mkv", 27)],
)
def test_an_intact_file_of_every_writer_is_decoded(name, frames):
    assert decode((FOLDER / name).read_bytes()).total == frames


@pytest.mark.parametrize("name", FRAMES)
def test_at_most_a_tenth_of_the_changed_bytes_of_a_header_change_the_frames_unnoticed(name):
    video = (FOLDER / name).read_bytes()
    intact, damaged = shows(video), changes(video)
    others = [frames for frames in map(shows, damaged) if frames is not None]
    wrong = [
        frames
        for frames in others
        if len(frames) != len(intact) or not all(map(np.array_equal, frames, intact))
    ]
    assert len(wrong) <= len(damaged) / 10
