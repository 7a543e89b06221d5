"""Writing a score log off the path of requests."""

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from .queue import ScoredQueue
from .record import MAX_RECORD_BYTES, Scored, line_of
from .segments import Segment, enforce_limits, prepare_folder

log = logging.getLogger(__name__)

#: Bytes of lines after which there is a write, of less than half a second's work.
_WRITE_BYTES = 2**20
#: Bytes after which another segment begins.
_SEGMENT_BYTES = 256 * 2**20
#: Seconds between two looks at the limits of the folder.
_LOOK_SECONDS = 10.0
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
        max_days: Days after the last record of a segment, after which it is deleted.

    Raises:
        ValueError: The folder cannot be written, or others may write to it.
    """

    _name = "score-log"
    _options = ("folder", "_max_bytes", "_max_age_s")
    _reasons = DROPPED

    def __init__(self, folder: Path | str, *, max_mb: int = 4096, max_days: float = 30.0) -> None:
        self.folder = Path(folder).absolute()  # a trainer may change its folder
        prepare_folder(self.folder)
        self._max_bytes, self._max_age_s = max_mb * 2**20, max_days * 86_400
        self._begin()

    def _begin(self) -> None:
        super()._begin()
        self._segment: Segment | None = None
        self._next_look = self._next_warning = 0.0
        self.written = 0  #: records in files
        self._reported, self._reason = 0, ""

    def _work(self, *, closing: bool) -> None:
        try:
            self._write_queue()
            if closing:
                self._close_segment()
            if time.monotonic() >= self._next_look:
                self._next_look = time.monotonic() + _LOOK_SECONDS
                enforce_limits(self.folder, self._max_bytes, self._max_age_s)
        finally:
            self._warn()

    def _write_queue(self) -> None:
        lines: list[bytes] = []
        size = 0
        for scored, items in self._taken():
            new = self._lines_of(scored, items)
            lines += new
            size += sum(map(len, new))
            if size >= _WRITE_BYTES:
                self._write(lines)
                lines, size = [], 0
        if lines:
            self._write(lines)

    def _lines_of(self, scored: Callable[[], Iterable[Scored]], items: int) -> list[bytes]:
        lines: list[bytes] = []
        try:
            for each in scored():
                line = line_of(each)
                if len(line) > MAX_RECORD_BYTES:
                    self.dropped["too_large"] += 1
                else:
                    lines.append(line)
        except Exception:  # of an item that is unlike all that were tested
            log.exception("a record of the score log cannot be made")
            self.dropped["failed"] += items - len(lines)
        return lines

    def _write(self, lines: list[bytes]) -> None:
        content = b"".join(lines)
        try:
            while self._segment is None or not self._segment.append(content):
                self._close_segment()
                # There are several, so that the oldest can be deleted.
                size = max(1, min(_SEGMENT_BYTES, self._max_bytes // 4))
                self._segment = Segment(self.folder, size)
        except OSError as error:
            self.dropped["disk"] += len(lines)
            self._reason = f": {error}"
            return
        self.written += len(lines)

    def _close_segment(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def _warn(self) -> None:
        """Say at most once a minute how many records were dropped in all."""
        dropped = sum(self.dropped.values())
        if dropped == self._reported or time.monotonic() < self._next_warning:
            return
        self._next_warning = time.monotonic() + _WARNING_SECONDS
        reasons = ", ".join(f"{name} {count}" for name, count in self.dropped.items() if count)
        log.warning("records are not in the score log %s: %s%s", self.folder, reasons, self._reason)
        self._reported = dropped
