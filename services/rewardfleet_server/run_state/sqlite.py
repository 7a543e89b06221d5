"""Run state in a SQLite file."""

import logging
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from rewardfleet.wire.errors import Unavailable
from rewardfleet_server.system.sqlite_file import Lost, SqliteFile

from .store import (
    BUSY_SECONDS,
    Damaged,
    Entry,
    Found,
    Moment,
    Scope,
    Transaction,
    Work,
    machine_seconds,
)

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Marks run-state files, so that no other file is taken for one: "rfrs" in ASCII.
_APPLICATION_ID = 0x72667273
#: Changes with the table or with what it stores.
_VERSION = 5
_TABLE = """CREATE TABLE entries (
    key TEXT NOT NULL,
    field TEXT NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (key, field)
) WITHOUT ROWID"""

#: Primary codes of errors that may pass: another process, the disk, permissions.
_PASSING = {
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

#: Seconds between two checks of the complete file after damaged values were found.
_CHECK_SECONDS = 60.0

#: What is left where a file was deleted in use.
_LOST = b"The run-state file that was here was deleted while a service used it.\n"

#: Raises `Damaged` if rows of key, field and value are not what is stored.
Check = Callable[[Iterable[tuple[str, str, bytes]]], None]


class _DamagedFile(sqlite3.DatabaseError):
    """The file has something that no service has written."""


class SqliteStore:
    """A store in a SQLite file, shared by the processes that open it.

    Unlike a cache file, a damaged file is not replaced: continuing with an empty state would
    produce wrong rewards. The service refuses to start instead, and ends if it finds the damage
    later.

    Args:
        path: The database file; its folder must exist. `:memory:` is lost with the process.
        check: Checks all that is stored, at the start.

    Raises:
        Unavailable: The file is damaged, of another version, or cannot be opened.
    """

    def __init__(self, path: Path, check: Check) -> None:
        self._path = path
        self._clock = _boot()
        self._check_at = 0.0
        self._failure: str | None = None

        def opened(db: sqlite3.Connection) -> None:
            _create_table(db)
            _check_file(db)
            check(db.execute("SELECT * FROM entries"))

        try:
            _refuse_lost(path)
            self._file = SqliteFile(path, "", busy_s=BUSY_SECONDS)
        except sqlite3.DatabaseError as error:
            raise _unusable(error) from error
        try:
            self._file.call_now(opened)
        except (sqlite3.DatabaseError, Damaged) as error:
            self._file.close()
            raise _unusable(error) from error

    @property
    def failure(self) -> str | None:
        if self._failure is None:
            try:
                self._file.check_place()  # also while there are no calls
            except sqlite3.DatabaseError as error:
                self._fail(error)
        return self._failure

    async def read(self, scope: Scope, entry: Entry) -> Any:  # noqa: ARG002 - for messages
        (found,) = await self._call(lambda db: _look_up(db, [entry]))
        return found

    async def transact(
        self,
        scope: Scope,  # noqa: ARG002 - all transactions take turns
        expected: Sequence[Entry],  # noqa: ARG002 - no read is a round trip
        work: Work[T],
        *,
        is_slow: bool = False,  # noqa: ARG002 - the file has a thread
    ) -> T:
        def transaction(db: sqlite3.Connection) -> T:
            try:
                return self._run(db, "BEGIN", work)  # most only read, and do not wait for a writer
            except sqlite3.OperationalError as error:
                if _code(error) != sqlite3.SQLITE_BUSY:
                    raise
            # Another process has written, or does, what this one has read.
            return self._run(db, "BEGIN IMMEDIATE", work)

        return await self._call(transaction)

    async def aclose(self) -> None:
        self._file.close()

    def _run(self, db: sqlite3.Connection, begin: str, work: Work[T]) -> T:
        with db:
            db.execute(begin)
            now = Moment(self._clock, machine_seconds())
            tx = Transaction(lambda entries: _look_up(db, entries), now)
            result = work(tx)
            _write(db, tx)
        return result

    async def _call(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._failure is not None:
            raise Unavailable(self._failure)

        def checked(db: sqlite3.Connection) -> T:
            try:
                return work(db)
            except Damaged:
                if time.monotonic() >= self._check_at:  # it may be more than this value
                    self._check_at = time.monotonic() + _CHECK_SECONDS
                    _check_file(db)
                raise

        try:
            return await self._file.call(checked)
        except sqlite3.Error as error:
            if _code(error) in _PASSING:
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
                _mark_lost(self._path)
        return self._failure


def _code(error: sqlite3.Error) -> int:
    """Return the primary code of an error; that of no error if it did not come from SQLite."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF


def _look_up(db: sqlite3.Connection, entries: Sequence[Entry]) -> list[Found]:
    found: list[Found] = []
    for key, field in entries:
        if field is None:
            query = "SELECT field, value FROM entries WHERE key = ?"
            found.append(dict(db.execute(query, (key,)).fetchall()))
        else:
            query = "SELECT value FROM entries WHERE key = ? AND field = ?"
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


def _create_table(db: sqlite3.Connection) -> None:
    """Create the table in a file that is new."""
    if not _is_new(db):
        return
    with db:
        db.execute("BEGIN IMMEDIATE")
        if _is_new(db):  # otherwise another process has just created it
            db.execute(_TABLE)
            db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {_VERSION}")


def _check_file(db: sqlite3.Connection) -> None:
    """Check the version, the table and all pages of a file.

    Raises:
        _DamagedFile: Something is wrong.
        sqlite3.DatabaseError: The file cannot be read.
    """
    if _pragma(db, "application_id") != _APPLICATION_ID:
        raise _DamagedFile("it is not a run-state file")
    if (version := _pragma(db, "user_version")) != _VERSION:
        raise _DamagedFile(
            f"its schema version is {version}, and {_VERSION} is needed: finish its runs with the "
            "version of rewardfleet that wrote it"
        )
    if _tables(db) != [_TABLE]:
        raise _DamagedFile("its tables differ from those of its schema version")
    problems = [str(problem) for (problem,) in db.execute("PRAGMA integrity_check(3)")]
    if problems != ["ok"]:
        raise _DamagedFile(" ".join("; ".join(problems).split())[:300])


def _is_new(db: sqlite3.Connection) -> bool:
    return not (_tables(db) or _pragma(db, "application_id") or _pragma(db, "user_version"))


def _pragma(db: sqlite3.Connection, name: str) -> int:
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])


def _tables(db: sqlite3.Connection) -> list[str]:
    # Statistics that `ANALYZE` wrote are no damage.
    query = "SELECT sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"
    return [str(sql) for (sql,) in db.execute(query)]


def _mark_lost(path: Path) -> None:
    """Write a marker in place of a deleted file, so that no service starts with an empty one."""
    with suppress(OSError), path.open("xb") as file:  # the path is taken, or the folder is gone
        file.write(_LOST)


def _refuse_lost(path: Path) -> None:
    """Refuse a file that was deleted or emptied while services used it.

    Its path has the marker that `_mark_lost` writes, or only its write-ahead log is left, which
    SQLite would discard to create an empty database.

    Raises:
        _DamagedFile: It is such a file.
    """
    if path.is_file():
        with path.open("rb") as file:
            if file.read(len(_LOST)) == _LOST:
                raise _DamagedFile(f"{path.name} was deleted while a service used it")
    wal = path.with_name(f"{path.name}-wal")
    has_content = path.is_file() and path.stat().st_size
    if not has_content and wal.is_file() and wal.stat().st_size:
        raise _DamagedFile(f"it is missing or empty, although it was written: {wal.name} is there")


def _boot() -> str:
    """Return the name of this machine's clock since boot; a new name if that is unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/time').readlink()}"
    except OSError:
        return str(uuid.uuid4())


def _unusable(error: sqlite3.Error | Damaged) -> Unavailable:
    reason = f"{error.where} is damaged" if isinstance(error, Damaged) else str(error)
    return Unavailable(
        f"the run-state file cannot be used ({reason}); restore it from a backup, or move it away "
        "to start every run from scratch"
    )
