"""Check that a video file is complete before FFmpeg reads it: mp4, mov, Matroska, webm and avi.

FFmpeg guesses the format, and also accepts playlists, which name other files. It decodes a
truncated file up to its end; the judge would then get a frame in the middle of the rollout as the
last one. Whether it finds all frames of a complete file is checked by `video_reader`.
"""

import os
import re
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from rewardfleet.wire.errors import InvalidRequest, TooLarge

#: The advice in error messages about files of another type.
ACCEPTED = "give an mp4, mov, mkv, webm or avi file"

_CHUNK = 1 << 20
#: The longest header of an mp4 file. One with 20,000 frames and an hour of sound has 2 MiB.
_MAX_HEADER_BYTES = 16 << 20
#: The most samples of an mp4 file, with those of sound: FFmpeg reserves 40 bytes for each that a
#: header claims.
_MAX_SAMPLES = 1 << 20
#: The most reads of a file: they take a second. One with 20,000 frames and sound needs 150,000.
_MAX_READS = 200_000


class _File:
    """An open file. Reads are limited: it may consist of millions of parts."""

    def __init__(self, fd: int, label: str) -> None:
        self._fd, self._label = fd, label
        self.size = os.fstat(fd).st_size
        self._reads = 0

    def read(self, position: int, length: int) -> bytes:
        self._reads += 1
        if self._reads > _MAX_READS:
            raise self.damaged("it has too many parts")
        return os.pread(self._fd, length, position)

    def damaged(self, reason: str) -> InvalidRequest:
        return InvalidRequest(f"{self._label} is damaged and cannot be decoded: {reason}")

    def truncated(self, reason: str) -> InvalidRequest:
        return InvalidRequest(f"{self._label} is truncated: {reason}")


class _Part(NamedTuple):  # a box (mp4), an element (Matroska) or a chunk (avi)
    name: bytes
    content: int  #: where its content starts
    end: int


def check_container(fd: int, label: str, *, max_bytes: int) -> None:
    """Check that a file is a complete video container.

    Args:
        label: How error messages call it.

    Raises:
        InvalidRequest: It is empty, truncated, or not of a known container format.
        TooLarge: It has more than `max_bytes`, or too many samples.
    """
    file = _File(fd, label)
    if file.size > max_bytes:
        raise TooLarge(
            f"{label} has {file.size / 2**20:.1f} MiB; at most {max_bytes / 2**20:g} MiB per "
            "video are accepted"
        )
    head = file.read(0, 16)
    if not head:
        raise InvalidRequest(f"{label} is empty; {ACCEPTED}")
    if head[4:8] in _FIRST_BOXES:
        _check_mp4(file)
    elif head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        _check_avi(file)
    elif head[:4] == _EBML:
        if not _segment(file).end:
            raise file.damaged(
                "it is a live recording that does not state its length, so it may be cut; convert "
                "it to an mp4, mkv or webm file with a length"
            )
    else:
        raise InvalidRequest(f"{label} is not a video; {ACCEPTED}")


def _part(file: _File, name: bytes, content: int, end: int) -> _Part:
    if end > file.size:
        raise file.truncated(f"it claims {end} bytes and has {file.size}")
    return _Part(name, content, end)


# ISO/IEC 14496-12: mp4 and mov

