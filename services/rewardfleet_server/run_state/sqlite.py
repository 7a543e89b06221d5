"""Run state in a SQLite file."""

import logging
import sqlite3
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from rewardfleet.wire.errors import Unavailable
from rewardfleet_server.system.sqlite_file import Lost, SqliteFile

from .store import BUSY_SECONDS, Entry, Found, Scope, Transaction, Work

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Marks run-state files, so that no other file is taken for one: "rfrs" in ASCII.
_APPLICATION_ID = 0x72667273
#: Changes with the table or with what it stores.
_VERSION = 6
_TABLE = """CREATE TABLE entries (
    key TEXT NOT NULL,
    field TEXT NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (key, field)
) WITHOUT ROWID"""

#: Since the machine was started, suspension included; setting the time does not change it, and all
#: processes of the machine share it.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS lacks the first
#: What is left where a file was deleted in use.
_LOST = b"The run-state file that was here was deleted while a service used it.\n"


class _DamagedFile(sqlite3.DatabaseError):
    """The file has something that no service has written."""


class SqliteStore:
    """A store in a SQLite file, shared by the processes that open it.

    Unlike a cache file, a damaged file is not replaced: continuing with an empty state would
    produce wrong rewards. The service refuses to start instead, and ends if it finds the damage
    later.

    Args:
        path: The database file; its folder must exist. `:memory:` is lost with the process.

    Raises:
        Unavailable: The file is damaged, of another version, or cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failure: str | None = None
        try:
            _refuse_lost(path)
            self._file = SqliteFile(path, _open, busy_s=BUSY_SECONDS)
        except sqlite3.DatabaseError as error:
            raise _unusable(error) from error

    @property
    def failure(self) -> str | None:
        if self._failure is None:
            try:
                self._file.check_place()  # also while there are no calls
            except sqlite3.DatabaseError as error:
                self._fail(error)
        return self._failure

    async def transact(
        self,
        scope: Scope,  # noqa: ARG002 - all transactions take turns
        expected: Sequence[Entry],  # noqa: ARG002 - no read is a round trip
        work: Work[T],
    ) -> T:
        def transaction(db: sqlite3.Connection) -> T:
            try:
                return _run(db, "BEGIN", work)  # most only read, and do not wait for a writer
            except sqlite3.OperationalError as error:
                if _code(error) != sqlite3.SQLITE_BUSY:
                    raise
            # Another process has written, or does, what this one has read.
            return _run(db, "BEGIN IMMEDIATE", work)

        if self._failure is not None:
            raise Unavailable(self._failure)
        try:
            return await self._file.call(transaction)
        except sqlite3.Error as error:
            # Others may pass: another process, the disk, permissions. A missing table does not.
            is_passing = isinstance(error, sqlite3.OperationalError)
            if not is_passing or _code(error) == sqlite3.SQLITE_ERROR:
                raise Unavailable(self._fail(error)) from error
            detail = f"run state cannot be used now: {error}"
            raise Unavailable(detail, retry_after=1) from error

    async def aclose(self) -> None:
        self._file.close()

    def _fail(self, error: sqlite3.Error) -> str:
        """Never use the file again; return why."""
        if self._failure is None:
            self._failure = _unusable(error).detail
            log.error("%s", self._failure)
            if isinstance(error, Lost):
                _mark_lost(self._path)
        return self._failure


def _code(error: sqlite3.Error) -> int:
    """Return the primary code of an error; that of no error if it did not come from SQLite."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF


def _run(db: sqlite3.Connection, begin: str, work: Work[T]) -> T:
    with db:
        db.execute(begin)
        tx = Transaction(lambda entries: _look_up(db, entries), time.clock_gettime(_CLOCK))
        result = work(tx)
        _write(db, tx)
    return result


def _look_up(db: sqlite3.Connection, entries: Sequence[Entry]) -> list[Found]:
    found: list[Found] = []
    for key, field in entries:
        if field is None:
            query = "SELECT field, CAST(value AS BLOB) FROM entries WHERE key = ?"
            found.append(dict(db.execute(query, (key,)).fetchall()))
        else:
            query = "SELECT CAST(value AS BLOB) FROM entries WHERE key = ? AND field = ?"
            row = db.execute(query, (key, field)).fetchone()
            found.append(row and row[0])
    return found


def _write(db: sqlite3.Connection, tx: Transaction) -> None:
    for key in tx.dropped:
        db.execute("DELETE FROM entries WHERE key = ?", (key,))
    rows = [(key, *each) for key, fields in tx.written.items() for each in fields.items()]
    deleted = ((key, field) for key, field, value in rows if value is None)
    db.executemany("DELETE FROM entries WHERE key = ? AND field = ?", deleted)
    stored = (row for row in rows if row[2] is not None)
    db.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", stored)


def _open(db: sqlite3.Connection) -> None:
    """Create the table in a file that is new; check the version, the table and all pages."""
    new: tuple[int, int, list[str]] = (0, 0, [])
    if _description(db) == new:
        with db:
            db.execute("BEGIN IMMEDIATE")
            if _description(db) == new:  # otherwise another process has just created it
                db.execute(_TABLE)
                db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                db.execute(f"PRAGMA user_version = {_VERSION}")
    application, version, tables = _description(db)
    if (application, version) == (_APPLICATION_ID, _VERSION - 1):  # see `RunState.identify`
        db.execute(f"PRAGMA user_version = {(version := _VERSION)}")
    if application != _APPLICATION_ID:
        raise _DamagedFile("it is not a run-state file")
    if version != _VERSION:
        raise _DamagedFile(
            f"its schema version is {version}, and {_VERSION} is needed: finish its runs with the "
            "version of rewardfleet that wrote it"
        )
    if tables != [_TABLE]:
        raise _DamagedFile("its tables differ from those of its schema version")
    problems = [str(problem) for (problem,) in db.execute("PRAGMA integrity_check(3)")]
    if problems != ["ok"]:
        raise _DamagedFile(" ".join("; ".join(problems).split())[:300])


def _description(db: sqlite3.Connection) -> tuple[int, int, list[str]]:
    """Return which program's file it is, its version, and its tables."""
    application, version = (
        int(db.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("application_id", "user_version")
    )
    # Statistics that `ANALYZE` wrote are no damage.
    query = "SELECT sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"
    return application, version, [str(sql) for (sql,) in db.execute(query)]


def _mark_lost(path: Path) -> None:
    """Write a marker in place of a deleted file, so that no service starts with an empty one."""
    with suppress(OSError), path.open("xb") as file:  # the path is taken, or the folder is gone
        file.write(_LOST)


def _refuse_lost(path: Path) -> None:
    """Refuse a file that was deleted or emptied while services used it.

    Its path has the marker that `_mark_lost` writes, or only its write-ahead log is left, which
    SQLite would discard to create an empty database.
    """
    if path.is_file():
        with path.open("rb") as file:
            if file.read(len(_LOST)) == _LOST:
                raise _DamagedFile(f"{path.name} was deleted while a service used it")
    wal = path.with_name(f"{path.name}-wal")
    has_content = path.is_file() and path.stat().st_size
    if not has_content and wal.is_file() and wal.stat().st_size:
        raise _DamagedFile(f"it is missing or empty, although it was written: {wal.name} is there")


def _unusable(error: sqlite3.Error) -> Unavailable:
    return Unavailable(
        f"the run-state file cannot be used ({error}); restore it from a backup, or move it away "
        "to start every run from scratch"
    )
