"""The cache in a SQLite file."""

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from rewardfleet_server.system.sqlite_file import Lost, SqliteFile

from .entry import EntryFormat
from .memory import MemoryCache, StoredCache

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Seconds to wait for a lock. Waiting longer for a cache would make requests queue behind it.
_BUSY_SECONDS = 0.05

#: Without waits for the disk. If the machine crashes, entries may be lost, or be damaged, as their
#: checksums or SQLite notice; if the process does, none is.
_SCHEMA = """
PRAGMA synchronous = OFF;
CREATE TABLE IF NOT EXISTS entries (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    value BLOB NOT NULL,
    expires_at REAL NOT NULL
)
"""
#: The bytes of the pages in use. Other processes may have added and evicted entries.
_USED_BYTES = """
SELECT (page_count - freelist_count) * page_size
FROM pragma_page_count, pragma_freelist_count, pragma_page_size
"""
_EVICT_OLDEST = "DELETE FROM entries WHERE id IN (SELECT id FROM entries ORDER BY id LIMIT 64)"


class SqliteCache(StoredCache):
    """A cache in a file that survives the process, `kill -9` included. Evicts the oldest entries.

    A file that SQLite reports as corrupt is renamed with a warning and a new one is created. One
    that is deleted or replaced is opened again. If the disk is full or read-only, entries are not
    stored; nothing else fails.

    Args:
        path: The database file; its folder must exist.
        max_bytes: Limit on the bytes of the file that are in use.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int,
        memory: MemoryCache,
        entry_format: EntryFormat | None = None,
    ) -> None:
        super().__init__(memory, entry_format)
        self._path = path
        self._max_bytes = max_bytes
        self._file: SqliteFile | None = self._open()

    def _open(self) -> SqliteFile:
        def create(db: sqlite3.Connection) -> None:
            db.executescript(_SCHEMA)

        try:
            return SqliteFile(self._path, create, busy_s=_BUSY_SECONDS)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as error:
            self._set_aside(error)
            return SqliteFile(self._path, create, busy_s=_BUSY_SECONDS)

    def _set_aside(self, error: sqlite3.DatabaseError) -> None:
        aside = SqliteFile.set_aside(self._path)
        log.warning("the cache file is corrupt and was renamed to %s: %s", aside.name, error)

    async def _read(self, keys: Sequence[str]) -> Mapping[str, object]:
        marks = ", ".join("?" * len(keys))
        query = f"SELECT key, value FROM entries WHERE key IN ({marks})"  # noqa: S608 - marks only
        return dict(await self._guarded(lambda db: db.execute(query, keys).fetchall()) or ())

    async def _write(self, key: str, entry: bytes | None, ttl_s: float) -> None:
        expires_at = time.time() + ttl_s  # for people who look at the file

        def write(db: sqlite3.Connection) -> None:
            with db:
                if entry is None:
                    db.execute("DELETE FROM entries WHERE key = ?", (key,))
                    return
                row = (key, entry, expires_at)
                db.execute("INSERT OR REPLACE INTO entries VALUES (NULL, ?, ?, ?)", row)
                while db.execute(_USED_BYTES).fetchone()[0] > self._max_bytes:
                    if not db.execute(_EVICT_OLDEST).rowcount:
                        break

        await self._guarded(write)

    async def _guarded(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        """Run `work` on the file. If the file fails, it is a cache miss."""
        file = self._file
        if file is None:
            return None
        try:
            return await file.call(work)
        except sqlite3.OperationalError as error:
            log.warning("the cache file could not be used: %s", error)
        except sqlite3.DatabaseError as error:
            if file is self._file:  # otherwise a concurrent call has replaced it already
                self._file = None
                await asyncio.to_thread(self._replace, file, error)
        return None

    def _replace(self, file: SqliteFile, error: sqlite3.DatabaseError) -> None:
        file.close()
        try:
            if isinstance(error, Lost):
                SqliteFile.remove_rest(self._path)
                log.warning("the cache file is opened again: %s", error)
            else:
                self._set_aside(error)
            self._file = self._open()
        except (OSError, sqlite3.Error) as second:
            log.error("the cache file is switched off: %s", second)  # noqa: TRY400 - the message has the reason

    async def aclose(self) -> None:
        if self._file is not None:
            self._file.close()
