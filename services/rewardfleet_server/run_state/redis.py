"""Run state in a Redis server, which replicas share."""

import asyncio
import json
import logging
import math
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from pydantic import JsonValue

from rewardfleet.wire.errors import Unavailable
from rewardfleet_server.redis_server import unreachable_reason

from .store import BUSY_SECONDS, KEEP_STEPS, Scope, Transition, check_age, damaged, dump, load

log = logging.getLogger(__name__)

_CONNECTIONS = 64
#: Seconds for one command.
_COMMAND_SECONDS = 2.0
#: Largest pause in seconds after another process changed the state first.
_MAX_PAUSE_SECONDS = 0.002

#: Each scope has two keys. A hash has the state, its version, and outcomes by JSON of [step, uid],
#: which never equals these names. A sorted set has the fields of these outcomes by step.
_STATE, _VERSION = "state", "version"

#: Writes a transition, unless the version is no longer the one that was read. A script, and not
#: WATCH and EXEC: those take seven round trips instead of two, and the client reports a connection
#: that is lost during EXEC as a conflict.
_COMMIT = """
local values, steps = KEYS[1], KEYS[2]
local read_version, version, state, forget, field, outcome, step, oldest = unpack(ARGV)
if (redis.call('HGET', values, 'version') or '') ~= read_version then
    return 0
end
if forget == '1' then
    redis.call('DEL', values, steps)
end
if field ~= '' then
    for _, old in ipairs(redis.call('ZRANGEBYSCORE', steps, '-inf', '(' .. oldest)) do
        redis.call('HDEL', values, old)
    end
    redis.call('ZREMRANGEBYSCORE', steps, '-inf', '(' .. oldest)
    redis.call('ZADD', steps, step, field)
    redis.call('HSET', values, field, outcome)
end
redis.call('HSET', values, 'state', state, 'version', version)
return 1
"""


