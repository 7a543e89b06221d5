"""The cache in a SQLite file."""

import asyncio
import logging
import math
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TypeVar

from rewardfleet_server.system.sqlite_file import Lost, SqliteFile

from .entry import EntryFormat
from .memory import MemoryCache

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Seconds to wait for a lock. Waiting longer for a cache would make requests queue behind it.
_BUSY_SECONDS = 0.05
#: Bytes of new entries after which they are moved from the log to the database file.
_CHECKPOINT_BYTES = 4 * 2**20

_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    value BLOB NOT NULL,
    expires_at REAL NOT NULL
)
"""


class _Connections:
    """A connection and a thread for each kind of work: a lookup does not wait for a disk."""

    def __init__(self, path: Path) -> None:
        with ExitStack() as stack:
            # The last one moves entries from the log to the database file, and waits for the disk.
            self.writes, self.reads, self.checkpoints = (
                stack.enter_context(closing(SqliteFile(path, _SCHEMA, busy_s=_BUSY_SECONDS)))
                for _ in range(3)
            )
            # If checkpoints cannot keep up, writes wait for the disk as well.
            pages = f"PRAGMA wal_autocheckpoint = {16 * _CHECKPOINT_BYTES // 4096}"
            self.writes.call_now(lambda db: db.execute(pages))
            self.close = stack.pop_all().close


class SqliteCache:
    """A cache in a file that survives the process, `kill -9` included. Evicts the oldest entries.

    A file that SQLite reports as corrupt is renamed with a warning and a new one is created. One
    that is deleted or replaced is opened again. If the disk is full or read-only, entries are not
    stored; nothing else fails.

    Args:
        path: The database file; its folder must exist.
        max_bytes: Limit on the bytes of the file that are in use.
        memory: Front cache, which answers repeated lookups without the disk.
        entry_format: Packs and checks entries. Default: not signed.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int,
        memory: MemoryCache,
        entry_format: EntryFormat | None = None,
    ) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._memory = memory
        self._format = entry_format or EntryFormat(None)
        self._in_log = 0
        self._checkpoint: asyncio.Task[None] | None = None
        self._file: _Connections | None = self._open()

    def _open(self) -> _Connections:
        try:
            return _Connections(self._path)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as error:
            self._set_aside(error)
            return _Connections(self._path)

    def _set_aside(self, error: sqlite3.DatabaseError) -> None:
        aside = SqliteFile.set_aside(self._path)
        log.warning("the cache file is corrupt and was renamed to %s: %s", aside.name, error)

    async def get_many(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        values = dict(await self._memory.get_many(keys))
        missing = [key for key in keys if key not in values]
        if missing:
            marks = ", ".join("?" * len(missing))
            query = f"SELECT key, value FROM entries WHERE key IN ({marks})"  # noqa: S608 - marks only
            rows = await self._guarded(
                lambda db: db.execute(query, missing).fetchall(), lambda file: file.reads
            )
            for key, entry in rows or ():
                unpacked = self._format.unpack(key, entry)
                if unpacked is not None:
                    values[key], ttl_s = unpacked
                    await self._memory.put(key, values[key], ttl_s)
        return values

    async def put(self, key: str, value: bytes, ttl_s: float | None = None) -> None:
        await self._memory.put(key, value, ttl_s)
        seconds = math.inf if ttl_s is None else ttl_s
        entry = self._format.pack(key, value, seconds)
        expires_at = time.time() + seconds  # for people who look at the file

        def write(db: sqlite3.Connection) -> None:
            with db:
                row = (key, entry, expires_at)
                db.execute("INSERT OR REPLACE INTO entries VALUES (NULL, ?, ?, ?)", row)
                while _used_bytes(db) > self._max_bytes and _evict_oldest(db):
                    pass

        await self._guarded(write)
        self._in_log += len(entry)
        if self._in_log > _CHECKPOINT_BYTES and self._checkpoint is None:
            self._in_log = 0
            self._checkpoint = asyncio.create_task(self._move_log())

    async def _move_log(self) -> None:
        try:
            await self._guarded(
                lambda db: db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone(),
                lambda file: file.checkpoints,
            )
        finally:
            self._checkpoint = None

    async def delete(self, key: str) -> None:
        await self._memory.delete(key)

        def write(db: sqlite3.Connection) -> None:
            with db:
                db.execute("DELETE FROM entries WHERE key = ?", (key,))

        await self._guarded(write)

    async def _guarded(
        self,
        work: Callable[[sqlite3.Connection], T],
        connection: Callable[[_Connections], SqliteFile] = lambda file: file.writes,
    ) -> T | None:
        """Run `work` on a connection. If the file fails, it is a cache miss."""
        file = self._file
        if file is None:
            return None
        try:
            return await connection(file).call(work)
        except sqlite3.OperationalError as error:
            log.warning("the cache file could not be used: %s", error)
        except sqlite3.DatabaseError as error:
            if file is self._file:  # otherwise a concurrent call has replaced it already
                self._file = None
                await asyncio.to_thread(self._replace, file, error)
        return None

    def _replace(self, file: _Connections, error: sqlite3.DatabaseError) -> None:
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
        await self._memory.aclose()
        if self._checkpoint is not None:
            await self._checkpoint
        if self._file is not None:
            self._file.close()


def _used_bytes(db: sqlite3.Connection) -> int:
    """Return the bytes of the pages in use. Other processes may have added and evicted entries."""
    query = (
        "SELECT (page_count - freelist_count) * page_size "
        "FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
    )
    return int(db.execute(query).fetchone()[0])


def _evict_oldest(db: sqlite3.Connection) -> int:
    """Delete the oldest entries; return how many."""
    query = "DELETE FROM entries WHERE id IN (SELECT id FROM entries ORDER BY id LIMIT 64)"
    return db.execute(query).rowcount
