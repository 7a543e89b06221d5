"""Run state in a Redis server, which replicas share."""

import asyncio
import uuid
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

#: Each key is a hash.
_PREFIX = "rewardfleet:run-state:"

#: Commits a transaction if no other one has changed the run since; otherwise returns the run's
#: mark, which each commit changes, the time and all entries. A script, and not WATCH and EXEC: the
#: client reports a connection that is lost during EXEC as a conflict.
#:
#: The keys are that of the run, those of the entries, and those to write. The arguments are the
#: mark that was read, or "?" for none; the next one, or "" if the run is deleted; the number of
#: entries; per entry "*" for all fields or "." and the field; per key to write, whether all its
#: fields are deleted first, the number of fields to write, and these with their values. No value
#: deletes a field.
_COMMIT = """
local mark, entries = redis.call('HGET', KEYS[1], 'mark') or '', tonumber(ARGV[3])
if mark ~= ARGV[1] then
    local time, found = redis.call('TIME'), {}
    for index = 1, entries do
        local field = ARGV[3 + index]
        if field == '*' then
            found[index] = redis.call('HGETALL', KEYS[1 + index])
        else
            found[index] = redis.call('HGET', KEYS[1 + index], string.sub(field, 2))
        end
    end
    return {mark, time[1], time[2], found}
end
for index = entries + 2, #KEYS do
    redis.call('HLEN', KEYS[index])  -- fails if it is no hash, before anything is written
end
local at = entries + 4
for index = entries + 2, #KEYS do
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
if ARGV[2] ~= '' then
    redis.call('HSET', KEYS[1], 'mark', ARGV[2])
end
"""


class RedisStore:
    """A store in a Redis server. Keys do not expire: the server must not evict them.

    Raises:
        ValueError: The URL is none of Redis. The message may contain a part of the password.
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
            task = asyncio.create_task(self._serve(scope))
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

    async def _serve(self, scope: Scope) -> None:
        """Run the transactions that wait, together: they do not conflict, and share round trips."""
        waiting = self._waiting[scope.run]
        batch: list[_Call] = []
        try:
            while waiting:
                batch, waiting[:] = waiting[:_MAX_BATCH], waiting[_MAX_BATCH:]
                await self._run(scope.key, batch)
        finally:
            del self._waiting[scope.run]
            for call in (*batch, *waiting):  # if this task was cancelled
                call.result.cancel()

    async def _run(self, run: str, batch: list["_Call"]) -> None:
        try:
            await self._commit(run, batch)
        except Exception as error:  # noqa: BLE001 - the callers get it
            if len(batch) > 1 and "WRONGTYPE" in str(error):  # by one of them
                for call in batch:
                    await self._run(run, [call])
            for call in batch:
                call.finish(error)

    async def _commit(self, run: str, batch: list["_Call"]) -> None:
        """Run transactions, again if another process changed the run in the meantime."""
        entries = list(dict.fromkeys(entry for call in batch for entry in call.expected))
        seen = await self._read(run, entries)
        while batch := [call for call in batch if not call.result.done()]:
            try:
                # In a thread, as they may take milliseconds.
                tx, results = await asyncio.to_thread(_attempt, batch, seen)
            except _Unread as unread:
                entries = list(dict.fromkeys([*entries, *unread.entries]))
                seen = await self._read(run, entries)
                continue
            changed = await self._exchange(run, entries, seen.mark, tx) if tx.has_writes else None
            if changed is None:
                for call, result in zip(batch, results, strict=True):
                    call.finish(result)
                return
            seen = changed

    async def _read(self, run: str, entries: Sequence[Entry]) -> "_Snapshot":
        """Return what is stored in entries, at one moment."""
        try:
            seen = await self._exchange(run, entries, b"?")
        except self._connection_error:  # e.g. of a restart, which closes all of the pool
            await self._redis.connection_pool.disconnect(inuse_connections=False)
            seen = await self._exchange(run, entries, b"?")
        assert seen is not None  # noqa: S101 - no run has this mark
        return seen

    async def _exchange(
        self, run: str, entries: Sequence[Entry], mark: bytes, tx: Transaction | None = None
    ) -> "_Snapshot | None":
        """Commit a transaction; return what is stored in entries if the run has another mark."""
        keys = [run, *(key for key, _ in entries)]
        arguments: list[str | bytes | int] = [mark, "", len(entries)]
        arguments += ["*" if field is None else f".{field}" for _, field in entries]
        if tx is not None:
            if run in tx.written or run not in tx.dropped:
                arguments[1] = uuid.uuid4().hex
            for key in tx.dropped | tx.written.keys():
                fields = tx.written.get(key, {})
                keys.append(key)
                arguments += [int(key in tx.dropped), len(fields)]
                for field, value in fields.items():
                    arguments += [field, value or b""]
        names = [f"{_PREFIX}{key}" for key in keys]
        async with self._connections:
            reply = await self._redis.eval(_COMMIT, len(names), *names, *arguments)
        if reply is None:
            return None
        mark, seconds, microseconds, values = reply
        found = {
            entry: value if entry[1] is not None else _fields(value)
            for entry, value in zip(entries, values, strict=True)
        }
        return _Snapshot(mark, int(seconds) + int(microseconds) / 1e6, found)


class _Snapshot(NamedTuple):
    """What was stored at one moment."""

    mark: bytes  #: of the run
    now: float  #: the time of the server
    found: dict[Entry, Found]


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


def _attempt(batch: Sequence[_Call], seen: _Snapshot) -> tuple[Transaction, list[Any]]:
    """Run transactions on what was read; return their writes, and the result or failure of each."""

    def look_up(entries: Sequence[Entry]) -> list[Found]:
        if missing := [entry for entry in entries if entry not in seen.found]:
            raise _Unread(missing)
        return [seen.found[entry] for entry in entries]

    tx, results = Transaction(look_up, seen.now), []
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
