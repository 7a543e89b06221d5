"""Run state in a SQLite file."""

import logging
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import JsonValue

from rewardfleet.wire.errors import Unavailable
from rewardfleet_server.system.sqlite_file import Lost, SqliteFile

from .groups import Groups
from .metrics import RunStateMetrics
from .sqlite_clock import FileClock
from .sqlite_groups import SqliteGroups, abandon_groups, check_groups
from .sqlite_schema import check_file, create_tables, mark_lost, refuse_lost
from .sqlite_tables import RunAges, enter_step, load_steps
from .store import (
    BUSY_SECONDS,
    KEEP_STEPS,
    MAX_AGE_DAYS,
    NO_SHAPES,
    Damaged,
    Scope,
    Shapes,
    Transition,
    dump,
    load,
    prune_interval_s,
)

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Primary codes of errors that may pass: another process, the disk, permissions.
_PASSING = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
    }
)

#: Seconds between two checks of the complete file after damaged values were found.
_CHECK_SECONDS = 60.0


class SqliteRunState:
    """Run state in a SQLite file, shared by the processes that open it.

    Unlike a cache file, a damaged file is not replaced: continuing with an empty state would
    produce wrong rewards. The service refuses to start instead, and ends if it finds the damage
    later.

    Args:
        path: The database file; its folder must exist. `:memory:` is lost with the process.
        shapes: What features store; all of it is checked at the start.
        max_age_days: Days after which a run that no call has changed is deleted.

    Raises:
        Unavailable: The file is damaged, of another version, or cannot be opened.
    """

    def __init__(
        self, path: Path, shapes: Shapes = NO_SHAPES, *, max_age_days: float = MAX_AGE_DAYS
    ) -> None:
        self._path = path
        self._shapes = shapes
        self.metrics = RunStateMetrics()
        self._clock = FileClock(self.metrics)
        self._ages = RunAges(self._clock, max_age_days)
        self._prune_interval_s = prune_interval_s(max_age_days)
        self._prune_at = self._check_at = 0.0
        self._failure: str | None = None
        try:
            refuse_lost(path)
            self._file = SqliteFile(path, "", busy_s=BUSY_SECONDS)
        except sqlite3.DatabaseError as error:
            raise _unusable(error) from error
        try:
            self._file.call_now(create_tables)
            self._file.call_now(self._check)
        except (sqlite3.DatabaseError, Damaged) as error:
            self._file.close()
            raise _unusable(error) from error
        self._groups = SqliteGroups(self._call, self._begin, self._clock)

    @property
    def groups(self) -> Groups:
        return self._groups

    @property
    def failure(self) -> str | None:
        if self._failure is None:
            try:
                self._file.check_place()  # also while there are no calls
            except sqlite3.DatabaseError as error:
                self._fail(error)
        return self._failure

    async def read(self, scope: Scope) -> JsonValue:
        return await self._call(lambda db: self._state(db, scope))

    async def outcome(self, scope: Scope, step: int, uid: str) -> JsonValue:
        outcomes = await self._call(lambda db: self._outcomes(db, scope, step, uid))
        return outcomes[0] if outcomes else None

    async def apply_once(
        self,
        scope: Scope,
        step: int,
        uid: str,
        transition: Transition,
        *,
        keep_steps: int = KEEP_STEPS,
    ) -> JsonValue:
        def work(db: sqlite3.Connection) -> JsonValue:
            self._begin(db, scope.run)
            if outcomes := self._outcomes(db, scope, step, uid):
                return outcomes[0]
            for old in enter_step(db, scope, step, keep_steps):
                query = "DELETE FROM transitions WHERE run = ? AND name = ? AND step = ?"
                db.execute(query, (*scope, old))
            state, outcome = transition(self._state(db, scope))
            _write(db, scope, state)
            row = (*scope, step, uid, dump(outcome))
            db.execute("INSERT INTO transitions VALUES (?, ?, ?, ?, ?)", row)
            return outcome

        return await self._call(work)

    async def update(
        self, scope: Scope, transition: Transition, *, forget_outcomes: bool = False
    ) -> JsonValue:
        def work(db: sqlite3.Connection) -> JsonValue:
            self._begin(db, scope.run)
            state, outcome = transition(self._state(db, scope))
            dump(outcome)  # what cannot be stored is refused, as by `apply_once`
            _write(db, scope, state)
            if forget_outcomes:
                db.execute("DELETE FROM transitions WHERE run = ? AND name = ?", scope)
                db.execute("DELETE FROM steps WHERE run = ? AND name = ?", scope)
            return outcome

        return await self._call(work)

    async def aclose(self) -> None:
        self._file.close()

    async def _call(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` as one transaction."""
        with self.metrics.counting_failures():
            return await self._transact(work)

    async def _transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._failure is not None:
            raise Unavailable(self._failure)

        def transaction(db: sqlite3.Connection) -> T:
            try:
                with db:
                    return work(db)
            except Damaged:
                if time.monotonic() >= self._check_at:  # it may be more than this value
                    self._check_at = time.monotonic() + _CHECK_SECONDS
                    check_file(db)
                raise

        try:
            return await self._file.call(transaction)
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", None)
            if code is not None and code & 0xFF in _PASSING:
                raise Unavailable(
                    f"run state cannot be used now: {error}", retry_after=1
                ) from error
            raise Unavailable(self._fail(error)) from error

    def _fail(self, error: sqlite3.Error) -> str:
        """Never use the file again; return why."""
        if self._failure is None:
            self._failure = _unusable(error).detail
            log.error("%s", self._failure)
            if isinstance(error, Lost):
                mark_lost(self._path)
        return self._failure

    def _begin(self, db: sqlite3.Connection, run: str) -> None:
        """Begin to write on behalf of a run. At times, delete what is too old."""
        # Taken before reading, so that no two processes see the same old state.
        db.execute("BEGIN IMMEDIATE")
        self._ages.touch(db, run)
        if time.monotonic() >= self._prune_at:
            self._prune_at = time.monotonic() + self._prune_interval_s
            abandon_groups(db, self._clock.read(db))
            self._ages.delete_old(db)

    def _check(self, db: sqlite3.Connection) -> None:
        """Raise an error if anything in the file is damaged."""
        check_file(db)
        self._clock.read(db)
        for run, name, state in db.execute("SELECT run, name, state FROM states"):
            shape = self._shapes.get(name)
            load(Scope(run, name), state, shape and shape.state)
        for run, name, outcome in db.execute("SELECT run, name, outcome FROM transitions"):
            shape = self._shapes.get(name)
            load(Scope(run, name), outcome, shape and shape.outcome)
        for run, name, steps in db.execute("SELECT run, name, log FROM steps"):
            load_steps(Scope(run, name), steps)
        query = (
            "SELECT run, name FROM transitions LEFT JOIN steps USING (run, name) "
            "WHERE log IS NULL LIMIT 1"
        )
        for scope in db.execute(query):
            raise Damaged(Scope(*scope))
        check_groups(db)

    def _state(self, db: sqlite3.Connection, scope: Scope) -> JsonValue:
        query = "SELECT state FROM states WHERE run = ? AND name = ?"
        row = db.execute(query, scope).fetchone()
        shape = self._shapes.get(scope.name)
        return None if row is None else load(scope, row[0], shape and shape.state)

    def _outcomes(
        self, db: sqlite3.Connection, scope: Scope, step: int, uid: str
    ) -> list[JsonValue]:
        """Return the outcome of a transition, which may be None; nothing if it was not applied."""
        query = (
            "SELECT outcome FROM transitions WHERE run = ? AND name = ? AND step = ? AND uid = ?"
        )
        shape = self._shapes.get(scope.name)
        rows = db.execute(query, (*scope, step, uid))
        return [load(scope, outcome, shape and shape.outcome) for (outcome,) in rows]


def _write(db: sqlite3.Connection, scope: Scope, state: JsonValue) -> None:
    db.execute("INSERT OR REPLACE INTO states VALUES (?, ?, ?)", (*scope, dump(state)))


def _unusable(error: sqlite3.Error | Damaged) -> Unavailable:
    reason = f"{error.where} is damaged" if isinstance(error, Damaged) else str(error)
    return Unavailable(
        f"the run-state file cannot be used ({reason}); restore it from a backup, or move it away "
        "to start every run from scratch"
    )
