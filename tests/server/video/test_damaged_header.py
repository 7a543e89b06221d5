"""Damage in the header of an mp4 file never changes the frames unnoticed; intact files are scored.

The files are those of different writers: see tests/data/mp4/README.md.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from rewardfleet.wire.errors import RewardFleetError
from rewardfleet_server.video.clip.frames import Clip

from ...conftest import DATA
from .test_damaged_video import decode

FOLDER = DATA / "mp4"
#: Each file, and the frames that it shows.
FRAMES = {
    "android.mp4": 24,
    "android_b.mp4": 24,
    "ffmpeg_cut.mp4": 32,
    "ffmpeg_cut_ms.mp4": 19,
    "ffmpeg_cut_open.mp4": 22,
    "ffmpeg_frag.mp4": 20,
    "ffmpeg_late.mp4": 50,
    "ffmpeg_vfr.mp4": 40,
    "ffmpeg_vfr_hevc.mp4": 40,
    "ffmpeg_vp9.mp4": 20,
    "gst_frag.mp4": 12,
    "gst_hevc.mov": 12,
    "gst_mp4mux.mp4": 12,
    "gst_qtmux.mov": 12,
    "imageio.mp4": 20,
    "ios.mov": 24,
    "ios_trim.mov": 16,
    "lerobot_av1.mp4": 12,
    "moviepy.mp4": 20,
    "opencv.mp4": 20,
}
#: In these files, an edit list hides frames at the end: docs/video-service.md says what cannot be
#: noticed then.
TRIMMED = {"ios_trim.mov", "ffmpeg_cut_open.mp4"}
#: With a variable rate, as also after a cut to milliseconds, a few changed times hide one frame.
UNEVEN = {"ffmpeg_cut_ms.mp4", "ffmpeg_vfr.mp4", "ffmpeg_vfr_hevc.mp4"}
#: One in so many changes is tried by `make test`.
STEP = 50
_PARENTS = {b"moov", b"trak", b"mdia", b"minf", b"stbl"}


class Change(NamedTuple):
    """A changed byte: where, in which box, how, and the changed file."""

    position: int
    box: bytes
    mask: int
    video: bytes


def boxes(video: bytes, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield the name, the start and the end of each box that has no boxes, or is a header."""
    while start + 8 <= end:
        length, name = int.from_bytes(video[start : start + 4], "big"), video[start + 4 : start + 8]
        if name in _PARENTS:
            yield name, start, start + 8
            yield from boxes(video, start + 8, start + length)
        elif name not in {b"mdat", b"free", b"wide", b"moof", b"mfra"}:
            yield name, start, start + length
        start += length


def changes(video: bytes, step: int) -> Iterator[Change]:
    """Yield two changes of every byte of the header: its lowest bit, and all its bits."""
    count = 0
    for name, start, end in boxes(video, 0, len(video)):
        for position in range(start, end):
            for mask in (1, 0xFF):
                count += 1
                if count % step == 0:
                    damaged = bytearray(video)
                    damaged[position] ^= mask
                    yield Change(position, name, mask, bytes(damaged))


def is_same(clip: Clip, other: Clip) -> bool:
    pairs = zip(clip.frames, other.frames, strict=False)
    return clip.total == other.total and all(np.array_equal(*pair) for pair in pairs)


def is_in_parameter_sets(video: bytes, position: int) -> bool:
    """Return whether a byte belongs to the parameter sets of H.264 or H.265."""
    for name in (b"avcC", b"hvcC"):
        start = video.find(name)
        length = int.from_bytes(video[start - 4 : start], "big")
        if start >= 0 and start - 4 <= position < start - 4 + length:
            return True
    return False


def unnoticed(path: Path, step: int) -> list[tuple[int, bytes, int, int]]:
    """Return the changes that show other frames, apart from those that the page lists."""
    video = path.read_bytes()
    intact, found = decode(video), []
    for change in changes(video, step):
        try:
            clip = decode(change.video)
        except RewardFleetError:
            continue
        same_count = clip.total == intact.total
        if is_same(clip, intact) or (same_count and is_in_parameter_sets(video, change.position)):
            continue
        found.append((change.position, change.box, change.mask, clip.total))
    return found


@pytest.mark.parametrize("name", FRAMES)
def test_an_intact_file_of_every_writer_is_decoded(name):
    assert decode((FOLDER / name).read_bytes()).total == FRAMES[name]


@pytest.mark.parametrize("name", sorted(FRAMES.keys() - TRIMMED - UNEVEN))
def test_a_changed_byte_of_the_header_never_changes_the_frames_unnoticed(name):
    assert not unnoticed(FOLDER / name, STEP)


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(FRAMES.keys() - TRIMMED - UNEVEN))
def test_no_changed_byte_of_the_header_changes_the_frames_unnoticed(name):
    assert not unnoticed(FOLDER / name, 1)


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(TRIMMED | UNEVEN))
def test_in_a_trimmed_or_uneven_file_only_times_are_not_noticed(name):
    found = unnoticed(FOLDER / name, 1)
    assert {box for _, box, _, _ in found} <= {b"ctts", b"edts", b"stts", b"mdhd"}
    assert len(found) <= 10


def test_the_version_of_a_header_is_checked():
    """With the version of 64-bit numbers, two frames of this file were shown."""
    video = bytearray((FOLDER / "imageio.mp4").read_bytes())
    video[video.index(b"mvhd") + 4] = 1
    with pytest.raises(RewardFleetError, match="mvhd has another length than its version"):
        decode(bytes(video))
