"""Check that a video file is complete before it is decoded: mp4, mov, Matroska, webm and avi.

Decoders guess the format, and also accept playlists, which name other files. They decode a
truncated file up to its end, and skip what they cannot read; the judge would then get a frame in
the middle of the rollout as the last one.
"""

import os
import zlib
from collections import Counter
from collections.abc import Iterator

from rewardfleet.wire.errors import InvalidRequest, TooLarge

from .container_parts import DamagedError, DescriptorReader, Part, TruncatedError, boxes, whole
from .mp4_header import check_header, frame_sizes

#: The advice in error messages about files of another type.
ACCEPTED = "give an mp4, mov, mkv, webm or avi file"

_CHUNK = 1 << 20
#: The longest header of an mp4 file. One with 20,000 frames and an hour of sound has 2 MiB.
_MAX_HEADER_BYTES = 16 << 20


def check_container(fd: int, label: str, *, max_bytes: int) -> None:
    """Check that a file is a complete video container.

    Args:
        label: How error messages call it.

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
    file = whole(DescriptorReader(fd))
    try:
        if head[4:8] in _FIRST_BOXES:
            _check_mp4(file)
        elif head[:4] == b"RIFF" and head[8:12] == b"AVI ":
            _check_avi(file)
        elif head[:4] == _EBML:
            _check_matroska(file)
        else:
            raise InvalidRequest(f"{label} is not a video; {ACCEPTED}")
    except TruncatedError as error:
        raise InvalidRequest(f"{label} is truncated: {error}") from None
    except (DamagedError, RecursionError) as error:
        reason = "its parts are nested too deeply" if isinstance(error, RecursionError) else error
        raise InvalidRequest(f"{label} is damaged and cannot be decoded: {reason}") from None


def stated_frame_sizes(path: str) -> set[tuple[int, int]]:
    """Return the width and the height of each video track of a checked mp4 or mov file."""
    with open(path, "rb") as content:
        file = whole(DescriptorReader(content.fileno()))
        return frame_sizes(_header(next(box for box in boxes(file) if box.name == b"moov")))


# ISO/IEC 14496-12: mp4 and mov

#: Types of the first box of an mp4 or mov file.
_FIRST_BOXES = {b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"}
#: Boxes that consist of boxes.
_PARENT_BOXES = {b"moov", b"trak", b"mdia", b"minf", b"stbl", b"mvex", b"moof", b"traf", b"mfra"}


def _check_mp4(file: Part) -> None:
    parts = list(boxes(file))
    if all(box.name != b"moov" for box in parts):
        raise DamagedError("it has no index (the box moov)")
    for box in parts:
        _check_box(box)
        if box.name == b"moov":
            check_header(_header(box))
    if any(box.name == b"moof" for box in parts):
        _check_fragments(file, parts)
        _check_fragment_times(parts)


def _header(moov: Part) -> Part:
    """Read a header into memory."""
    if moov.length > _MAX_HEADER_BYTES:
        raise DamagedError("its header is too long")
    return moov._replace(source=moov.read(), start=0, content=0, end=moov.length)


def _check_box(box: Part) -> None:
    """Check that the boxes in a box fill it, and that a fragment has samples."""
    if box.name not in _PARENT_BOXES:
        return
    children = list(boxes(box))
    if not children or box.end - children[-1].end >= 8:
        raise DamagedError(f"the box {box.name.decode()} is not filled by its parts")
    named = {child.name: child for child in children}
    required = {b"moof": b"traf", b"traf": b"tfhd"}.get(box.name)
    if required is not None and required not in named:
        raise DamagedError("a fragment has no samples")
    if box.name == b"traf" and b"trun" not in named:
        first = next(child for child in children if child.name == b"tfhd")
        if not first.number() & 0x010000:  # "duration is empty"
            raise DamagedError("a fragment has no samples")
    for child in children:
        _check_box(child)


def _check_fragments(file: Part, parts: list[Part]) -> None:
    """Check that all fragments that the file's index lists are there, and that it has an index.

    Without one, a file that is cut between two fragments looks complete.
    """
    indexed = False
    fragments = {box.start for box in parts if box.name == b"moof"}
    for box in parts:
        if box.name == b"mfra":
            if not set(_mfra_offsets(box)) <= fragments:
                raise DamagedError("a fragment that its index lists is missing")
            indexed = True
        elif box.name == b"sidx":
            ends = _sidx_ends(box)
            if ends[-1] > file.end:
                raise TruncatedError(f"its index lists {ends[-1]} bytes and it has {file.end}")
            if not set(ends[1:-1]) <= {each.start for each in parts}:
                raise DamagedError("a fragment that its index lists is missing")
            indexed = indexed or (ends[0] <= min(fragments) and max(fragments) < ends[-1])
    if not indexed:
        raise DamagedError(
            "it has fragments and no index of them (the boxes mfra or sidx), so it may be cut; "
            "convert it to an mp4 file without fragments"
        )


def _check_fragment_times(parts: list[Part]) -> None:
    """Check that the fragments of each track are in the order of their times."""
    latest: dict[int, int] = {}
    trafs = (traf for box in parts if box.name == b"moof" for traf in boxes(box))
    for traf in trafs:
        children = {child.name: child for child in boxes(traf)} if traf.name == b"traf" else {}
        if b"tfdt" in children:
            track, at = children[b"tfhd"].number(4), children[b"tfdt"]
            time = at.number(4, 8 if at.number(0, 1) else 4)
            if time < latest.get(track, 0):
                raise DamagedError("its fragments are not in the order of their times")
            latest[track] = time


def _mfra_offsets(mfra: Part) -> Iterator[int]:
    """Yield the positions of fragments in a fragment index."""
    for box in boxes(mfra):
        if box.name == b"tfra":
            width = 8 if box.read(0, 1) == b"\x01" else 4
            lengths, count = box.number(8), box.number(12)
            entry = 2 * width + 3 + sum(lengths >> shift & 3 for shift in (0, 2, 4))
            box.check_end(box.content + 16 + count * entry)
            for index in range(count):
                yield box.number(16 + index * entry + width, width)


def _sidx_ends(box: Part) -> list[int]:
    """Return where the content that a segment index lists starts, and where each segment ends."""
    wide = box.read(0, 1) == b"\x01"
    position = 28 if wide else 20
    ends = [box.end + (box.number(20, 8) if wide else box.number(16))]
    count = box.number(position + 2, 2)
    box.check_end(box.content + position + 4 + 12 * count)
    for index in range(count):
        ends.append(ends[-1] + (box.number(position + 4 + 12 * index) & 0x7FFFFFFF))
    return ends


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


def _segment(file: Part) -> Part:
    segment = _element(file, _element(file, 0).end)
    if segment.name != _SEGMENT:
        raise DamagedError("it has no segment")
    if not segment.is_sized:
        raise DamagedError(
            "it is a live recording that does not state its length, so it may be cut; convert it "
            "to an mp4, mkv or webm file with a length"
        )
    return segment


def _check_matroska(file: Part) -> None:
    segment = _segment(file)
    clusters: set[int] = set()
    targets: set[int] = set()
    tracks: set[int] = set()
    in_cluster = False  # in one without a length
    for part in _elements(segment):
        if in_cluster and (part.name in _IN_CLUSTER or part.name not in _IN_SEGMENT):
            _check_in_cluster(part, tracks)
            continue
        in_cluster = part.name == _CLUSTER and not part.is_sized
        if part.name not in _IN_SEGMENT:
            raise DamagedError("an element of the segment is not known")
        if not (part.is_sized or in_cluster):
            raise DamagedError("an element of the segment has no length")
        if not in_cluster:
            _check_crc(part)
        if part.name == _CLUSTER:
            clusters.add(part.start - segment.content)
            for child in () if in_cluster else _elements(part):
                _check_in_cluster(child, tracks)
        tracks |= _numbers(part, _TRACKS, b"\xae", b"\xd7")
        targets |= _numbers(part, _CUES, b"\xbb", b"\xb7", b"\xf1")
        for at in _numbers(part, _SEEK_HEAD, b"\x4d\xbb", b"\x53\xac"):
            if (position := segment.content + at) >= file.end:
                raise TruncatedError(f"its index names byte {position} and it has {file.end}")
    if not clusters:
        raise DamagedError("it has no cluster")
    if not targets <= clusters:
        raise DamagedError("a cluster that its index lists is missing")


def _check_in_cluster(part: Part, tracks: set[int]) -> None:
    """Check that an element may be in a cluster, and that a block belongs to a track."""
    if part.name not in _IN_CLUSTER or not part.is_sized:
        raise DamagedError("an element of a cluster is not known")
    block: Part | None = part if part.name == _SIMPLE_BLOCK else None
    if part.name == _BLOCK_GROUP:
        block = next(_find(part, _BLOCK), None)
        if block is None:
            raise DamagedError("a block is missing")
    if block is not None and _vint(block.read(0, 8))[0] not in tracks:
        raise DamagedError("a block belongs to no track")


def _numbers(part: Part, name: bytes, *path: bytes) -> set[int]:
    """Return the numbers in the elements at a path below one of that name, else none."""
    found = _find(part, *path) if part.name == name else ()
    return {each.number(0, each.length) for each in found}


def _find(parent: Part, name: bytes, *path: bytes) -> Iterator[Part]:
    """Yield the elements at a path below an element; check that all elements on it are filled."""
    for part in _elements(parent):
        if not part.is_sized:
            raise DamagedError("an element has no length")
        if part.name == name:
            yield from _find(part, *path) if path else (part,)


def _check_crc(parent: Part) -> None:
    """Check the CRC-32 of an element, if it has one, as ffmpeg and mkvmerge write it."""
    head = parent.read(0, 6)
    if head[:2] != _CHECKSUM + b"\x84" or len(head) < 6:
        return
    checksum = 0
    for position in range(6, parent.length, _CHUNK):
        checksum = zlib.crc32(parent.read(position, _CHUNK), checksum)
    if checksum != int.from_bytes(head[2:], "little"):
        raise DamagedError("a checksum (CRC-32) is wrong")


def _elements(parent: Part) -> Iterator[Part]:
    """Yield the elements in an element. Those in one without a length follow it."""
    position = parent.content
    while position < parent.end:
        part = _element(parent, position)
        yield part
        position = part.end if part.is_sized else part.content


def _element(parent: Part, position: int) -> Part:
    """Read the header of an element."""
    # A header may be cut off by the end of its parent: what follows it is read as well.
    head = parent.source[position : position + 12]
    name_length = 9 - head[0].bit_length() if head and head[0] else 0
    if not 1 <= name_length <= 4:
        if not head:
            raise TruncatedError("an element is incomplete")
        raise DamagedError("an element is not known")
    length, width = _vint(head[name_length:])
    name, content = head[:name_length], position + name_length + width
    if content > len(parent.source):
        raise TruncatedError("an element is incomplete")
    if length == (1 << 7 * width) - 1:
        return Part(parent.source, name, position, content, parent.end, is_sized=False)
    return parent.child(name, position, content, length)


def _vint(head: bytes) -> tuple[int, int]:
    """Return an EBML number of variable length, and its length."""
    width = 9 - head[0].bit_length() if head else 1
    if width > 8:
        raise DamagedError("an element has no valid length")
    if len(head) < width:
        raise TruncatedError("an element is incomplete")
    return int.from_bytes(head[:width], "big") & (1 << 7 * width) - 1, width


# Chunks of RIFF files: avi

_HAS_INDEX = 0x10
_LISTS = {b"RIFF", b"LIST"}


def _check_avi(file: Part) -> None:
    flags, indexed = 0, False
    streams: list[tuple[bytes, int]] = []
    contents: list[tuple[bytes, int]] = []  # the name and the length of each frame
    for chunk in _chunks(file):
        if chunk.name == b"avih":
            flags = chunk.number(12, 4, "little")
        elif chunk.name == b"strh":
            streams.append((chunk.read(0, 4), chunk.number(32, 4, "little")))
        elif chunk.name in {b"idx1", b"indx"} or chunk.name[:2] == b"ix":
            indexed = True
            if chunk.name == b"idx1" and list(_idx1_frames(chunk)) != contents:
                raise DamagedError("its index lists other frames than it has")
        elif _is_frame(chunk.name):
            contents.append((chunk.name, chunk.length))
    if flags & _HAS_INDEX and not indexed:
        raise DamagedError("its index is missing")
    frames = Counter(int(name[:2]) for name, _ in contents)
    for index, (kind, count) in enumerate(streams):
        if kind == b"vids" and frames[index] < count:
            raise DamagedError(f"it states {count} frames and has {frames[index]}")


def _is_frame(name: bytes) -> bool:
    return name[2:] in {b"dc", b"db"} and name[:2].isdigit()


def _idx1_frames(chunk: Part) -> Iterator[tuple[bytes, int]]:
    """Yield the name and the length of each frame that an index lists."""
    for position in range(0, chunk.length - 15, 16):
        entry = chunk.read(position, 16)
        if _is_frame(entry[:4]):
            yield entry[:4], int.from_bytes(entry[12:], "little")


def _chunks(parent: Part) -> Iterator[Part]:
    """Yield all chunks that are not lists, with those in lists."""
    position = parent.content
    while position + 8 <= parent.end:
        head = parent.read(position - parent.content, 8)
        name, length = head[:4], int.from_bytes(head[4:], "little")
        if not parent.name and name != b"RIFF":
            return  # bytes after the last list are ignored
        chunk = parent.child(name, position, position + 8, length)
        if not all(32 <= byte < 127 for byte in name):
            raise DamagedError("a chunk is not known")
        if name in _LISTS:
            yield from _chunks(chunk._replace(content=chunk.content + 4))
        else:
            yield chunk
        position = chunk.end + length % 2
