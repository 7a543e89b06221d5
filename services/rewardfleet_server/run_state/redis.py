"""Run state in a Redis server, which replicas share."""

import asyncio
import hashlib
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from rewardfleet.wire.errors import Unavailable
from rewardfleet_server.system.redis_server import reason_of

from .store import BUSY_SECONDS, Damaged, Entry, Found, Scope, Transaction, Work

T = TypeVar("T")

_CONNECTIONS = 64
#: Seconds for one command.
_COMMAND_SECONDS = 2.0
#: Limit on the transactions that are committed together.
_MAX_BATCH = 64
#: Limits on what this process remembers to have seen: values, and the bytes of each.
_MAX_KNOWN, _MAX_KNOWN_BYTES = 2_000, 16 * 1024

#: Each key is a hash.
_PREFIX = "rewardfleet:run-state:"

#: Commits a transaction if what it has read is unchanged, and returns the time and 1; otherwise the
#: time, 0 and all entries. A script, and not WATCH and EXEC: those take seven round trips instead
#: of one, and the client reports a connection that is lost during EXEC as a conflict.
#:
#: The keys are those of the entries, and those to write. The arguments are whether to commit; the
#: number of entries; per entry "*" for all fields or "." and the field, and the digest of what was
#: read, or "?"; per key to write, whether all its fields are deleted first, the number of fields to
#: write, and these with their values. No value deletes a field.
_COMMIT = """
local time, is_same, entries = redis.call('TIME'), ARGV[1] == '1', tonumber(ARGV[2])
local found = {}
for index = 1, entries do
    local field, expected, value = ARGV[2 * index + 1], ARGV[2 * index + 2], false
    if field == '*' then
        value = redis.call('HGETALL', KEYS[index])
    else
        value = redis.call('HGET', KEYS[index], string.sub(field, 2))
    end
    found[index] = value
    if is_same and expected ~= '?' then
        if field == '*' then  -- whose order changes while Redis moves it to a larger table
            local pairs_of = {}
            for at = 1, #value, 2 do
                pairs_of[#pairs_of + 1] = redis.sha1hex(value[at] .. ' ' .. value[at + 1])
            end
            table.sort(pairs_of)
            value = table.concat(pairs_of)
        end
        is_same = (value and redis.sha1hex(value) or '') == expected
    end
end
if not is_same then
    return {time[1], time[2], 0, found}
end
for index = entries + 1, #KEYS do
    redis.call('HLEN', KEYS[index])  -- fails if it is no hash, before anything is written
end
local at = 2 * entries + 3
for index = entries + 1, #KEYS do
    local last = at + 2 * ARGV[at + 1]
    if ARGV[at] == '1' then
        redis.call('UNLINK', KEYS[index])
    end
    for each = at + 2, last, 2 do
        if ARGV[each + 1] == '' then
            redis.call('HDEL', KEYS[index], ARGV[each])
        else
            redis.call('HSET', KEYS[index], ARGV[each], ARGV[each + 1])
        end
    end
    at = last + 2
end
return {time[1], time[2], 1, {}}
"""


