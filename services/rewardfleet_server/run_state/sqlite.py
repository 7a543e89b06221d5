"""Run state in a SQLite file."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import JsonValue

from rewardfleet.wire.errors import Unavailable
from rewardfleet_server.sqlite_file import SqliteFile

from .store import BUSY_SECONDS, KEEP_STEPS, Scope, Transition, check_age, dump, load

T = TypeVar("T")

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
            self._file = SqliteFile(path, _SCHEMA, busy_s=BUSY_SECONDS)
        except sqlite3.DatabaseError as error:
            raise Unavailable(
                f"the run-state file cannot be used ({error}); restore it from a "
                "backup, or move it away to start every run from scratch"
            ) from error

    async def read(self, scope: Scope) -> JsonValue:
        return await self._call(lambda db: _read(db, scope))

    async def outcome(self, scope: Scope, step: int, uid: str) -> JsonValue:
        row = await self._call(lambda db: _outcome_row(db, scope, step, uid))
        return None if row is None else load(scope, row[0])

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
                    return load(scope, row[0])
                check_age(scope, step, _newest_step(db, scope), keep_steps)
                state, outcome = transition(_read(db, scope))
                _write(db, scope, state)
                _write_outcome(db, scope, step, uid, outcome)
                query = "DELETE FROM transitions WHERE run = ? AND name = ? AND step < ?"
                db.execute(query, (*scope, step - keep_steps))
                return outcome

        return await self._call(work)

    async def update(
        self, scope: Scope, transition: Transition, *, forget_outcomes: bool = False
    ) -> JsonValue:
        def work(db: sqlite3.Connection) -> JsonValue:
            with db:
                db.execute("BEGIN IMMEDIATE")
                state, outcome = transition(_read(db, scope))
                dump(outcome)  # what cannot be stored is refused, as by `apply_once`
                _write(db, scope, state)
                if forget_outcomes:
                    db.execute("DELETE FROM transitions WHERE run = ? AND name = ?", scope)
                return outcome

        return await self._call(work)

    async def _call(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await self._file.call(work)
        except sqlite3.Error as error:
            raise Unavailable(f"run state cannot be used now: {error}", retry_after=1) from error

    async def aclose(self) -> None:
        self._file.close()


def _read(db: sqlite3.Connection, scope: Scope) -> JsonValue:
    query = "SELECT state FROM states WHERE run = ? AND name = ?"
    row = db.execute(query, scope).fetchone()
    return None if row is None else load(scope, row[0])


def _outcome_row(db: sqlite3.Connection, scope: Scope, step: int, uid: str) -> tuple[str] | None:
    query = "SELECT outcome FROM transitions WHERE run = ? AND name = ? AND step = ? AND uid = ?"
    row: tuple[str] | None = db.execute(query, (*scope, step, uid)).fetchone()
    return row


def _newest_step(db: sqlite3.Connection, scope: Scope) -> int | None:
    query = "SELECT max(step) FROM transitions WHERE run = ? AND name = ?"
    newest: int | None
    (newest,) = db.execute(query, scope).fetchone()
    return newest


def _write(db: sqlite3.Connection, scope: Scope, state: JsonValue) -> None:
    db.execute("INSERT OR REPLACE INTO states VALUES (?, ?, ?)", (*scope, dump(state)))


def _write_outcome(
    db: sqlite3.Connection, scope: Scope, step: int, uid: str, outcome: JsonValue
) -> None:
    row = (*scope, step, uid, dump(outcome))
    db.execute("INSERT INTO transitions VALUES (?, ?, ?, ?, ?)", row)
