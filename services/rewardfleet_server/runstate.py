"""What a service must remember of a training run: a budget, a running mean, half a group.

A trainer that crashed sends its last step again. So every change is named by (run, step, uid)
and made once: whoever sends it again gets the answer that was given the first time.
"""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from pydantic import JsonValue

from rewardfleet.wire.errors import InvalidRequest, Unavailable

from .sqlite import SqliteFile

#: From a run's state (None at first) to its next state and the answer to give.
Change = Callable[[JsonValue], tuple[JsonValue, JsonValue]]


class RunState(Protocol):
    """A small memory for each training run. Its answers are never cached."""

    async def read(self, run: str) -> JsonValue:
        """Return the run's state, None where there is none."""

    async def apply(self, run: str, step: int, uid: str, change: Change) -> JsonValue:
        """Make `change` once for (run, step, uid); return its answer, then and whenever asked.

        Raises:
            InvalidRequest: The step is so old that it is not known any more whether it was made.
        """

    async def aclose(self) -> None:
        """Let go of files and threads."""


#: A change must not be lost because another process is making one.
_BUSY_SECONDS = 5.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (run TEXT PRIMARY KEY, state TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS changes (
    run TEXT NOT NULL,
    step INTEGER NOT NULL,
    uid TEXT NOT NULL,
    answer TEXT NOT NULL,
    PRIMARY KEY (run, step, uid)
) WITHOUT ROWID;
"""


class SqliteRunState:
    """Run states in a SQLite file, shared by the processes that open it.

    A damaged file is not set aside, as a cache's is: to go on with an empty memory would give
    wrong rewards. The service refuses to start until somebody has looked at it.

    Args:
        path: The database file; its folder must exist. `:memory:` keeps nothing after the process.
        keep_steps: Answers older than this many steps before a run's newest are forgotten, and
            steps so old are refused.

    Raises:
        Unavailable: The file is damaged or cannot be opened.
    """

    def __init__(self, path: Path, *, keep_steps: int = 1000) -> None:
        self._keep_steps = keep_steps
        try:
            self._file = SqliteFile(path, _SCHEMA, busy_s=_BUSY_SECONDS)
        except sqlite3.DatabaseError as error:
            raise Unavailable(
                f"run-state file {path.name} cannot be used ({error}); restore it from a backup, "
                "or move it away to begin every run anew"
            ) from error

    async def read(self, run: str) -> JsonValue:
        return await self._file.call(lambda db: _state_of(db, run))

    async def apply(self, run: str, step: int, uid: str, change: Change) -> JsonValue:
        def work(db: sqlite3.Connection) -> JsonValue:
            with db:
                # Taken before reading: two processes must not both see the old state.
                db.execute("BEGIN IMMEDIATE")
                return self._apply(db, (run, step, uid), change)

        try:
            return await self._file.call(work)
        except sqlite3.OperationalError as error:
            raise Unavailable(f"run state cannot be written now: {error}", retry_after=1) from error

    def _apply(
        self, db: sqlite3.Connection, name: tuple[str, int, str], change: Change
    ) -> JsonValue:
        run, step, _ = name
        known = db.execute(
            "SELECT answer FROM changes WHERE run = ? AND step = ? AND uid = ?", name
        ).fetchone()
        if known is not None:
            return _load(known[0])
        (newest,) = db.execute("SELECT max(step) FROM changes WHERE run = ?", (run,)).fetchone()
        if newest is not None and step < newest - self._keep_steps:
            # Whether it was made is forgotten, and to make it twice would be wrong.
            raise InvalidRequest(
                f"step {step} is too old: run {run[:100]!r} is at {newest}, and the last "
                f"{self._keep_steps} steps are kept"
            )
        state, answer = change(_state_of(db, run))
        db.execute("INSERT OR REPLACE INTO runs VALUES (?, ?)", (run, _dump(state)))
        db.execute("INSERT INTO changes VALUES (?, ?, ?, ?)", (*name, _dump(answer)))
        db.execute("DELETE FROM changes WHERE run = ? AND step < ?", (run, step - self._keep_steps))
        return answer

    async def aclose(self) -> None:
        self._file.close()


def _state_of(db: sqlite3.Connection, run: str) -> JsonValue:
    row = db.execute("SELECT state FROM runs WHERE run = ?", (run,)).fetchone()
    return None if row is None else _load(row[0])


def _load(text: str) -> JsonValue:
    value: JsonValue = json.loads(text)
    return value


def _dump(value: JsonValue) -> str:
    return json.dumps(value, allow_nan=False)