class RedisStore:
    """A store in a Redis server. Keys do not expire: the server must not evict them.

    Args:
        url: `redis://host:port/number`, or `rediss://` for TLS; it may contain a password.

    Raises:
        ValueError: It is not such a URL. The message may contain a part of the password.
    """

    def __init__(self, url: str) -> None:
        import redis.asyncio.retry  # noqa: PLC0415 - an extra
        import redis.backoff  # noqa: PLC0415 - an extra

        self._failures: tuple[type[Exception], ...] = (redis.RedisError, OSError, TimeoutError)
        self._connection_error: type[Exception] = redis.ConnectionError
        self._redis: Any = redis.asyncio.Redis.from_url(  # its methods are typed as if synchronous
            url,
            max_connections=_CONNECTIONS,
            socket_timeout=_COMMAND_SECONDS,
            socket_connect_timeout=_COMMAND_SECONDS,
            # A command whose response was lost may have been executed.
            retry=redis.asyncio.retry.Retry(redis.backoff.NoBackoff(), 0),
        )
        # The pool raises at its limit instead of waiting for a connection.
        self._connections = asyncio.Semaphore(_CONNECTIONS)
        self._known: dict[Entry, Found] = {}
        self._offset_s = 0.0
        self._waiting: dict[str, list[_Call]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def failure(self) -> str | None:
        return None

    async def transact(self, scope: Scope, expected: Sequence[Entry], work: Work[T]) -> T:
        call = _Call(expected, work, asyncio.get_running_loop().create_future())
        if scope.run in self._waiting:
            self._waiting[scope.run].append(call)
        else:  # in a task: a caller that waits no longer does not end those of others
            self._waiting[scope.run] = [call]
            task = asyncio.create_task(self._serve(scope.run))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            async with asyncio.timeout(BUSY_SECONDS):
                result: T = await call.result
                return result
        except self._failures as error:
            if "WRONGTYPE" in str(error):
                raise Damaged(scope) from error
            detail = f"run state cannot be used now: Redis: {reason_of(error)}"
            raise Unavailable(detail, retry_after=1) from error

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._redis.aclose()

    async def _serve(self, run: str) -> None:
        """Run the transactions that wait, together: they do not conflict, and share round trips."""
        waiting = self._waiting[run]
        batch: list[_Call] = []
        try:
            while waiting:
                batch, waiting[:] = waiting[:_MAX_BATCH], waiting[_MAX_BATCH:]
                await self._run(batch)
        finally:
            del self._waiting[run]
            for call in (*batch, *waiting):  # if this task was cancelled
                call.result.cancel()

    async def _run(self, batch: list["_Call"]) -> None:
        try:
            await self._commit(batch)
        except Exception as error:  # noqa: BLE001 - the callers get it
            self._known.clear()  # read first: what a server that does not answer gets may be stored
            if len(batch) > 1 and "WRONGTYPE" in str(error):  # by one of them
                for call in batch:
                    await self._run([call])
            for call in batch:
                call.finish(error)

    async def _commit(self, batch: list["_Call"]) -> None:
        """Run transactions, again if another process changed what they read in the meantime."""
        entries = list(dict.fromkeys(entry for call in batch for entry in call.expected))
        # What was seen last is tried first: the script returns what is stored if it differs.
        is_current = any(call.expected[0] not in self._known for call in batch)
        found = {entry: self._known.get(entry) for entry in entries}
        if is_current:
            found = await self._read(entries)
        while batch := [call for call in batch if not call.result.done()]:
            now = time.monotonic() + self._offset_s
            try:
                # In a thread, as they may take milliseconds.
                tx, results = await asyncio.to_thread(_attempt, batch, found, now)
            except _Unread as unread:
                entries = list(dict.fromkeys([*entries, *unread.entries]))
                found, is_current = await self._read(entries), True
                continue
            if tx.has_writes:
                changed = await self._exchange(entries, tx)
            else:
                changed = None if is_current else await self._read(entries)
            if changed is None:
                if tx.has_writes:
                    self._remember(tx)
                for call, result in zip(batch, results, strict=True):
                    call.finish(result)
                return
            found, is_current = changed, True

    async def _read(self, entries: Sequence[Entry]) -> dict[Entry, Found]:
        """Return what is stored in entries, at one moment.

        Once more if the connection had been closed, e.g. by a restart, which closes all of the
        pool.
        """
        try:
            return await self._exchange(entries, None) or {}
        except self._connection_error:
            await self._redis.connection_pool.disconnect(inuse_connections=False)
            return await self._exchange(entries, None) or {}

    async def _exchange(
        self, entries: Sequence[Entry], tx: Transaction | None
    ) -> dict[Entry, Found] | None:
        """Commit a transaction; return what is stored in entries if it read something else."""
        keys = [key for key, _ in entries]
        arguments: list[str | bytes | int] = [int(tx is not None), len(entries)]
        for entry in entries:
            arguments.append("*" if entry[1] is None else f".{entry[1]}")
            is_read = tx is not None and entry in tx.found
            arguments.append(_digest(tx.found[entry]) if tx is not None and is_read else "?")
        if tx is not None:
            for key in tx.dropped | tx.written.keys():
                fields = tx.written.get(key, {})
                keys.append(key)
                arguments += [int(key in tx.dropped), len(fields)]
                for field, value in fields.items():
                    arguments += [field, value or b""]
        names = [f"{_PREFIX}{key}" for key in keys]
        async with self._connections:
            reply = await self._redis.eval(_COMMIT, len(names), *names, *arguments)
        seconds, microseconds, is_committed, found = reply
        self._offset_s = int(seconds) + int(microseconds) / 1e6 - time.monotonic()
        if is_committed:
            return None
        return {
            entry: value if entry[1] is not None else _fields(value)
            for entry, value in zip(entries, found, strict=True)
        }

    def _remember(self, tx: Transaction) -> None:
        """Remember what is stored now, to try it first."""
        if len(self._known) > _MAX_KNOWN:
            self._known.clear()
        for key, field in tx.found:
            if field is not None:
                value = tx.get(key, field)
                self._known[key, field] = value
                if value is not None and len(value) > _MAX_KNOWN_BYTES:
                    del self._known[key, field]


class _Call(NamedTuple):
    """A transaction that waits for its turn."""

    expected: Sequence[Entry]
    work: Work[Any]
    result: asyncio.Future[Any]

    def finish(self, result: Any) -> None:
        """Give the caller its result, or an exception, unless it waits no longer."""
        if self.result.done():
            return
        if isinstance(result, Exception):
            self.result.set_exception(result)
        else:
            self.result.set_result(result)


class _Unread(Exception):
    """A transaction needs entries that were not read."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries


def _attempt(
    batch: Sequence[_Call], found: dict[Entry, Found], now: float
) -> tuple[Transaction, list[Any]]:
    """Run transactions on what was read; return their writes, and the result or failure of each.

    Raises:
        _Unread: More must be read.
    """

    def look_up(entries: Sequence[Entry]) -> list[Found]:
        if missing := [entry for entry in entries if entry not in found]:
            raise _Unread(missing)
        return [found[entry] for entry in entries]

    tx, results = Transaction(look_up, now), []
    unread: list[Entry] = []
    for call in batch:
        before = {key: dict(fields) for key, fields in tx.written.items()}, set(tx.dropped)
        try:
            results.append(call.work(tx))
        except _Unread as missing:  # go on: others may need more as well
            unread += missing.entries
            tx.written, tx.dropped = before
        except Exception as error:  # noqa: BLE001 - the caller gets it
            results.append(error)
            tx.written, tx.dropped = before
    if unread:
        raise _Unread(unread)
    return tx, results


def _fields(flat: list[bytes]) -> dict[str, bytes]:
    names = (name.decode(errors="surrogateescape") for name in flat[::2])
    return dict(zip(names, flat[1::2], strict=True))


def _digest(found: Found) -> str:
    """Return a digest of what is stored in an entry, as the script computes it."""
    if found is None:
        return ""
    if isinstance(found, dict):
        pairs = (name.encode(errors="surrogateescape") + b" " + found[name] for name in found)
        found = "".join(sorted(map(_sha1, pairs))).encode()
    return _sha1(found)


def _sha1(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()
