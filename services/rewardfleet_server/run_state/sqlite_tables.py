"""What the features and the groups of a run-state file share: steps, and the age of runs."""

import sqlite3

from pydantic import ValidationError

from .sqlite_clock import FileClock
from .steps import StepLog
from .store import Damaged, Scope, prune_interval_s


class RunAges:
    """When runs were changed last.

    Args:
        clock: Of the file.
        max_age_days: Days after which a run that no call has changed is deleted.
    """

    def __init__(self, clock: FileClock, max_age_days: float) -> None:
        self._clock = clock
        self._max_age_s = max_age_days * 86_400
        self._interval_s = prune_interval_s(max_age_days)

    def touch(self, db: sqlite3.Connection, run: str) -> None:
        """Record that a run is changed now: at times, as it costs a page of the file."""
        now = self._clock.read(db)
        row = db.execute("SELECT changed_at FROM runs WHERE run = ?", (run,)).fetchone()
        if row is None or row[0] < now - self._interval_s:
            self._clock.note(db, now)
            db.execute("INSERT OR REPLACE INTO runs VALUES (?, ?)", (run, now))

    def delete_old(self, db: sqlite3.Connection) -> None:
        """Delete the runs that are too old."""
        oldest = self._clock.read(db) - self._max_age_s
        for run in db.execute("SELECT run FROM runs WHERE changed_at < ?", (oldest,)).fetchall():
            query = "DELETE FROM members WHERE id IN (SELECT id FROM groups WHERE run = ?)"
            db.execute(query, run)
            for table in ("groups", "steps", "transitions", "states", "runs"):
                db.execute(f"DELETE FROM {table} WHERE run = ?", run)  # noqa: S608 - constants


def enter_step(db: sqlite3.Connection, scope: Scope, step: int, keep_steps: int) -> list[int]:
    """Note a step of a scope; return the steps to delete now. See `StepLog.with_step`.

    Raises:
        InvalidRequest: The step was deleted.
        Unavailable: What is stored is damaged.
    """
    row = db.execute("SELECT log FROM steps WHERE run = ? AND name = ?", scope).fetchone()
    log = StepLog.empty() if row is None else load_steps(scope, row[0])
    entered, deleted = log.with_step(scope.run, step, keep_steps)
    if entered is not log:
        row = (*scope, entered.model_dump_json())
        db.execute("INSERT OR REPLACE INTO steps VALUES (?, ?, ?)", row)
    return deleted


def load_steps(scope: Scope, text: str | bytes) -> StepLog:
    """Return stored steps.

    Raises:
        Unavailable: They are damaged.
    """
    try:
        return StepLog.model_validate_json(text)
    except ValidationError as error:
        raise Damaged(scope) from error
