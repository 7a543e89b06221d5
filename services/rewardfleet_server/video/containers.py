"""Check that a video file is complete before it is decoded: mp4, mov, Matroska, webm and avi.

Decoders guess the format, and also accept playlists, which name other files. They decode a
truncated file up to its end, and skip what they cannot read; the judge would then get a frame in
the middle of the rollout as the last one.
"""

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from rewardfleet.wire.errors import InvalidRequest, TooLarge

from .mp4_header import ContradictionError, check_header, frame_sizes

#: The advice in error messages about files of another type.
ACCEPTED = "give an mp4, mov, mkv, webm or avi file"

_CHUNK = 1 << 20
#: The most reads of a file: they take a second. One with 20,000 frames and sound needs 150,000.
_MAX_READS = 200_000
#: The longest header of an mp4 file. One with 20,000 frames and an hour of sound has 2 MiB.
_MAX_HEADER_BYTES = 16 << 20


def check_container(fd: int, label: str, *, max_bytes: int) -> None:
    """Check that a file is a complete video container.

    Args:
        fd: The open file.
        label: How error messages call it.
        max_bytes: The largest file accepted.

    Raises:
        InvalidRequest: It is empty, truncated, damaged, or not of a known container format.
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
    try:
        if head[4:8] in _FIRST_BOXES:
            _check_mp4(_File(fd, size))
        elif head[:4] == b"RIFF" and head[8:12] == b"AVI ":
            _check_avi(_File(fd, size))
        elif head[:4] == _EBML:
            _check_matroska(_File(fd, size))
        else:
            raise InvalidRequest(f"{label} is not a video; {ACCEPTED}")
    except _TruncatedError as error:
        raise InvalidRequest(f"{label} is truncated: {error}") from None
    except (_DamagedError, RecursionError) as error:
        reason = "its parts are nested too deeply" if isinstance(error, RecursionError) else error
        raise InvalidRequest(f"{label} is damaged and cannot be decoded: {reason}") from None


def stated_frame_sizes(path: str) -> set[tuple[int, int]]:
    """Return the width and the height of each video track of a checked mp4 or mov file."""
    with open(path, "rb") as content:
        file = _File(content.fileno(), os.fstat(content.fileno()).st_size)
        moov = next(box for box in _boxes(file, 0, file.size) if box.name == b"moov")
        return frame_sizes(file.read(moov.end - moov.content, moov.content))


class _TruncatedError(Exception):
    """A part of the file ends after the file."""


class _DamagedError(Exception):
    """The parts of the file contradict each other."""


class _File:
    """An open file, whose number of reads is limited: it may consist of millions of parts.

    Attributes:
        size: Its bytes.
    """

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self.size = size
        self._reads = 0

    def read(self, length: int, position: int) -> bytes:
        """Read up to `length` bytes at a position.

        Raises:
            _DamagedError: The file has been read too often.
        """
        self._reads += 1
        if self._reads > _MAX_READS:
            raise _DamagedError("it has too many parts")
        return os.pread(self._fd, length, position)


@dataclass(frozen=True)
class _Part:
    """A box (mp4), an element (Matroska) or a chunk (avi).

    Attributes:
        name: Its type.
        start: Where its header starts.
        content: Where its content starts.
        end: Where its content ends; if the file does not state it, where its parent ends.
        is_sized: Whether the file states it.
    """

    name: bytes
    start: int
    content: int
    end: int
    is_sized: bool = True


def _check_end(file: _File, end: int, parent_end: int) -> None:
    if end > file.size:
        raise _TruncatedError(f"it claims {end} bytes and has {file.size}")
    if end > parent_end:
        raise _DamagedError("a part is longer than the part that contains it")


# ISO/IEC 14496-12: mp4 and mov

#: Types of the first box of an mp4 or mov file.
_FIRST_BOXES = {b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"}
#: Boxes that consist of boxes.
_PARENT_BOXES = {b"moov", b"trak", b"mdia", b"minf", b"stbl", b"mvex", b"moof", b"traf", b"mfra"}


def _check_mp4(file: _File) -> None:
    boxes = list(_boxes(file, 0, file.size))
    names = {box.name for box in boxes}
    if b"moov" not in names:
        raise _DamagedError("it has no index (the box moov)")
    for box in boxes:
        _check_box(file, box)
        if box.name == b"moov":
            _check_header(file, box)
    fragments = {box.start for box in boxes if box.name == b"moof"}
    if fragments:
        _check_fragments(file, boxes, fragments)
        _check_fragment_times(file, boxes)


def _check_header(file: _File, moov: _Part) -> None:
    if moov.end - moov.content > _MAX_HEADER_BYTES:
        raise _DamagedError("its header is too long")
    try:
        check_header(file.read(moov.end - moov.content, moov.content))
    except ContradictionError as error:
        raise _DamagedError(str(error)) from None


def _boxes(file: _File, start: int, end: int) -> Iterator[_Part]:
    """Yield the boxes between two positions."""
    position = start
    while position + 8 <= end:
        head = file.read(16, position)
        length, name, header = int.from_bytes(head[:4], "big"), head[4:8], 8
        if length == 1:  # a long box: its length follows its type
            length, header = int.from_bytes(head[8:16], "big"), 16
        if length == 0 and end == file.size and any(name):  # the last box, up to the end
            length = file.size - position
        if length < header:  # not a box: bytes after the last box are ignored
            return
        _check_end(file, position + length, end)
        yield _Part(name, position, position + header, position + length)
        position += length


def _check_box(file: _File, box: _Part) -> None:
    """Check that the boxes in a box fill it, and that a fragment has samples."""
    if box.name not in _PARENT_BOXES:
        return
    children = list(_boxes(file, box.content, box.end))
    filled = children[-1].end if children else None
    if filled is None or box.end - filled >= 8:
        raise _DamagedError(f"the box {box.name.decode()} is not filled by its parts")
    names = {child.name for child in children}
    required = {b"moof": b"traf", b"traf": b"tfhd"}.get(box.name)
    if required is not None and required not in names:
        raise _DamagedError("a fragment has no samples")
    if box.name == b"traf" and b"trun" not in names:
        flags = _number(file, next(child.content for child in children if child.name == b"tfhd"), 4)
        if not flags & 0x010000:  # "duration is empty"
            raise _DamagedError("a fragment has no samples")
    for child in children:
        _check_box(file, child)


def _check_fragments(file: _File, boxes: list[_Part], fragments: set[int]) -> None:
    """Check that all fragments that the file's index lists are there, and that it has an index.

    Without one, a file that is cut between two fragments looks complete.
    """
    indexed = False
    for box in boxes:
        if box.name == b"mfra":
            listed = set(_mfra_offsets(file, box.content, box.end))
            if not listed <= fragments:
                raise _DamagedError("a fragment that its index lists is missing")
            indexed = True
        elif box.name == b"sidx":
            ends = _sidx_ends(file, box)
            if ends[-1] > file.size:
                raise _TruncatedError(f"its index lists {ends[-1]} bytes and it has {file.size}")
            if not set(ends[1:-1]) <= {each.start for each in boxes}:
                raise _DamagedError("a fragment that its index lists is missing")
            first, last = min(fragments), max(fragments)
            indexed = indexed or (ends[0] <= first and last < ends[-1])
    if not indexed:
        raise _DamagedError(
            "it has fragments and no index of them (the boxes mfra or sidx), so it may be cut; "
            "convert it to an mp4 file without fragments"
        )


def _check_fragment_times(file: _File, boxes: list[_Part]) -> None:
    """Check that the fragments of each track are in the order of their times."""
    latest: dict[int, int] = {}
    for fragment in boxes:
        if fragment.name != b"moof":
            continue
        for traf in _boxes(file, fragment.content, fragment.end):
            if traf.name != b"traf":
                continue
            children = {child.name: child for child in _boxes(file, traf.content, traf.end)}
            if b"tfdt" not in children:
                continue
            track = _number(file, children[b"tfhd"].content + 4, 4)
            at = children[b"tfdt"].content
            time = _number(file, at + 4, 8 if _number(file, at, 1) else 4)
            if time < latest.get(track, 0):
                raise _DamagedError("its fragments are not in the order of their times")
            latest[track] = time


def _mfra_offsets(file: _File, start: int, end: int) -> Iterator[int]:
    """Yield the positions of fragments in a fragment index."""
    for box in _boxes(file, start, end):
        if box.name != b"tfra":
            continue
        wide = file.read(1, box.content) == b"\x01"
        lengths = _number(file, box.content + 8, 4)
        entry = (16 if wide else 8) + 3 + sum(lengths >> shift & 3 for shift in (0, 2, 4))
        count, position = _number(file, box.content + 12, 4), box.content + 16
        _check_end(file, position + count * entry, end)
        for index in range(count):
            at = position + index * entry
            yield _number(file, at + 8, 8) if wide else _number(file, at + 4, 4)


def _sidx_ends(file: _File, box: _Part) -> list[int]:
    """Return where the content that a segment index lists starts, and where each segment ends."""
    wide = file.read(1, box.content) == b"\x01"
    position = box.content + (28 if wide else 20)
    first_offset = _number(file, box.content + (20 if wide else 16), 8 if wide else 4)
    count = _number(file, position + 2, 2)
    ends = [box.end + first_offset]
    for index in range(count):
        length = _number(file, position + 4 + 12 * index, 4) & 0x7FFFFFFF
        ends.append(ends[-1] + length)
    return ends


def _number(file: _File, position: int, length: int) -> int:
    return int.from_bytes(file.read(length, position), "big")


# RFC 9559: Matroska and webm

_EBML = b"\x1a\x45\xdf\xa3"
_SEGMENT = b"\x18\x53\x80\x67"
_CLUSTER = b"\x1f\x43\xb6\x75"
_CUES = b"\x1c\x53\xbb\x6b"
_SEEK_HEAD = b"\x11\x4d\x9b\x74"
_TRACKS = b"\x16\x54\xae\x6b"
_TAGS = b"\x12\x54\xc3\x67"
_CHECKSUM, _VOID = b"\xbf", b"\xec"
_BLOCK, _SIMPLE_BLOCK, _BLOCK_GROUP = b"\xa1", b"\xa3", b"\xa0"
_IN_EVERY = {_CHECKSUM, _VOID}
#: Elements of a segment: besides those above, Info, Chapters and Attachments.
_IN_SEGMENT = _IN_EVERY | {
    *(_CLUSTER, _CUES, _SEEK_HEAD, _TRACKS, _TAGS),
    *(b"\x15\x49\xa9\x66", b"\x10\x43\xa7\x70", b"\x19\x41\xa4\x69"),
}
#: Elements of a cluster: blocks, Timestamp, SilentTracks, Position, PrevSize, EncryptedBlock.
_IN_CLUSTER = _IN_EVERY | {
    *(_SIMPLE_BLOCK, _BLOCK_GROUP),
    *(b"\xe7", b"\x58\x54", b"\xa7", b"\xab", b"\xaf"),
}


def _check_matroska(file: _File) -> None:
    header = _element(file, 0, file.size)
    segment = _element(file, header.end, file.size)
    if segment.name != _SEGMENT:
        raise _DamagedError("it has no segment")
    if not segment.is_sized:
        raise _DamagedError(
            "it is a live recording that does not state its length, so it may be cut; convert it "
            "to an mp4, mkv or webm file with a length"
        )
    clusters: set[int] = set()
    targets: set[int] = set()
    tracks: set[int] = set()
    position = segment.content
    while position < segment.end:
        part = _element(file, position, segment.end)
        if part.name not in _IN_SEGMENT:
            raise _DamagedError("an element of the segment is not known")
        if part.name == _CLUSTER:
            clusters.add(part.start - segment.content)
            position = _check_cluster(file, part, tracks)
            continue
        if not part.is_sized:
            raise _DamagedError("an element of the segment has no length")
        _check_crc(file, part)
        if part.name == _TRACKS:
            tracks |= {
                _number(file, each.content, each.end - each.content)
                for each in _find(file, part, (b"\xae", b"\xd7"))
            }
        elif part.name == _CUES:
            targets |= {
                _number(file, each.content, each.end - each.content)
                for each in _find(file, part, (b"\xbb", b"\xb7", b"\xf1"))
            }
        elif part.name == _SEEK_HEAD:
            _check_seek_head(file, part, segment.content)
        position = part.end
    if not clusters:
        raise _DamagedError("it has no cluster")
    if not targets <= clusters:
        raise _DamagedError("a cluster that its index lists is missing")


def _check_cluster(file: _File, cluster: _Part, tracks: set[int]) -> int:
    """Check that a cluster consists of complete blocks of known tracks; return where it ends."""
    if cluster.is_sized:
        _check_crc(file, cluster)
    position = cluster.content
    while position < cluster.end:
        part = _element(file, position, cluster.end)
        if not cluster.is_sized and part.name not in _IN_CLUSTER and part.name in _IN_SEGMENT:
            return position
        if part.name not in _IN_CLUSTER or not part.is_sized:
            raise _DamagedError("an element of a cluster is not known")
        block: _Part | None = part if part.name == _SIMPLE_BLOCK else None
        if part.name == _BLOCK_GROUP:
            block = next(_find(file, part, (_BLOCK,)), None)
            if block is None:
                raise _DamagedError("a block is missing")
        if block is not None and _vint(file.read(8, block.content))[0] not in tracks:
            raise _DamagedError("a block belongs to no track")
        position = part.end
    return position


def _find(file: _File, parent: _Part, path: tuple[bytes, ...]) -> Iterator[_Part]:
    """Yield the elements at a path below an element; check that all elements on it are filled."""
    position = parent.content
    while position < parent.end:
        part = _element(file, position, parent.end)
        if not part.is_sized:
            raise _DamagedError("an element has no length")
        if part.name == path[0]:
            if len(path) == 1:
                yield part
            else:
                yield from _find(file, part, path[1:])
        position = part.end


def _check_seek_head(file: _File, part: _Part, base: int) -> None:
    """Check that the elements that a segment lists are in the file."""
    for entry in _find(file, part, (b"\x4d\xbb",)):
        for each in _find(file, entry, (b"\x53\xac",)):
            position = base + _number(file, each.content, each.end - each.content)
            if position >= file.size:
                raise _TruncatedError(f"its index names byte {position} and it has {file.size}")


def _check_crc(file: _File, parent: _Part) -> None:
    """Check the CRC-32 of an element, if it has one, as ffmpeg and mkvmerge write it."""
    head = file.read(6, parent.content)
    if head[:2] != _CHECKSUM + b"\x84" or parent.end - parent.content < 6:
        return
    position, checksum = parent.content + 6, 0
    while position < parent.end:
        chunk = file.read(min(_CHUNK, parent.end - position), position)
        if not chunk:
            break  # the file became shorter
        checksum = zlib.crc32(chunk, checksum)
        position += len(chunk)
    if checksum != int.from_bytes(head[2:6], "little"):
        raise _DamagedError("a checksum (CRC-32) is wrong")


def _element(file: _File, position: int, end: int) -> _Part:
    """Read the header of an element; its end must be within `end`."""
    head = file.read(12, position)
    name_length = 9 - head[0].bit_length() if head and head[0] else 0
    if not 1 <= name_length <= 4:
        if not head:
            raise _TruncatedError("an element is incomplete")
        raise _DamagedError("an element is not known")
    length, width = _vint(head[name_length:])
    content = position + name_length + width
    if content > file.size:
        raise _TruncatedError("an element is incomplete")
    if length == (1 << 7 * width) - 1:
        return _Part(head[:name_length], position, content, end, is_sized=False)
    _check_end(file, content + length, end)
    return _Part(head[:name_length], position, content, content + length)


def _vint(head: bytes) -> tuple[int, int]:
    """Return an EBML number of variable length, and its length."""
    if not head:
        raise _TruncatedError("an element is incomplete")
    width = 9 - head[0].bit_length()
    if width > 8:
        raise _DamagedError("an element has no valid length")
    if len(head) < width:
        raise _TruncatedError("an element is incomplete")
    return int.from_bytes(head[:width], "big") & (1 << 7 * width) - 1, width


# Chunks of RIFF files: avi

_HAS_INDEX = 0x10
_LISTS = {b"RIFF", b"LIST"}


def _check_avi(file: _File) -> None:
    flags, indexed = 0, False
    streams: list[tuple[bytes, int]] = []
    frames: dict[int, int] = {}
    contents: list[tuple[bytes, int]] = []  # the name and the length of each frame
    for chunk in _chunks(file, 0, file.size):
        if chunk.name == b"avih":
            flags = int.from_bytes(file.read(4, chunk.content + 12), "little")
        elif chunk.name == b"strh":
            count = int.from_bytes(file.read(4, chunk.content + 32), "little")
            streams.append((file.read(4, chunk.content), count))
        elif chunk.name in {b"idx1", b"indx"} or chunk.name[:2] == b"ix":
            indexed = True
            if chunk.name == b"idx1" and list(_idx1_frames(file, chunk)) != contents:
                raise _DamagedError("its index lists other frames than it has")
        elif _is_frame(chunk.name):
            index = int(chunk.name[:2])
            frames[index] = frames.get(index, 0) + 1
            contents.append((chunk.name, chunk.end - chunk.content))
    if flags & _HAS_INDEX and not indexed:
        raise _DamagedError("its index is missing")
    for index, (kind, count) in enumerate(streams):
        if kind == b"vids" and frames.get(index, 0) < count:
            raise _DamagedError(f"it states {count} frames and has {frames.get(index, 0)}")


def _is_frame(name: bytes) -> bool:
    return name[2:] in {b"dc", b"db"} and name[:2].isdigit()


def _idx1_frames(file: _File, chunk: _Part) -> Iterator[tuple[bytes, int]]:
    """Yield the name and the length of each frame that an index lists."""
    for position in range(chunk.content, chunk.end - 15, 16):
        name = file.read(4, position)
        if _is_frame(name):
            yield name, int.from_bytes(file.read(4, position + 12), "little")


def _chunks(file: _File, start: int, end: int) -> Iterator[_Part]:
    """Yield all chunks that are not lists, with those in lists."""
    position = start
    while position + 8 <= end:
        head = file.read(12, position)
        name, length = head[:4], int.from_bytes(head[4:8], "little")
        if start == 0 and name != b"RIFF":
            return  # bytes after the last list are ignored
        content, chunk_end = position + 8, position + 8 + length
        _check_end(file, chunk_end, end)
        if not all(32 <= byte < 127 for byte in name):
            raise _DamagedError("a chunk is not known")
        if name in _LISTS:
            yield from _chunks(file, content + 4, chunk_end)
        else:
            yield _Part(name, position, content, chunk_end)
        position = chunk_end + length % 2
