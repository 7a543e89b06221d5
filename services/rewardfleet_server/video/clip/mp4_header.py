"""Check that the fields of an mp4 header (the box moov) agree: one that is damaged is noticed.

Decoders believe each field. A damaged one makes them leave out frames, so that the judge gets a
frame in the middle of the rollout as the last one. Times are in ticks of the media's clock.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from rewardfleet.wire.errors import TooLarge

from .container_parts import DamagedError, Part, boxes

_Ticks = NDArray[np.int64]

#: The most frames of a source: 16 minutes at 20 frames per second.
MAX_SOURCE_FRAMES = 20_000
#: The boxes that a box must have once: ISO/IEC 14496-12, 6.2.3.
_REQUIRED = {
    b"moov": {b"mvhd"},
    b"trak": {b"tkhd", b"mdia"},
    b"mdia": {b"mdhd", b"hdlr", b"minf"},
    b"minf": {b"stbl"},
    b"edts": {b"elst"},
    b"stbl": {b"stsd", b"stts", b"stsc", b"stsz", b"stco"},
}
#: Other names of a box.
_SAME = {b"stz2": b"stsz", b"co64": b"stco"}
#: Boxes that may be missing. A damaged name of one is not that of another box.
_OPTIONAL = {b"trak": b"edts", b"stbl": b"ctts"}
#: Boxes whose names differ from these in one character.
_OTHERS = {b"stts"}
#: Bytes of a box by its version: ISO/IEC 14496-12, 8.2.2, 8.3.2, 8.4.2.
_LENGTHS = {b"mvhd": (100, 112), b"tkhd": (84, 96), b"mdhd": (24, 36)}
#: What a change of one byte does to a number: its lowest bit, or all its bits, change.
_CHANGES = tuple(mask << shift for mask, shift in product((1, 0xFF), (0, 8, 16, 24)))
#: The same, and that any other of its bits changes.
_MORE_CHANGES = {*_CHANGES, *(1 << bit for bit in range(32))}
#: An edit list may hide others. Checks of that many take a second.
_MAX_SAMPLES = 1 << 16
#: With more frames that are shown for another time than most, the rate is variable.
_MOST_UNEVEN = 6
#: Timescales of movies that are no multiples of 25.
_MOVIE_TIMESCALES = {24, 30, 48, 60, 120, 240, 600}


def check_header(moov: Part) -> None:
    """Check the video tracks of a file.

    Args:
        moov: The box, whose boxes fill it.

    Raises:
        DamagedError: Its fields contradict each other.
        TooLarge: A track has too many samples.
    """
    children = _children(moov)
    header = children[b"mvhd"]
    wide = _is_wide(header)
    _check_matrix(header, 48 if wide else 36)
    for trak in boxes(moov):
        if trak.name == b"trak":
            track = _track(trak, header.number(20 if wide else 12))
            if track is not None and b"mvex" not in children:  # fragments have further samples
                _check_times(track)


def frame_sizes(moov: Part) -> set[tuple[int, int]]:
    """Return the width and the height that the video tracks of a checked header state."""
    tracks = [_media(_children(trak)) for trak in boxes(moov) if trak.name == b"trak"]
    entries = [table[b"stsd"] for _, table in filter(None, tracks)]
    return {(entry.number(40, 2), entry.number(42, 2)) for entry in entries}


# The fields


@dataclass(frozen=True)
class _Track:
    """The times of a video track with samples, in ticks of its media unless stated otherwise."""

    movie_scale: int  #: ticks of the movie per second
    scale: int  #: ticks of the media per second
    #: As the media's header states it; None if unknown.
    duration: int | None
    #: Ticks of the movie that the track's header states; None if unknown.
    shown: int | None
    #: For each part that the edit list shows: its length in ticks of the movie, and where it
    #: starts; -1 for an empty part.
    edits: tuple[tuple[int, int], ...]
    decoded: _Ticks  #: when each sample is decoded
    lengths: _Ticks  #: the length of each sample
    #: From the time when a sample is decoded until it is shown, as `[runs, 2]`: a number of
    #: samples, and their offset.
    offsets: _Ticks


def _track(trak: Part, movie_scale: int) -> _Track | None:
    """Read a track; None if it has no video, or no samples here."""
    track = _children(trak)
    found = _media(track)
    if found is None:
        return None
    head, (media, table) = track[b"tkhd"], found
    wide, wide_media = _is_wide(head), _is_wide(media)
    _check_matrix(head, 52 if wide else 40)
    edits = _edits(_children(track[b"edts"])[b"elst"]) if b"edts" in track else ()
    times, samples = _rows(table[b"stts"], 2), table[b"stsz"].number(8)
    if samples > _MAX_SAMPLES:
        raise TooLarge(f"{samples} frames; at most {MAX_SOURCE_FRAMES} are accepted")
    offsets = np.array([[samples, 0]])
    if b"ctts" in table:
        offsets = _rows(table[b"ctts"], 2)
        offsets[:, 1] = (offsets[:, 1] + (1 << 31)) % (1 << 32) - (1 << 31)  # may be negative
    if times[:, 0].sum() != samples or offsets[:, 0].sum() != samples:
        raise DamagedError("its tables have different numbers of samples")
    _check_chunks(table, samples)
    if not samples:
        return None
    lengths = np.repeat(times[:, 1], times[:, 0])
    return _Track(
        movie_scale=movie_scale,
        scale=media.number(20 if wide_media else 12),
        duration=_duration(media, 24 if wide_media else 16, wide=wide_media),
        shown=_duration(head, 28 if wide else 20, wide=wide),
        edits=edits,
        decoded=np.concatenate([[0], np.cumsum(lengths)[:-1]]),
        lengths=lengths,
        offsets=offsets,
    )


def _media(track: dict[bytes, Part]) -> tuple[Part, dict[bytes, Part]] | None:
    """Return the media header of a video track, and the boxes of its table of samples."""
    media = _children(track[b"mdia"])
    if media[b"hdlr"].read(8, 4) != b"vide":
        return None
    return media[b"mdhd"], _children(_children(media[b"minf"])[b"stbl"])


def _children(parent: Part) -> dict[bytes, Part]:
    """Return the boxes in a box by name; check that none of those that matter is missing."""
    children = [child._replace(name=_SAME.get(child.name, child.name)) for child in boxes(parent)]
    names = [child.name for child in children]
    for name in _REQUIRED[parent.name]:
        if names.count(name) != 1:
            raise DamagedError(f"the box {name.decode()} is missing")
    optional = _OPTIONAL.get(parent.name)
    if optional is not None and optional not in names:
        for name in set(names) - _OTHERS:
            if sum(a != b for a, b in zip(name, optional, strict=True)) == 1:
                raise DamagedError(f"the name of the box {optional.decode()} is damaged")
    return {child.name: child for child in children}


def _is_wide(box: Part) -> bool:
    """Return whether a box has numbers of 64 bits, which its version and its length say."""
    narrow, wide = _LENGTHS[box.name]
    if box.length != (wide if box.read(0, 1) == b"\x01" else narrow):
        raise DamagedError(f"the box {box.name.decode()} has another length than its version")
    return box.length == wide


def _rows(box: Part, columns: int) -> _Ticks:
    """Return a table of 32-bit numbers, `[rows, columns]`."""
    rows = _row_count(box, 4 * columns)
    return np.frombuffer(box.read(8), ">u4").reshape(rows, columns).astype(np.int64)


def _row_count(box: Part, width: int) -> int:
    count = box.number(4)
    if box.length != 8 + count * width:
        raise DamagedError(f"the box {box.name.decode()} has another length than its table")
    return count


def _edits(box: Part) -> tuple[tuple[int, int], ...]:
    width = 8 if box.read(0, 1) == b"\x01" else 4
    row = 2 * width + 4
    starts = range(8, 8 + row * _row_count(box, row), row)
    return tuple(
        (
            box.number(start, width),
            int.from_bytes(box.read(start + width, width), "big", signed=True),
        )
        for start in starts
    )


def _duration(box: Part, position: int, *, wide: bool) -> int | None:
    """Return a duration; None if it is unknown, which is all zeros or all ones."""
    length = 8 if wide else 4
    value = box.number(position, length)
    return None if value in {0, (1 << 8 * length) - 1} else value


# The checks


def _check_matrix(box: Part, position: int) -> None:
    """Check that a display matrix rotates, mirrors or scales, and does no more; 0 is none."""
    values = np.frombuffer(box.read(position, 36), ">i4").astype(float)
    (a, b, u), (c, d, v), (*_, w) = values.reshape(3, 3)
    rows = np.hypot([a, c], [b, d]) / (1 << 16)
    skew = abs(a * c + b * d) / (1 << 32)
    sane = ((rows >= 1 / 16) & (rows <= 16)).all() and skew <= 1 / 64 * rows[0] * rows[1]
    if any((a, b, c, d)) and not (sane and w > 0 and abs(u) < w / 64 and abs(v) < w / 64):
        raise DamagedError("its display matrix is not a rotation")


def _check_chunks(table: dict[bytes, Part], samples: int) -> None:
    """Check that the chunks of a track have as many samples as the track."""
    runs = _rows(table[b"stsc"], 3)
    first = np.append(runs[:, 0], table[b"stco"].number(4) + 1)
    chunks = np.diff(first)
    if (chunks < 0).any() or int((chunks * runs[:, 1]).sum()) != samples:
        raise DamagedError("its chunks have another number of samples than its tables")


def _check_times(track: _Track) -> None:
    if not track.scale or not track.movie_scale:
        raise DamagedError("a timescale is 0")
    shown, total, tick = _shown_at(track), int(track.lengths.sum()), _tick(track)
    # Some writers leave out the frames before the first keyframe of a file that was cut.
    starts = int(shown.min()), int(shown[0])
    possible = total, *(end - start for end, start in product(_ends(track), starts))
    stated = total if track.duration is None else track.duration
    frame = min(min(total, stated) / len(shown), float(np.median(track.lengths)))
    if not _is_near(stated, possible, frame + tick):
        raise DamagedError("its samples have another duration than it states")
    parts = [edit for edit in track.edits if edit[1] >= 0]
    if any(start < -1 for _, start in track.edits):
        raise DamagedError("its edit list starts before its first frame")
    if track.shown is not None and not parts:
        if not _is_near(_in_media(track, track.shown), possible, frame + tick):
            raise DamagedError("its samples have another duration than the track")
        return
    lengths = (sum(length for length, _ in track.edits), sum(length for length, _ in parts))
    if track.shown is not None and all(lengths) and not _is_near(track.shown, lengths, 2):
        raise DamagedError("its edit list has another duration than the track")
    if len(parts) == 1 and parts[0][0]:
        _check_edit(track, frame)


def _check_edit(track: _Track, frame: float) -> None:
    """Check that an edit list which hides frames is not the result of a damaged byte."""
    shown, (first, last), tick = _shown_at(track), _edit(track), _tick(track)
    begin, end = shown.min(), max(_ends(track))
    before, after = shown[shown < first], shown[shown >= last]
    if last > end + (tick if before.size else frame + tick):
        raise DamagedError("its edit list ends after its last frame")
    if before.size and first - before.max() <= 1:
        raise DamagedError("its edit list hides a frame by less than a tick")
    if after.size and first < begin - tick:
        raise DamagedError("its edit list starts before its first frame")
    if (before.size or after.size) and any(_is_better(other, track) for other in _undamaged(track)):
        raise DamagedError("one damaged byte is the reason why it hides frames")
    if after.size and not _is_round(track.movie_scale) and track.movie_scale != track.scale:
        raise DamagedError("the timescale of the movie is damaged")


def _undamaged(track: _Track) -> Iterator[_Track]:
    """Yield the tracks of which a change of one byte may have made this one."""
    for change in _CHANGES:
        edits = (edit if edit[1] < 0 else (edit[0], edit[1] ^ change) for edit in track.edits)
        yield replace(track, edits=tuple(edits))
    for change in _MORE_CHANGES:
        if not _is_round(track.movie_scale):
            yield replace(track, movie_scale=max(track.movie_scale ^ change, 1))
        if not _is_round(track.scale):
            yield replace(track, scale=max(track.scale ^ change, 1))
    for run in _suspects(track):
        offset = int(track.offsets[run, 1])
        changed = {_signed(offset ^ change) for change in _MORE_CHANGES}
        for other in changed | _missing(track, run):
            offsets = track.offsets.copy()
            offsets[run, 1] = other
            yield replace(track, offsets=offsets)


def _missing(track: _Track, run: int) -> set[int]:
    """Return the offsets of a run that differ in one byte and show it where a frame is missing."""
    runs = np.repeat(np.arange(len(track.offsets)), track.offsets[:, 0])
    others = np.sort(_shown_at(track)[runs != run])
    if len(others) < 2:
        return set()
    gaps = np.diff(others)
    usual = int(np.median(gaps))
    times = {int(others[0]) - usual, int(others[-1]) + usual}
    times |= {int(others[at]) + usual for at in np.flatnonzero(2 * gaps > 3 * usual)}
    at = int(track.decoded[np.flatnonzero(runs == run)[0]])
    offset = int(track.offsets[run, 1])
    return {time - at for time in times if _is_one_byte(offset, time - at)}


def _is_one_byte(number: int, other: int) -> bool:
    """Return whether two numbers of 32 bits differ in one byte."""
    change = (number ^ other) % (1 << 32)
    return sum(byte > 0 for byte in change.to_bytes(4, "big")) == 1


def _is_round(timescale: int) -> bool:
    """Return whether writers use a timescale on purpose: those of a damaged byte are odd."""
    return timescale % 25 == 0 or timescale in _MOVIE_TIMESCALES


def _signed(number: int) -> int:
    """Return a number of 32 bits as one with a sign."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


