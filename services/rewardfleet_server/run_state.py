"""The state of training runs: running means, temperatures, incomplete groups.

A trainer that crashed sends its last step again. So every transition is named by (scope, step,
uid) and applied once: a repeated call returns the outcome of the first one.
"""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from pydantic import JsonValue

from rewardfleet.wire.errors import InvalidRequest, Unavailable

from .sqlite_file import SqliteFile


class Scope(NamedTuple):
    """The part of a run's state that one feature owns.

    Attributes:
        run: The training run, as callers name it.
        name: The feature, e.g. `running_stats`.
    """

    run: str
    name: str


#: Number of the last steps whose outcomes are stored by default.
KEEP_STEPS = 1000

#: Maps the state of a scope (None at first) to its next state and the
#: outcome, which is returned to the caller.
Transition = Callable[[JsonValue], tuple[JsonValue, JsonValue]]


class RunState(Protocol):
    """A store with a small state per scope, and the outcomes of its transitions.

    Its reads are never cached.
    """

    async def read(self, scope: Scope) -> JsonValue:
        """Return the state of a scope, or None."""

    async def outcome(self, scope: Scope, step: int, uid: str) -> JsonValue:
        """Return the outcome of a transition, or None if it was not applied. Write nothing."""

    async def apply_once(
        self,
        scope: Scope,
        step: int,
        uid: str,
        transition: Transition,
        *,
        keep_steps: int = KEEP_STEPS,
    ) -> JsonValue:
        """Apply a transition once for (scope, step, uid); return its outcome.

        A repeated call returns the stored outcome. If the transition raises, nothing changes.

        Args:
            scope: Whose state it changes.
            step: The step of the run.
            uid: Names the transition within the step.
            transition: A pure function.
            keep_steps: Outcomes older than this many steps before the scope's newest are deleted,
                and transitions of such steps are refused.

        Raises:
            InvalidRequest: The step is so old that it is unknown whether it was applied.
            Unavailable: The store cannot be written now.
        """

    async def aclose(self) -> None:
        """Release files and threads."""


#: Seconds to wait for a lock: a transition must not be lost because another process writes.
_BUSY_SECONDS = 5.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS states (
    run TEXT NOT NULL,
    name TEXT NOT NULL,
    state TEXT NOT NULL,
    PRIMARY KEY (run, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS transitions (
    run TEXT NOT NULL,
    name TEXT NOT NULL,
    step INTEGER NOT NULL,
    uid TEXT NOT NULL,
    outcome TEXT NOT NULL,
    PRIMARY KEY (run, name, step, uid)
) WITHOUT ROWID;
"""


class SqliteRunState:
    """Run state in a SQLite file, shared by the processes that open it.

    Unlike a cache file, a damaged file is not replaced: continuing with an empty state would
    produce wrong rewards. The service refuses to start instead.

    Args:
        path: The database file; its folder must exist. `:memory:` is lost with the process.

    Raises:
        Unavailable: The file is damaged or cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = SqliteFile(path, _SCHEMA, busy_s=_BUSY_SECONDS)
        except sqlite3.DatabaseError as error:
            raise Unavailable(
                f"the run-state file cannot be used ({error}); restore it from a "
                "backup, or move it away to start every run from scratch"
            ) from error

    async def read(self, scope: Scope) -> JsonValue:
        return await self._file.call(lambda db: _read(db, scope))

    async def outcome(self, scope: Scope, step: int, uid: str) -> JsonValue:
        row = await self._file.call(lambda db: _outcome_row(db, scope, step, uid))
        return None if row is None else _load(row[0])

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
            with db:
                # Taken before reading, so that no two processes see the same old state.
                db.execute("BEGIN IMMEDIATE")
                row = _outcome_row(db, scope, step, uid)
                if row is not None:
                    return _load(row[0])
                _check_age(db, scope, step, keep_steps)
                state, outcome = transition(_read(db, scope))
                _write(db, scope, state)
                _write_outcome(db, scope, step, uid, outcome)
                query = "DELETE FROM transitions WHERE run = ? AND name = ? AND step < ?"
                db.execute(query, (*scope, step - keep_steps))
                return outcome

        try:
            return await self._file.call(work)
        except sqlite3.OperationalError as error:
            raise Unavailable(f"run state cannot be written now: {error}", retry_after=1) from error

    async def aclose(self) -> None:
        self._file.close()


def _read(db: sqlite3.Connection, scope: Scope) -> JsonValue:
    query = "SELECT state FROM states WHERE run = ? AND name = ?"
    row = db.execute(query, scope).fetchone()
    return None if row is None else _load(row[0])


def _outcome_row(db: sqlite3.Connection, scope: Scope, step: int, uid: str) -> tuple[str] | None:
    query = "SELECT outcome FROM transitions WHERE run = ? AND name = ? AND step = ? AND uid = ?"
    row: tuple[str] | None = db.execute(query, (*scope, step, uid)).fetchone()
    return row


def _check_age(db: sqlite3.Connection, scope: Scope, step: int, keep_steps: int) -> None:
    """Refuse a step so old that it may have been applied: applying it twice would be wrong."""
    query = "SELECT max(step) FROM transitions WHERE run = ? AND name = ?"
    (newest,) = db.execute(query, scope).fetchone()
    if newest is not None and step < newest - keep_steps:
        raise InvalidRequest(
            f"step {step} is too old: run {scope.run[:100]!r} is at step {newest}, and the "
            f"last {keep_steps} steps are stored"
        )


def _write(db: sqlite3.Connection, scope: Scope, state: JsonValue) -> None:
    db.execute("INSERT OR REPLACE INTO states VALUES (?, ?, ?)", (*scope, _dump(state)))


def _write_outcome(
    db: sqlite3.Connection, scope: Scope, step: int, uid: str, outcome: JsonValue
) -> None:
    row = (*scope, step, uid, _dump(outcome))
    db.execute("INSERT INTO transitions VALUES (?, ?, ?, ?, ?)", row)


def _load(text: str) -> JsonValue:
    value: JsonValue = json.loads(text)
    return value


def _dump(value: JsonValue) -> str:
    return json.dumps(value, allow_nan=False)
