"""The clock of a run-state file. It is no wall clock: those jump, and replicas' may differ."""

import math
import sqlite3
import time
import uuid
from pathlib import Path
from typing import Any

from .metrics import RunStateMetrics
from .sqlite_schema import DamagedFile
from .store import MAX_CLOCK_DIFFERENCE_S

#: Runs during suspension, too; all processes of the machine have the same.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS lacks the first


class FileClock:
    """Seconds that all processes with a file count together, and that only grow.

    While the machine is on, they are the seconds of its clock since boot. A restart of the machine
    stops them from the last change of the file until the next one.

    Args:
        metrics: Counts how often the wall clock differs from that of the file's last change.
    """

    def __init__(self, metrics: RunStateMetrics) -> None:
        self._metrics = metrics
        self._boot = _boot()
        self._offset = -math.inf
        self._jumped_s = 0.0

    def read(self, db: sqlite3.Connection) -> float:
        """Return the seconds now.

        Raises:
            DamagedFile: The file has no valid clock.
        """
        found = db.execute("SELECT seconds, boot_seconds, wall, boot FROM clock").fetchone()
        row: tuple[Any, ...] = found or (None,) * 4
        if not all(isinstance(each, float) and math.isfinite(each) for each in row[:3]):
            raise DamagedFile("it has no valid clock")
        seconds, boot_seconds, wall, boot = row
        now = time.clock_gettime(_CLOCK)
        passed = max(now - boot_seconds, 0.0) if boot == self._boot else None
        # Where the clocks of processes cannot be compared, the time of this one counts.
        self._offset = max(self._offset, seconds + (passed or 0.0) - now)
        self._report(time.time() - wall, passed)
        return self._offset + now

    def note(self, db: sqlite3.Connection, seconds: float) -> None:
        """Store the seconds: in each transaction that stores a time."""
        row = (seconds, time.clock_gettime(_CLOCK), time.time(), self._boot)
        db.execute("REPLACE INTO clock VALUES (0, ?, ?, ?, ?)", row)

    def _report(self, wall_passed: float, passed: float | None) -> None:
        """Report a wall clock that differs from that of the file's last change.

        After a restart of the machine, nobody knows how much time has passed: not less than none.
        """
        jumped_s = min(wall_passed, 0.0) if passed is None else wall_passed - passed
        if abs(jumped_s - self._jumped_s) <= MAX_CLOCK_DIFFERENCE_S:
            return
        self._jumped_s = jumped_s
        if abs(jumped_s) > MAX_CLOCK_DIFFERENCE_S:
            self._metrics.report_clock(
                "the wall clock jumped by %+.0f s since the last change of the run-state file, or "
                "is not that of the process that made it",
                jumped_s,
            )


def _boot() -> str:
    """Return what names the clock since boot; something else each time if nothing does."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/time').readlink()}"
    except OSError:
        return str(uuid.uuid4())