def _suspects(track: _Track) -> set[int]:
    """Return the runs of offsets whose frames may be shown at a wrong time, if they are few."""
    shown, (first, last) = _shown_at(track), _edit(track)
    runs = np.repeat(np.arange(len(track.offsets)), track.offsets[:, 0])
    hidden = set(runs[(shown < first) | (shown >= last)].tolist())
    suspects = hidden if len(hidden) == 1 else set()
    uneven = np.flatnonzero(_uneven(track))
    if len(uneven) <= _MOST_UNEVEN:
        beside = np.argsort(shown, kind="stable")[np.concatenate([uneven, uneven + 1])]
        suspects |= set(runs[beside].tolist())
    return suspects


def _is_better(track: _Track, other: _Track) -> bool:
    """Return whether the edit list of a track fits its frames better than that of another."""
    uneven, more = int(_uneven(track).sum()), int(_uneven(other).sum())
    if not uneven and _ends_with_media(track) and _starts_with_media(track):
        return True
    if _ends_with_media(track) and not _ends_with_media(other):
        return track.offsets is other.offsets or uneven <= more
    if not _ends_with_media(track) and _ends_with_media(other):
        return False
    if _ends_with_media(track) and _starts_with_media(track) and not _starts_with_media(other):
        return uneven <= more
    return uneven <= more - 2


