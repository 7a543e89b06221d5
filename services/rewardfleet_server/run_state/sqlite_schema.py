"""The tables of a run-state file, and whether a file has them undamaged."""

import sqlite3
import time
from contextlib import suppress
from pathlib import Path

#: Marks run-state files, so that no other file is taken for one: "rfrs" in ASCII.
_APPLICATION_ID = 0x72667273
#: Changes with the tables or with what they store.
_VERSION = 3

#: Times are seconds of `clock`, whose only row was written with the last of them: at `wall` by the
#: wall clock, and `boot_seconds` after the start of the machine that `boot` names. `members` has
#: the values of members of open groups, and the results of those of released ones.
_TABLES = (
    """CREATE TABLE clock (
        id INTEGER PRIMARY KEY,
        seconds REAL NOT NULL,
        boot_seconds REAL NOT NULL,
        wall REAL NOT NULL,
        boot TEXT NOT NULL
    )""",
    """CREATE TABLE runs (
        run TEXT PRIMARY KEY,
        changed_at REAL NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE states (
        run TEXT NOT NULL,
        name TEXT NOT NULL,
        state TEXT NOT NULL,
        PRIMARY KEY (run, name)
    ) WITHOUT ROWID""",
    """CREATE TABLE steps (
        run TEXT NOT NULL,
        name TEXT NOT NULL,
        log TEXT NOT NULL,
        PRIMARY KEY (run, name)
    ) WITHOUT ROWID""",
    """CREATE TABLE transitions (
        run TEXT NOT NULL,
        name TEXT NOT NULL,
        step INTEGER NOT NULL,
        uid TEXT NOT NULL,
        outcome TEXT NOT NULL,
        PRIMARY KEY (run, name, step, uid)
    ) WITHOUT ROWID""",
    """CREATE TABLE groups (
        id INTEGER PRIMARY KEY,
        run TEXT NOT NULL,
        step INTEGER NOT NULL,
        name TEXT NOT NULL,
        rules TEXT NOT NULL,
        until REAL NOT NULL,
        release TEXT,
        UNIQUE (run, step, name)
    )""",
    "CREATE INDEX open_groups ON groups (run, until) WHERE release IS NULL",
    """CREATE TABLE members (
        id INTEGER NOT NULL,
        uid TEXT NOT NULL,
        value TEXT NOT NULL,
        PRIMARY KEY (id, uid)
    ) WITHOUT ROWID""",
)


#: What is left where a file was deleted in use.
_LOST = b"The run-state file that was here was deleted while a service used it.\n"


class DamagedFile(sqlite3.DatabaseError):
    """The file has something that no service has written."""


def mark_lost(path: Path) -> None:
    """Leave a note in place of a file that was deleted: a new service would begin from nothing."""
    with suppress(OSError), path.open("xb") as file:  # it is there, or its folder is not
        file.write(_LOST)


def refuse_lost(path: Path) -> None:
    """Refuse a file that was deleted or emptied while services used it.

    A note in its place, or its write-ahead log, says so. SQLite would discard the log and create
    an empty database.

    Raises:
        DamagedFile: It is such a file.
    """
    if path.is_file():
        with path.open("rb") as file:
            if file.read(len(_LOST)) == _LOST:
                raise DamagedFile(f"{path.name} was deleted while a service used it")
    wal = path.with_name(f"{path.name}-wal")
    has_content = path.is_file() and path.stat().st_size
    if not has_content and wal.is_file() and wal.stat().st_size:
        raise DamagedFile(f"it is missing or empty, although it was written: {wal.name} is there")


def create_tables(db: sqlite3.Connection) -> None:
    """Create the tables in a file that is new."""
    if not _is_new(db):
        return
    with db:
        db.execute("BEGIN IMMEDIATE")
        if _is_new(db):  # otherwise another process has just created them
            for statement in _TABLES:
                db.execute(statement)
            db.execute("INSERT INTO clock VALUES (0, 0.0, 0.0, ?, '')", (time.time(),))
            db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {_VERSION}")


def check_file(db: sqlite3.Connection) -> None:
    """Check the version, the tables and all pages of a file.

    Raises:
        DamagedFile: Something is wrong.
        sqlite3.DatabaseError: The file cannot be read.
    """
    if _pragma(db, "application_id") != _APPLICATION_ID:
        raise DamagedFile("it is not a run-state file, or one of an earlier version")
    if (version := _pragma(db, "user_version")) != _VERSION:
        raise DamagedFile(f"its schema version is {version}, and {_VERSION} is needed")
    if _tables(db) != _expected_tables():
        raise DamagedFile("its tables differ from those of its schema version")
    problems = [str(problem) for (problem,) in db.execute("PRAGMA integrity_check(3)")]
    if problems != ["ok"]:
        raise DamagedFile(" ".join("; ".join(problems).split())[:300])


def _is_new(db: sqlite3.Connection) -> bool:
    return not (_tables(db) or _pragma(db, "application_id") or _pragma(db, "user_version"))


def _pragma(db: sqlite3.Connection, name: str) -> int:
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])


def _tables(db: sqlite3.Connection) -> list[str]:
    # Statistics that `ANALYZE` wrote are no damage.
    query = "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_stat%'"
    return sorted(map(repr, db.execute(query)))


def _expected_tables() -> list[str]:
    db = sqlite3.connect(":memory:")
    try:
        for statement in _TABLES:
            db.execute(statement)
        return _tables(db)
    finally:
        db.close()
