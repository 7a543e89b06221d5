"""Writing a score log off the path of requests."""

import logging
import math
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from .queue import ScoredQueue
from .record import RecordTooLarge, Scored, line_of
from .rewrite import can_rewrite, start_rewriting
from .segments import (
    Segment,
    close_request,
    enforce_limits,
    if_closed,
    open_segments,
    prepare_folder,
)

log = logging.getLogger(__name__)

#: Seconds and bytes of lines after which there is a write.
_WRITE_SECONDS, _WRITE_BYTES = 0.25, 2**20
#: Bytes and seconds after which a segment is closed.
_SEGMENT_BYTES, _SEGMENT_SECONDS = 256 * 2**20, 3600.0
#: Seconds between two looks at what others have left in the folder.
_LOOK_SECONDS = 10.0
#: A clock that changes by more seconds between two looks was set, and seconds after which it is
#: taken for right again.
_CLOCK_SET, _CLOCK_RIGHT = 60.0, 3600.0
#: Seconds between two warnings.
_WARNING_SECONDS = 60.0

#: Why records are not in the log.
DROPPED = ("queue_full", "disk", "too_large", "failed")


class ScoreLog(ScoredQueue):
    """Writes what was scored to a folder, which several processes may do at the same time.

    A record is dropped and counted rather than that a score waits for it: if the thread is behind,
    e.g. as the disk is slow, or if the disk is full. What was added a second ago is in a file.

    Args:
        folder: Is created if it does not exist, and only its owner can read what is in it.
        max_mb: MiB of all segments; beyond them, the oldest are deleted.
        max_days: Days after which a segment is deleted, by a process whose clock was not set for
            an hour.

    Raises:
        ValueError: The folder cannot be written, or others may write to it.
    """

    _name = "score-log"
    _options = ("folder", "_max_bytes", "_max_age_s", "_segment_bytes")
    _reasons = DROPPED

    def __init__(self, folder: Path | str, *, max_mb: int = 4096, max_days: float = 30.0) -> None:
        self.folder = Path(folder)
        prepare_folder(self.folder)
        self._max_bytes, self._max_age_s = max_mb * 2**20, max_days * 86_400
        # Several segments, so that the oldest can be deleted.
        self._segment_bytes = min(_SEGMENT_BYTES, self._max_bytes // 4)
        self._begin()

    def _begin(self) -> None:
        super()._begin()
        self._segment: Segment | None = None
        self._rewriting: subprocess.Popen[bytes] | None = None
        self._not_rewritten: set[Path] = set()  # which failed
        self._close_request = close_request(self.folder)
        self._next_look = self._next_warning = 0.0
        self._clock_is_right_at, self._clock_offset = 0.0, -math.inf
        self.written = 0  #: records in files
        self._reported, self._reason = 0, ""

    def _work(self, *, closing: bool) -> None:
        try:
            self._write_queue()
            self._look_after_segments(closing=closing)
        finally:
            self._warn()

    def _write_queue(self) -> None:
        lines: list[bytes] = []
        size, until = 0, time.monotonic() + _WRITE_SECONDS
        for scored, items in self._taken():
            new = self._lines_of(scored, items)
            lines += new
            size += sum(map(len, new))
            if size >= _WRITE_BYTES or time.monotonic() > until:
                self._write(lines)
                lines, size, until = [], 0, time.monotonic() + _WRITE_SECONDS
        if lines:
            self._write(lines)

    def _lines_of(self, scored: Callable[[], Iterable[Scored]], items: int) -> list[bytes]:
        lines: list[bytes] = []
        try:
            for each in scored():
                try:
                    lines.append(line_of(each))
                except RecordTooLarge:
                    self.dropped["too_large"] += 1
        except Exception:  # of an item that is unlike all that were tested
            log.exception("a record of the score log cannot be made")
            self.dropped["failed"] += items - len(lines)
        return lines

    def _write(self, lines: list[bytes]) -> None:
        try:
            if self._segment is None:
                self._segment = Segment(self.folder)
            self._segment.append(b"".join(lines))
        except OSError as error:
            self.dropped["disk"] += len(lines)
            self._reason = f": {error}"
            return
        self.written += len(lines)
        if self._segment.size >= self._segment_bytes:
            self._close_segment()

    def _close_segment(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None
            self._next_look = 0.0

    def _look_after_segments(self, *, closing: bool) -> None:
        """Close a segment in time; rewrite closed ones, and delete the oldest."""
        request = close_request(self.folder)
        segment = self._segment
        is_over = segment is not None and (
            time.monotonic() - segment.opened > _SEGMENT_SECONDS or not segment.path.exists()
        )
        if closing or is_over or request != self._close_request:
            self._close_request = request
            self._close_segment()
        if closing:
            if self._rewriting is not None:
                self._rewriting.kill()  # the next process will rewrite it
                self._rewriting.wait()
            return
        if self._rewriting is not None:
            if self._rewriting.poll() is None:
                return
            if self._rewriting.returncode == 0:
                self._not_rewritten.clear()
            self._rewriting, self._next_look = None, 0.0
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK_SECONDS
            is_right = self._is_clock_right()
            enforce_limits(self.folder, self._max_bytes, self._max_age_s if is_right else None)
            self._rewrite_next()

    def _is_clock_right(self) -> bool:
        """Return whether the clock was not set for an hour: until then, it may be set again."""
        offset, self._clock_offset = self._clock_offset, time.time() - time.monotonic()
        if abs(self._clock_offset - offset) > _CLOCK_SET:
            self._clock_is_right_at = time.monotonic() + _CLOCK_RIGHT
        return time.monotonic() >= self._clock_is_right_at

    def _rewrite_next(self) -> None:
        for path in open_segments(self.folder) if can_rewrite() else ():
            if path in self._not_rewritten:
                continue
            with if_closed(path) as closed:
                pass
            if closed:
                self._not_rewritten.add(path)  # it is tried once
                self._rewriting = start_rewriting(path)
                return

    def _warn(self) -> None:
        """Say at most once a minute how many records were dropped."""
        dropped = sum(self.dropped.values())
        if dropped == self._reported or time.monotonic() < self._next_warning:
            return
        self._next_warning = time.monotonic() + _WARNING_SECONDS
        reasons = ", ".join(f"{name} {count}" for name, count in self.dropped.items() if count)
        message = "%d records are not in the score log %s since the last warning (in all: %s)%s"
        log.warning(message, dropped - self._reported, self.folder, reasons, self._reason)
        self._reported = dropped
