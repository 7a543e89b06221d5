"""Answers that are known already, and answers that are being computed right now."""

import asyncio
import logging
import math
import sqlite3
import struct
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
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

    async def put(self, key: str, value: bytes, ttl_s: float | None = None) -> None:
        """Keep `value` under `key`, at the cost of older entries where there is no room.

        Args:
            ttl_s: For so many seconds; None for as long as there is room.
        """

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
        # Each with the moment after which it is not true any more.
        self._entries: OrderedDict[str, tuple[bytes, float]] = OrderedDict()

    async def get(self, key: str) -> bytes | None:
        value, until = self._entries.get(key, (None, 0.0))
        if value is None or time.monotonic() > until:
            return None
        self._entries.move_to_end(key)
        return value

    async def put(self, key: str, value: bytes, ttl_s: float | None = None) -> None:
        old, _ = self._entries.pop(key, (None, 0.0))
        if old is not None:
            self._bytes -= len(key) + len(old)
        self._entries[key] = value, math.inf if ttl_s is None else time.monotonic() + ttl_s
        self._bytes += len(key) + len(value)
        while self._bytes > self._max_bytes:
            forgotten_key, (forgotten, _) = self._entries.popitem(last=False)
            self._bytes -= len(forgotten_key) + len(forgotten)

    async def aclose(self) -> None:
        self._entries.clear()
        self._bytes = 0


_REDIS_PREFIX = "rewardfleet:"
_REDIS_CONNECTIONS = 64
#: For one question to the server, and how long one that failed is left alone.
_REDIS_SECONDS, _REDIS_REST_SECONDS = 0.25, 5.0
#: A week: the server forgets older answers even where it has room.
_REDIS_KEEPS_SECONDS = 7 * 24 * 3600.0
_STAMP = struct.Struct("!d")

#: A cache that others hold locked is not worth waiting for: requests would queue behind it.
_BUSY_SECONDS = 0.05

_CACHE_SCHEMA = """
CREATE TABLE IF NOT EXISTS kept_answers (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    value BLOB NOT NULL,
    until REAL NOT NULL
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

        def read(db: sqlite3.Connection) -> tuple[bytes, float] | None:
            query = "SELECT value, until FROM kept_answers WHERE key = ?"
            match db.execute(query, (key,)).fetchone():
                case (bytes(kept), float(until)) if until > time.time():
                    return kept, until
            return None

        found = await self._guarded(read)
        if found is None:
            return None
        value, until = found
        await self._memory.put(key, value, until - time.time())
        return value

    async def put(self, key: str, value: bytes, ttl_s: float | None = None) -> None:
        await self._memory.put(key, value, ttl_s)
        until = math.inf if ttl_s is None else time.time() + ttl_s

        def write(db: sqlite3.Connection) -> None:
            with db:
                row = (key, value, until)
                query = "INSERT OR REPLACE INTO kept_answers VALUES (NULL, ?, ?, ?)"
                added = db.execute(query, row)
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
    query = "SELECT coalesce(sum(length(key) + length(value)), 0) FROM kept_answers"
    return int(db.execute(query).fetchone()[0])


def _forget_oldest(db: sqlite3.Connection) -> int:
    """Delete the oldest entries; return the bytes that they held."""
    rows = db.execute(
        "DELETE FROM kept_answers "
        "WHERE id IN (SELECT id FROM kept_answers ORDER BY id LIMIT 64) "
        "RETURNING length(key) + length(value)"
    ).fetchall()
    return sum(size for (size,) in rows)


class RedisCache:
    """Answers at a Redis server, which replicas share; it bounds its memory itself.

    A server that is gone, slow or full costs the answer's place in the cache, nothing else.

    Args:
        url: `redis://host:port/number`, or `rediss://` with TLS; a password may stand in it.
        memory: The front that answers repeated look-ups without the network.
    """

    def __init__(self, url: str, *, memory: MemoryCache) -> None:
        # Imported here, as only those who share a cache need it.
        import redis.asyncio  # noqa: PLC0415

        self._memory = memory
        self._failures: tuple[type[Exception], ...] = (redis.RedisError, OSError, TimeoutError)
        self._redis = redis.asyncio.from_url(
            url,
            max_connections=_REDIS_CONNECTIONS,
            socket_timeout=_REDIS_SECONDS,
            socket_connect_timeout=_REDIS_SECONDS,
        )
        self._rests_until = 0.0

    async def get(self, key: str) -> bytes | None:
        value = await self._memory.get(key)
        if value is not None:
            return value
        match await self._guarded(lambda: self._redis.get(_REDIS_PREFIX + key)):
            case bytes(value) if len(value) > _STAMP.size:
                (until,) = _STAMP.unpack_from(value)
                if until <= time.time():
                    return None
                value = value[_STAMP.size :]
                await self._memory.put(key, value, until - time.time())
                return value
        return None

    async def put(self, key: str, value: bytes, ttl_s: float | None = None) -> None:
        await self._memory.put(key, value, ttl_s)
        seconds = min(ttl_s or math.inf, _REDIS_KEEPS_SECONDS)
        # The moment goes with the value: fronts must not keep it for longer than Redis does.
        stamped = _STAMP.pack(time.time() + seconds) + value
        await self._guarded(
            lambda: self._redis.set(_REDIS_PREFIX + key, stamped, px=math.ceil(seconds * 1000))
        )

    async def _guarded(self, ask: Callable[[], Awaitable[object]]) -> object:
        """Ask the server; one that fails is left alone for a while, so that nobody waits for it."""
        if time.monotonic() < self._rests_until:
            return None
        try:
            async with asyncio.timeout(2 * _REDIS_SECONDS):
                return await ask()
        except self._failures as error:
            log.warning("the shared cache could not be used: %s", type(error).__name__)
            self._rests_until = time.monotonic() + _REDIS_REST_SECONDS
            return None

    async def aclose(self) -> None:
        await self._memory.aclose()
        await self._redis.aclose()


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