def _uneven(track: _Track) -> NDArray[np.bool_]:
    """Return which frames are not shown for as long as most."""
    gaps = np.diff(np.sort(_shown_at(track)))
    return abs(gaps - np.median(gaps)) * 4 > np.median(gaps) if gaps.size else gaps > 0


def _starts_with_media(track: _Track) -> bool:
    return bool(abs(_edit(track)[0] - _shown_at(track).min()) <= 1)


def _ends_with_media(track: _Track) -> bool:
    shown, (first, last) = _shown_at(track), _edit(track)
    starts_before = first < shown.min() - _tick(track)
    return not starts_before and _is_near(last, _ends(track), _tick(track))


def _shown_at(track: _Track) -> _Ticks:
    return track.decoded + np.repeat(track.offsets[:, 1], track.offsets[:, 0])


def _ends(track: _Track) -> tuple[int, int]:
    """Return when the last frame may end.

    The lengths are from one decoded sample to the next one. With a variable rate and B-frames, the
    last frame is shown for another time: FFmpeg counts the length of the last sample.
    """
    shown = _shown_at(track)
    return int((shown + track.lengths).max()), int(shown.max() + track.lengths[-1])


def _edit(track: _Track) -> tuple[int, float]:
    """Return where the only part that the edit list shows starts and ends."""
    length, start = next(edit for edit in track.edits if edit[1] >= 0)
    return start, start + _in_media(track, length)


def _in_media(track: _Track, ticks: int) -> float:
    """Convert ticks of the movie to those of the media."""
    return ticks * track.scale / track.movie_scale


def _tick(track: _Track) -> float:
    """Return by how much times may differ that are rounded to ticks of the movie."""
    return 1 + track.scale / track.movie_scale


def _is_near(value: float, others: tuple[float, ...], most: float) -> bool:
    return any(abs(value - other) <= most for other in others)
