"""A SQLite file used from the event loop: one connection, on one thread of its own."""

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from .threads import run_in_thread

T = TypeVar("T")

#: Seconds for which opening a file is tried again while another process opens it.
_OPEN_SECONDS = 5.0


class SqliteFile:
    """One database file in WAL mode: no committed row is lost if the process crashes.

    Args:
        path: The file; its folder must exist.
        schema: Statements that create missing tables.
        busy_s: Seconds that a statement waits for another process's lock.

    Raises:
        sqlite3.DatabaseError: The file is not a database, or is damaged.
        sqlite3.OperationalError: The file cannot be opened (a subclass of the former).
    """

    def __init__(self, path: Path, schema: str, *, busy_s: float) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"sqlite-{path.name}")
        try:
            connecting = self._thread.submit(
                _reporting_damage, lambda: self._open(path, schema, busy_s)
            )
            self._db = connecting.result()
        except BaseException:
            self._thread.shutdown()
            raise

    @classmethod
    def _open(cls, path: Path, schema: str, busy_s: float) -> sqlite3.Connection:
        """Connect; try again if another process is just creating the file.

        SQLite then answers "locked" at once, whatever `busy_s` is: to wait could be a deadlock.
        """
        deadline = time.monotonic() + _OPEN_SECONDS
        while True:
            try:
                return cls._connect(path, schema, busy_s)
            except sqlite3.OperationalError as error:
                is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not is_busy or time.monotonic() > deadline:
                    raise
            time.sleep(0.02)

    @staticmethod
    def _connect(path: Path, schema: str, busy_s: float) -> sqlite3.Connection:
        db = sqlite3.connect(path, timeout=busy_s)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            # Durable if the process crashes; a power failure may lose the last rows.
            db.execute("PRAGMA synchronous = NORMAL")
            db.executescript(schema)
        except BaseException:
            db.close()
            raise
        return db

    async def call(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` on the file's thread."""
        return await run_in_thread(self._thread, lambda: _reporting_damage(lambda: work(self._db)))

    def call_now(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` and block; for startup, when there is no event loop to block."""
        return self._thread.submit(_reporting_damage, lambda: work(self._db)).result()

    def close(self) -> None:
        """Finish pending work and close the file."""
        self._thread.submit(self._db.close)
        self._thread.shutdown()

    @staticmethod
    def set_aside(path: Path) -> Path:
        """Rename a damaged file and its companions; return the new name of the file."""
        aside = path.with_name(f"{path.name}.corrupt-{time.time_ns()}")
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{path}{suffix}", f"{aside}{suffix}")
        return aside


def _reporting_damage(work: Callable[[], T]) -> T:
    """Run `work`; raise a message of SQLite that contains damaged text as an error of SQLite."""
    try:
        return work()
    except UnicodeDecodeError as error:
        raise sqlite3.DatabaseError("it has text that is not UTF-8") from error