class RedisRunState:
    """Run state in a Redis server. Keys do not expire: the server must not evict them.

    Args:
        url: `redis://host:port/number`, or `rediss://` for TLS; it may contain a password.

    Raises:
        ImportError: The `redis` package is not installed.
        ValueError: It is not such a URL. The message may contain a part of the password.
    """

    def __init__(self, url: str) -> None:
        import redis.asyncio  # noqa: PLC0415 - an extra
        import redis.asyncio.retry  # noqa: PLC0415 - an extra
        import redis.backoff  # noqa: PLC0415 - an extra

        if (reason := unreachable_reason(url, _COMMAND_SECONDS)) is not None:
            log.warning("calls that need run state fail until Redis can be used: %s", reason)
        self._failures: tuple[type[Exception], ...] = (redis.RedisError, OSError, TimeoutError)
        self._connection_error: type[Exception] = redis.ConnectionError
        self._redis: Any = redis.asyncio.from_url(  # Any: its methods are typed as if synchronous
            url,
            max_connections=_CONNECTIONS,
            socket_timeout=_COMMAND_SECONDS,
            socket_connect_timeout=_COMMAND_SECONDS,
            # A command whose response was lost may have been executed.
            retry=redis.asyncio.retry.Retry(redis.backoff.NoBackoff(), 0),
        )
        # The pool raises at its limit instead of waiting for a connection.
        self._connections = asyncio.Semaphore(_CONNECTIONS)
        # Transitions of one process take turns, and conflict only with those of other processes.
        self._locks: WeakValueDictionary[Scope, asyncio.Lock] = WeakValueDictionary()

    async def read(self, scope: Scope) -> JsonValue:
        return await self._read_field(scope, _STATE)

    async def outcome(self, scope: Scope, step: int, uid: str) -> JsonValue:
        return await self._read_field(scope, _field(step, uid))

    async def apply_once(
        self,
        scope: Scope,
        step: int,
        uid: str,
        transition: Transition,
        *,
        keep_steps: int = KEEP_STEPS,
    ) -> JsonValue:
        return await self._change(scope, transition, _Record(_field(step, uid), step, keep_steps))

    async def update(
        self, scope: Scope, transition: Transition, *, forget_outcomes: bool = False
    ) -> JsonValue:
        return await self._change(scope, transition, None, forget_outcomes=forget_outcomes)

    async def aclose(self) -> None:
        await self._redis.aclose()

    async def _read_field(self, scope: Scope, field: str) -> JsonValue:
        values_key, _ = _keys(scope)
        async with self._guarded(scope):
            value = await self._read(lambda: self._redis.hget(values_key, field))
        return None if value is None else load(scope, value)

    async def _change(
        self,
        scope: Scope,
        transition: Transition,
        record: "_Record | None",
        *,
        forget_outcomes: bool = False,
    ) -> JsonValue:
        """Apply a transition, again if another process changed the state in the meantime."""
        lock = self._locks.setdefault(scope, asyncio.Lock())
        async with self._guarded(scope), lock:
            while True:
                before = await self._snapshot(scope, record)
                if before.outcome is not None:
                    return load(scope, before.outcome)
                if record is not None:
                    check_age(scope, record.step, before.newest_step, record.keep_steps)
                # In a thread: states of running statistics take milliseconds.
                state, outcome, value = await asyncio.to_thread(_apply, scope, transition, before)
                recorded = _NOTHING if record is None else record.arguments(outcome)
                forget = int(forget_outcomes)
                if await self._commit(scope, before.version, state, forget, *recorded):
                    return value
                await asyncio.sleep(random.uniform(0, _MAX_PAUSE_SECONDS))  # noqa: S311 - no secret

    async def _snapshot(self, scope: Scope, record: "_Record | None") -> "_Snapshot":
        """Read what a transition needs, at one moment.

        Raises:
            Unavailable: A part is missing, e.g. because the server evicted a key.
        """
        values_key, steps_key = _keys(scope)

        async def read() -> Any:
            async with self._redis.pipeline() as pipeline:
                pipeline.hmget(values_key, _STATE, _VERSION, record.field if record else "")
                pipeline.hlen(values_key)
                pipeline.zcard(steps_key)
                pipeline.zrevrange(steps_key, 0, 0, withscores=True)
                return await pipeline.execute()

        (state, version, outcome), fields, outcomes, newest = await self._read(read)
        newest_step = newest[0][1] if newest else None
        is_new = fields == outcomes == 0
        is_complete = None not in {state, version} and fields == outcomes + len({_STATE, _VERSION})
        if not (is_new or is_complete) or not math.isfinite(newest_step or 0):
            raise damaged(scope)
        return _Snapshot(
            version=version or b"",
            state=state,
            outcome=outcome,
            newest_step=None if newest_step is None else int(newest_step),
        )

    async def _commit(self, scope: Scope, read_version: bytes, *arguments: str | int) -> bool:
        """Run the script; return whether the version was still the one that was read."""
        values = (read_version, uuid.uuid4().hex, *arguments)
        async with self._connections:
            return bool(await self._redis.eval(_COMMIT, 2, *_keys(scope), *values))

    async def _read(self, command: Callable[[], Awaitable[Any]]) -> Any:
        """Run a command that writes nothing; once more if its connection had been closed."""
        async with self._connections:
            try:
                return await command()
            except self._connection_error:  # e.g. after a restart, which closed all of the pool
                await self._redis.connection_pool.disconnect(inuse_connections=False)
                return await command()

    @asynccontextmanager
    async def _guarded(self, scope: Scope) -> AsyncIterator[None]:
        """Limit the time of commands, and report failures of the server."""
        try:
            async with asyncio.timeout(BUSY_SECONDS):
                yield
        except self._failures as error:
            if "WRONGTYPE" in str(error):
                raise damaged(scope) from error
            reason = type(error).__name__  # its message may contain a part of the password
            raise Unavailable(
                f"run state cannot be used now: {reason} of Redis", retry_after=1
            ) from error


class _Record(NamedTuple):
    """What is stored of a transition that belongs to a step."""

    field: str
    step: int
    keep_steps: int

    def arguments(self, outcome: str) -> tuple[str, str, int, int]:
        """Return the arguments of the script that store an outcome and delete old ones."""
        return self.field, outcome, self.step, self.step - self.keep_steps


#: These arguments where nothing is stored besides the state.
_NOTHING = ("", "", "", "")


class _Snapshot(NamedTuple):
    """A scope as it was read: its state and the outcome of the transition, as JSON."""

    version: bytes
    state: bytes | None
    outcome: bytes | None
    newest_step: int | None


def _apply(scope: Scope, transition: Transition, before: _Snapshot) -> tuple[str, str, JsonValue]:
    """Return the next state and the outcome as JSON, and the outcome."""
    state, outcome = transition(None if before.state is None else load(scope, before.state))
    return dump(state), dump(outcome), outcome


def _field(step: int, uid: str) -> str:
    return json.dumps([step, uid])


def _keys(scope: Scope) -> tuple[str, str]:
    """Return the keys of a scope. The braces put both into one slot of a cluster."""
    prefix = f"rewardfleet:run-state:{{{json.dumps(scope)}}}"
    return f"{prefix}:values", f"{prefix}:steps"