#: Types of the first box of an mp4 or mov file.
_FIRST_BOXES = {b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"}
#: Where tables state the number of their samples. FFmpeg finds them in boxes of any kind.
_SAMPLE_COUNTS = re.compile(rb"(?:st(?:sz|z2).{4}|trun).{4}(.{4})", re.DOTALL)


def _check_mp4(file: _File) -> None:
    samples, names = 0, []
    for box in _boxes(file):
        names.append(box.name)
        if box.name in {b"moov", b"moof"}:
            length = box.end - box.content
            if length > _MAX_HEADER_BYTES:
                raise file.damaged("its header is too long")
            counts = _SAMPLE_COUNTS.findall(file.read(box.content, length))
            samples += sum(int.from_bytes(count, "big") for count in counts)
            if samples > _MAX_SAMPLES:
                raise TooLarge(f"{samples} samples; at most {_MAX_SAMPLES} are accepted")
    if b"moov" not in names:
        raise file.damaged("it has no index (the box moov)")
    # Without an index, a file that is cut between two fragments looks complete.
    if b"moof" in names and b"mfra" not in names and names.count(b"sidx") != 1:
        raise file.damaged(
            "it has fragments and no index of them (the boxes mfra or sidx), so it may be cut; "
            "convert it to an mp4 file without fragments"
        )


def read_mp4_header(path: str) -> tuple[float, int]:
    """Return the seconds of a complete mp4 file (0: unknown), and the bytes of its samples.

    The latter are 0 if it has no fragments. `check_container` has the errors.
    """
    with open(path, "rb") as content:
        file = _File(content.fileno(), "the video")
        boxes = list(_boxes(file))
        moov = next(box for box in boxes if box.name == b"moov")
        mvhd = file.read(moov.content, moov.end - moov.content).partition(b"mvhd")[2]
    # Timescale and duration follow two times, which have 64 bits in version 1, as the duration.
    is_wide = mvhd[:1] == b"\x01"
    scale, duration = (mvhd[20:24], mvhd[24:32]) if is_wide else (mvhd[12:16], mvhd[16:20])
    ticks = int.from_bytes(duration, "big")
    is_unknown = ticks == (1 << 8 * len(duration)) - 1
    seconds = 0.0 if is_unknown else ticks / max(int.from_bytes(scale, "big"), 1)
    is_fragmented = any(box.name == b"moof" for box in boxes)
    media = (box.end - box.content for box in boxes if box.name == b"mdat")
    return seconds, sum(media) if is_fragmented else 0


def _boxes(file: _File) -> Iterator[_Part]:
    position = 0
    while position + 8 <= file.size:
        head = file.read(position, 16)
        length, name, header = int.from_bytes(head[:4], "big"), head[4:8], 8
        if length == 1:  # a long box: its length follows its type
            length, header = int.from_bytes(head[8:16], "big"), 16
        if length == 0 and any(name):  # the last box, up to the end
            length = file.size - position
        if length < header:  # not a box: bytes after the last box are ignored
            return
        yield _part(file, name, position + header, position + length)
        position += length


# RFC 9559: Matroska and webm

_EBML = b"\x1a\x45\xdf\xa3"
_SEGMENT = b"\x18\x53\x80\x67"
_CLUSTER = b"\x1f\x43\xb6\x75"
_CHECKSUM = b"\xbf\x84"
#: SimpleBlock, BlockGroup.
_BLOCKS = {b"\xa3", b"\xa0"}
#: Numbers in a cluster, of up to 8 bytes: Timestamp, Position, PrevSize.
_NUMBERS = {b"\xe7", b"\xa7", b"\xab"}
#: Elements of a segment and of its clusters: besides those above, SeekHead, Info, Tracks, Cues,
#: Tags, Chapters, Attachments; SilentTracks, EncryptedBlock; Void, CRC-32.
_ELEMENTS = {
    *(*_BLOCKS, *_NUMBERS, _CLUSTER, b"\x11\x4d\x9b\x74", b"\x15\x49\xa9\x66"),
    *(b"\x16\x54\xae\x6b", b"\x1c\x53\xbb\x6b", b"\x12\x54\xc3\x67", b"\x10\x43\xa7\x70"),
    *(b"\x19\x41\xa4\x69", b"\x58\x54", b"\xaf", b"\xec", b"\xbf"),
}


def count_blocks(path: str) -> int:
    """Return how many blocks a Matroska file has; raise InvalidRequest if an element is damaged."""
    with open(path, "rb") as content:
        file = _File(content.fileno(), "the video")
        return sum(part.name in _BLOCKS for part in _elements(file, _segment(file)))


def _segment(file: _File) -> _Part:
    segment = _element(file, _element(file, 0).end)
    if segment.name != _SEGMENT:
        raise file.damaged("it has no segment")
    return segment


def _elements(file: _File, segment: _Part) -> Iterator[_Part]:
    """Yield the elements of a segment, with those of its clusters, which need not have a length."""
    position = segment.content
    while position < segment.end:
        part = _element(file, position)
        is_sized = part.end > 0 or part.name == _CLUSTER
        is_too_long = part.name in _NUMBERS and part.end - part.content > 8
        if part.name not in _ELEMENTS or not is_sized or is_too_long:
            raise file.damaged("an element is not known")
        _check_crc(file, part)
        yield part
        position = part.content if part.name == _CLUSTER else part.end


def _check_crc(file: _File, part: _Part) -> None:
    """Check the CRC-32 of an element, if it has one, as ffmpeg and mkvmerge write it."""
    if part.end - part.content < 6 or part.name in _BLOCKS:
        return
    head = file.read(part.content, 6)
    if not head.startswith(_CHECKSUM):
        return
    checksum = 0
    for position in range(part.content + 6, part.end, _CHUNK):
        checksum = zlib.crc32(file.read(position, min(_CHUNK, part.end - position)), checksum)
    if checksum != int.from_bytes(head[2:], "little"):
        raise file.damaged("a checksum (CRC-32) is wrong")


def _element(file: _File, position: int) -> _Part:
    """Read the header of an element; its end is 0 if it does not state its length."""
    head = file.read(position, 12)
    width = 9 - head[0].bit_length() if head else 0
    if width > 4:
        raise file.damaged("an element is not known")
    length, size = _vint(file, head[width:])
    content = position + width + size
    if length == (1 << 7 * size) - 1:
        return _Part(head[:width], content, 0)
    return _part(file, head[:width], content, content + length)


def _vint(file: _File, head: bytes) -> tuple[int, int]:
    """Return an EBML number of variable length, and its length."""
    width = 9 - head[0].bit_length() if head else 1
    if width > 8:
        raise file.damaged("an element has no valid length")
    if len(head) < width:
        raise file.truncated("an element is incomplete")
    return int.from_bytes(head[:width], "big") & (1 << 7 * width) - 1, width


def _check_avi(file: _File) -> None:
    """Check the chunks of RIFF."""
    position = 0
    while (head := file.read(position, 8))[:4] == b"RIFF":  # what follows the last one is ignored
        length = int.from_bytes(head[4:], "little")
        position = _part(file, b"RIFF", position + 8, position + 8 + length).end + length % 2
