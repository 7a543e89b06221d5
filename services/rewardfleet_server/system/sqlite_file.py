"""A SQLite file used from the event loop: one connection, on one thread of its own."""

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from .threads import run_in_thread

T = TypeVar("T")

#: Seconds for which opening a file is tried again while another process opens it.
_OPEN_SECONDS = 5.0
#: Suffixes of the write-ahead log and of its index.
_COMPANIONS = ("-wal", "-shm")
#: The identity of a file: its device, its inode, and whether it is linked and not empty. If a
#: single file is mounted into a container, its path remains when its last link is removed. None: no
#: such file.
_Identity = tuple[int, int, bool] | None


class Lost(sqlite3.DatabaseError):
    """The file was deleted, replaced or emptied while it was open. What was written is lost."""


class SqliteFile:
    """One database file in WAL mode: no committed row is lost if the process crashes.

    Args:
        prepare: Checks the file, in a folder that exists, and creates missing tables.
        busy_s: Seconds that a statement waits for another process's lock.

    Raises:
        sqlite3.DatabaseError: The file is not a database, or is damaged.
        sqlite3.OperationalError: The file cannot be opened (a subclass of the former).
    """

    def __init__(
        self, path: Path, prepare: Callable[[sqlite3.Connection], object], *, busy_s: float
    ) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"sqlite-{path.name}")
        is_file = str(path) != ":memory:"
        # By path. The log and its index exist from the first read on.
        self._opened: dict[str, _Identity] = dict.fromkeys(_paths(path)) if is_file else {}
        opening = partial(_open, path, prepare, busy_s)
        try:
            self._db = self._thread.submit(_reporting_damage, opening).result()
            self.check_place()
        except BaseException:
            self._thread.shutdown()
            raise

    async def call(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` on the file's thread; for errors besides its own, see `check_place`."""

        def run() -> T:
            result = _reporting_damage(lambda: work(self._db))
            self.check_place()  # afterwards, so that nothing is acknowledged that is lost already
            return result

        return await run_in_thread(self._thread, run)

    def check_place(self) -> None:
        """Check that the file is still the one that was opened, which takes microseconds.

        Raises:
            Lost: It is not.
            sqlite3.DatabaseError: Its log, or the index of the log, is not.
        """
        for path, opened in self._opened.items():
            found = _identity(path, opened)
            if opened is None:
                self._opened[path] = found
            elif found != opened:
                error = sqlite3.DatabaseError if path.endswith(_COMPANIONS) else Lost
                name = Path(path).name
                raise error(f"{name} was deleted, replaced or emptied while it was in use")

    def close(self) -> None:
        """Finish pending work and close the file."""
        self._opened = {}  # the log is deleted with the last connection
        self._thread.submit(self._db.close)
        self._thread.shutdown()

    @staticmethod
    def remove_rest(path: Path) -> None:
        """Remove companions of a file that was deleted: a new one would get them."""
        file, *companions = map(Path, _paths(path))
        if not file.exists():
            for each in companions:
                each.unlink(missing_ok=True)

    @staticmethod
    def set_aside(path: Path) -> Path:
        """Rename a damaged file and its companions; return the new name of the file."""
        aside = path.with_name(f"{path.name}.corrupt-{time.time_ns()}")
        for old, new in zip(_paths(path), _paths(aside), strict=True):
            with contextlib.suppress(FileNotFoundError):
                os.replace(old, new)
        return aside


def _open(
    path: Path, prepare: Callable[[sqlite3.Connection], object], busy_s: float
) -> sqlite3.Connection:
    """Connect; try again if another process is just creating the file.

    SQLite then answers "locked" at once, whatever `busy_s` is: to wait could be a deadlock.
    """
    deadline = time.monotonic() + _OPEN_SECONDS
    while True:
        db = sqlite3.connect(path, timeout=busy_s)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            # Durable if the process crashes; a power failure may lose the last rows.
            db.execute("PRAGMA synchronous = NORMAL")
            prepare(db)
        except BaseException as error:
            db.close()
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
            if code & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        else:
            return db
        time.sleep(0.02)


def _paths(path: Path) -> list[str]:
    return [f"{path}{suffix}" for suffix in ("", *_COMPANIONS)]


def _identity(path: str, otherwise: _Identity) -> _Identity:
    """Return what names the file at a path; `otherwise` if that cannot be found out now."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return otherwise
    has_content = status.st_size > 0 or path.endswith(_COMPANIONS)  # those are empty at times
    return status.st_dev, status.st_ino, status.st_nlink > 0 and has_content


def _reporting_damage(work: Callable[[], T]) -> T:
    """Run `work`; raise a message of SQLite that contains damaged text as an error of SQLite."""
    try:
        return work()
    except UnicodeDecodeError as error:
        raise sqlite3.DatabaseError("it has text that is not UTF-8") from error
