"""The files of a score log, for a reader elsewhere: a list, and contents from an offset."""

import hashlib
import os
import re
import socket
import stat
from pathlib import Path

from rewardfleet.score_log.segments import OPEN, segments
from rewardfleet.wire.errors import NotFound
from rewardfleet.wire.log_segments import (
    MAX_CHUNK_BYTES,
    MAX_SEGMENTS,
    NAME,
    LogSegment,
    LogSegments,
)

_NAME = re.compile(NAME)


def list_segments(folder: Path) -> LogSegments:
    """Return the segments of a log. Blocks."""
    found = []
    for path in segments(folder)[-MAX_SEGMENTS:]:
        try:
            status = path.stat(follow_symlinks=False)
        except FileNotFoundError:  # it was rewritten or deleted
            continue
        if _NAME.fullmatch(path.name) and stat.S_ISREG(status.st_mode):
            version = _version(path.name, status)
            found.append(LogSegment(name=path.name, version=version, size=status.st_size))
    place = f"{socket.gethostname()}:{folder.resolve()}"
    return LogSegments(log=hashlib.sha256(place.encode()).hexdigest()[:32], segments=found)


def read_segment(folder: Path, name: str, version: str, offset: int) -> bytes:
    """Return at most `MAX_CHUNK_BYTES` of a segment; none at its end. Blocks.

    Args:
        name, version: As the list has them.
        offset: The byte that is the first one.

    Raises:
        NotFound: There is none, or it was replaced.
    """
    gone = NotFound(f"no segment {name[:100]!r} of this version and size: list the segments again")
    if not _NAME.fullmatch(name):
        raise gone
    try:
        fd = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        raise gone from None
    try:
        status = os.fstat(fd)
        is_same = stat.S_ISREG(status.st_mode) and _version(name, status) == version
        if not is_same or offset > status.st_size:
            raise gone
        return os.pread(fd, MAX_CHUNK_BYTES, offset)
    finally:
        os.close(fd)


def _version(name: str, status: os.stat_result) -> str:
    """Return what changes when a file is replaced: a new one takes its name."""
    is_open = name.endswith(OPEN)
    return f"{status.st_ino:x}" if is_open else f"{status.st_ino:x}-{status.st_mtime_ns:x}"
