"""Answers that are known already, and answers that are being computed right now."""

import asyncio
import logging
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from .sqlite import SqliteFile

T = TypeVar("T")

log = logging.getLogger(__name__)


class Cache(Protocol):
    """Where finished answers are kept. It may forget anything at any time; it never fails."""

    async def get(self, key: str) -> bytes | None:
        """Return the answer kept under `key`, or None."""

    async def put(self, key: str, value: bytes) -> None:
        """Keep `value` under `key`, at the cost of older entries where there is no room."""

    async def aclose(self) -> None:
        """Let go of files and threads."""


class MemoryCache:
    """Answers in memory, the least recently used forgotten first.

    Args:
        max_bytes: Bound on the bytes of keys and values together; 0 keeps nothing.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: OrderedDict[str, bytes] = OrderedDict()

    async def get(self, key: str) -> bytes | None:
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    async def put(self, key: str, value: bytes) -> None:
        old = self._entries.pop(key, None)
        if old is not None:
            self._bytes -= len(key) + len(old)
        self._entries[key] = value
        self._bytes += len(key) + len(value)
        while self._bytes > self._max_bytes:
            forgotten_key, forgotten = self._entries.popitem(last=False)
            self._bytes -= len(forgotten_key) + len(forgotten)

    async def aclose(self) -> None:
        self._entries.clear()
        self._bytes = 0


#: A cache that others hold locked is not worth waiting for: requests would queue behind it.
_BUSY_SECONDS = 0.05

_CACHE_SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    value BLOB NOT NULL
)
"""


class SqliteCache:
    """Answers in a file that outlives the process, `kill -9` included; the oldest go first.

    A file that SQLite finds corrupt is set aside under another name with a warning, and a new
    one is begun. A full or read-only disk costs the answer's place in the cache, nothing else.

    Args:
        path: The database file; its folder must exist.
        max_bytes: Bound on the bytes of keys and values together.
        memory: The front that answers repeated look-ups without the disk.
    """

    def __init__(self, path: Path, *, max_bytes: int, memory: MemoryCache) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._memory = memory
        self._bytes = 0
        self._file: SqliteFile | None = self._open()

    def _open(self) -> SqliteFile:
        try:
            file = SqliteFile(self._path, _CACHE_SCHEMA, busy_s=_BUSY_SECONDS)
            self._bytes = file.call_now(_count_bytes)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as error:
            self._set_aside(error)
            file = SqliteFile(self._path, _CACHE_SCHEMA, busy_s=_BUSY_SECONDS)
            self._bytes = 0
        return file

    def _set_aside(self, error: sqlite3.DatabaseError) -> None:
        aside = SqliteFile.set_aside(self._path)
        log.warning("cache file is corrupt and was set aside as %s: %s", aside.name, error)

    async def get(self, key: str) -> bytes | None:
        value = await self._memory.get(key)
        if value is not None:
            return value

        def read(db: sqlite3.Connection) -> bytes | None:
            row = db.execute("SELECT value FROM answers WHERE key = ?", (key,)).fetchone()
            return row[0] if row is not None and isinstance(row[0], bytes) else None

        value = await self._guarded(read)
        if value is not None:
            await self._memory.put(key, value)
        return value

    async def put(self, key: str, value: bytes) -> None:
        await self._memory.put(key, value)

        def write(db: sqlite3.Connection) -> None:
            with db:
                row = (key, value)
                added = db.execute("INSERT OR REPLACE INTO answers VALUES (NULL, ?, ?)", row)
                size = self._bytes + added.rowcount * (len(key) + len(value))
                while size > self._max_bytes and (freed := _forget_oldest(db)):
                    size -= freed
            self._bytes = size

        await self._guarded(write)

    async def _guarded(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        """Run `work` on the file; a cache that breaks is a cache that misses."""
        file = self._file
        if file is None:
            return None
        try:
            return await file.call(work)
        except sqlite3.OperationalError as error:
            log.warning("cache file could not be used this time: %s", error)
        except sqlite3.DatabaseError as error:
            if file is self._file:  # else somebody who waited beside us has replaced it
                self._file = None
                await asyncio.to_thread(self._begin_anew, file, error)
        return None

    def _begin_anew(self, file: SqliteFile, error: sqlite3.DatabaseError) -> None:
        file.close()
        try:
            self._set_aside(error)
            self._file = self._open()
        except (OSError, sqlite3.Error) as again:
            log.error("there is no cache file from now on: %s", again)  # noqa: TRY400 - told whole

    async def aclose(self) -> None:
        await self._memory.aclose()
        if self._file is not None:
            self._file.close()


def _count_bytes(db: sqlite3.Connection) -> int:
    query = "SELECT coalesce(sum(length(key) + length(value)), 0) FROM answers"
    return int(db.execute(query).fetchone()[0])


def _forget_oldest(db: sqlite3.Connection) -> int:
    """Delete the oldest entries; return the bytes that they held."""
    rows = db.execute(
        "DELETE FROM answers WHERE id IN (SELECT id FROM answers ORDER BY id LIMIT 64) "
        "RETURNING length(key) + length(value)"
    ).fetchall()
    return sum(size for (size,) in rows)


@dataclass
class _Flight(Generic[T]):
    """A computation that is under way, and how many wait for it."""

    task: asyncio.Task[T]
    waiters: int = 0


class Flights(Generic[T]):
    """Identical requests in flight share one computation, which ends with its last waiter.

    A waiter that gives up (its deadline, its caller's hang-up) is cancelled alone; the
    computation is cancelled when nobody waits for it any more.
    """

    def __init__(self) -> None:
        self._flights: dict[str, _Flight[T]] = {}

    async def join(self, key: str, start: Callable[[], Coroutine[None, None, T]]) -> T:
        """Wait for the computation of `key`, starting it where nobody has."""
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight(asyncio.ensure_future(start()))
            flight.task.add_done_callback(lambda _: self._forget(key, flight))
        flight.waiters += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiters -= 1
            if not flight.waiters and not flight.task.done():
                self._forget(key, flight)  # at once: who asks from now on starts anew
                flight.task.cancel()

    def _forget(self, key: str, flight: _Flight[T] | None) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
