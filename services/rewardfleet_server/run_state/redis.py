"""Run state in a Redis server, which replicas share."""

import asyncio
import json
import logging
import math
import random
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from pydantic import JsonValue, TypeAdapter, ValidationError

from rewardfleet.wire.errors import Unavailable
from rewardfleet_server.system.redis_server import client_of, reason_of, unreachable_reason

from .groups import ABANDONED, ABANDONED_SECONDS, Groups
from .metrics import RunStateMetrics
from .redis_clock import OLD_RUNS, TOUCH
from .redis_groups import ABANDON_OLD, GroupKeys, RedisGroups
from .steps import StepLog
from .store import (
    BUSY_SECONDS,
    KEEP_STEPS,
    MAX_AGE_DAYS,
    MAX_CLOCK_DIFFERENCE_S,
    NO_SHAPES,
    Damaged,
    Scope,
    Shapes,
    Transition,
    dump,
    load,
    prune_interval_s,
)

log = logging.getLogger(__name__)

_CONNECTIONS = 64
#: Seconds for one command.
_COMMAND_SECONDS = 2.0
#: Largest pause in seconds after another process changed the state first.
_MAX_PAUSE_SECONDS = 0.002

#: Each scope has two keys. A hash has the state, its version, its steps, and outcomes by JSON of
#: [step, uid], which never equals these names. A sorted set has the fields of these outcomes by
#: step.
_STATE, _VERSION, _STEPS = "state", "version", "steps"

#: Writes a transition, unless the version is no longer the one that was read. A script, and not
#: WATCH and EXEC: those take seven round trips instead of two, and the client reports a connection
#: that is lost during EXEC as a conflict. The last arguments are the steps to delete.
_COMMIT = """
local values, steps = KEYS[1], KEYS[2]
local read_version, version, state, forget, field, outcome, step, log = unpack(ARGV)
if (redis.call('HGET', values, 'version') or '') ~= read_version then
    return 0
end
if forget == '1' then
    redis.call('DEL', values, steps)
end
if field ~= '' then
    for index = 9, #ARGV do
        for _, old in ipairs(redis.call('ZRANGEBYSCORE', steps, ARGV[index], ARGV[index])) do
            redis.call('HDEL', values, old)
        end
        redis.call('ZREMRANGEBYSCORE', steps, ARGV[index], ARGV[index])
    end
    redis.call('ZADD', steps, step, field)
    redis.call('HSET', values, field, outcome, 'steps', log)
end
redis.call('HSET', values, 'state', state, 'version', version)
return 1
"""

#: When each run was changed last, by the clock of `redis_clock`, which the second key has. Each run
#: has a set with the names of its scopes.
_RUNS, _CLOCK = "rewardfleet:run-state:runs", "rewardfleet:run-state:clock"

#: Deletes a run, unless it was changed in the meantime: the keys after the first two, and its
#: groups, which the second key lists.
_DELETE_RUN = """
local run, oldest, prefix = unpack(ARGV)
local changed_at = redis.call('ZSCORE', KEYS[1], run)
if not changed_at or tonumber(changed_at) >= tonumber(oldest) then
    return 0
end
for _, each in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
    redis.call('UNLINK', prefix .. each)
end
for index = 2, #KEYS do
    redis.call('UNLINK', KEYS[index])
end
redis.call('ZREM', KEYS[1], run)
return 1
"""
#: Limit on the runs that this process remembers to have changed.
_MAX_TOUCHED = 10_000


class RedisRunState:
    """Run state in a Redis server. Keys do not expire: the server must not evict them.

    Args:
        url: `redis://host:port/number`, or `rediss://` for TLS; it may contain a password.
        shapes: What features store.
        max_age_days: Days after which a run that no call has changed is deleted.

    Raises:
        ImportError: The `redis` package is not installed.
        ValueError: It is not such a URL. The message may contain a part of the password.
    """

    def __init__(
        self, url: str, shapes: Shapes = NO_SHAPES, *, max_age_days: float = MAX_AGE_DAYS
    ) -> None:
        import redis.asyncio  # noqa: PLC0415 - an extra
        import redis.asyncio.retry  # noqa: PLC0415 - an extra
        import redis.backoff  # noqa: PLC0415 - an extra

        if (reason := unreachable_reason(url, _COMMAND_SECONDS)) is not None:
            log.warning("calls that need run state fail until Redis can be used: %s", reason)
        self._failures: tuple[type[Exception], ...] = (redis.RedisError, OSError, TimeoutError)
        self._connection_error: type[Exception] = redis.ConnectionError
        self._redis: Any = client_of(  # Any: its methods are typed as if synchronous
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
        self._shapes = shapes
        self._max_age_s = max_age_days * 86_400
        self._interval_s = prune_interval_s(max_age_days)
        self._touched: dict[Scope, float] = {}
        self._prune_at = 0.0
        self._pruning: asyncio.Task[None] | None = None
        self._groups = RedisGroups(self)
        self.metrics = RunStateMetrics()

    @property
    def groups(self) -> Groups:
        return self._groups

    @property
    def failure(self) -> str | None:
        return None

    async def read(self, scope: Scope) -> JsonValue:
        shape = self._shapes.get(scope.name)
        return await self._read_field(scope, _STATE, shape and shape.state)

    async def outcome(self, scope: Scope, step: int, uid: str) -> JsonValue:
        shape = self._shapes.get(scope.name)
        return await self._read_field(scope, _field(step, uid), shape and shape.outcome)

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
        if self._pruning is not None:
            self._pruning.cancel()
            await asyncio.wait([self._pruning])
        await self._redis.aclose()

    async def _read_field(
        self, scope: Scope, field: str, shape: TypeAdapter[Any] | None
    ) -> JsonValue:
        values_key, _ = _keys(scope)
        async with self.guarded(scope):
            value = await self.run_read(lambda redis: redis.hget(values_key, field))
        return None if value is None else load(scope, value, shape)

    async def _change(
        self,
        scope: Scope,
        transition: Transition,
        record: "_Record | None",
        *,
        forget_outcomes: bool = False,
    ) -> JsonValue:
        """Apply a transition, again if another process changed the state in the meantime."""
        shape = self._shapes.get(scope.name)
        lock = self._locks.setdefault(scope, asyncio.Lock())
        async with self.guarded(scope), lock:
            await self.touch(scope)
            while True:
                before = await self._snapshot(scope, record)
                if before.outcome is not None:
                    return load(scope, before.outcome, shape and shape.outcome)
                # In a thread: states of running statistics take milliseconds.
                written = await asyncio.to_thread(
                    _apply, scope, transition, before, record, shape and shape.state
                )
                arguments = [written.state, int(forget_outcomes), *written.record]
                if await self._commit(scope, before.version, arguments):
                    return written.outcome
                await asyncio.sleep(random.uniform(0, _MAX_PAUSE_SECONDS))  # noqa: S311 - no secret

    async def _snapshot(self, scope: Scope, record: "_Record | None") -> "_Snapshot":
        """Read what a transition needs, at one moment.

        Raises:
            Unavailable: A part is missing, e.g. because the server evicted a key.
        """
        values_key, steps_key = _keys(scope)

        async def read(redis: Any) -> Any:
            async with redis.pipeline() as pipeline:
                names = (_STATE, _VERSION, _STEPS, record.field if record else "")
                pipeline.hmget(values_key, *names)
                pipeline.hlen(values_key)
                pipeline.zcard(steps_key)
                pipeline.zrevrange(steps_key, 0, 0, withscores=True)
                return await pipeline.execute()

        (state, version, steps, outcome), fields, outcomes, newest = await self.run_read(read)
        named = sum(each is not None for each in (state, version, steps))
        is_new = fields == outcomes == 0
        is_complete = None not in {state, version} and fields == outcomes + named
        if not (is_new or is_complete) or (outcomes > 0 and steps is None):
            raise Damaged(scope)
        if newest and not math.isfinite(newest[0][1]):
            raise Damaged(scope)
        return _Snapshot(version=version or b"", state=state, steps=steps, outcome=outcome)

    async def _commit(self, scope: Scope, read_version: bytes, arguments: list[str | int]) -> bool:
        """Run the script; return whether the version was still the one that was read."""
        values = [read_version, uuid.uuid4().hex, *arguments]
        return bool(await self.run_script(_COMMIT, list(_keys(scope)), values))

    async def run_script(self, script: str, keys: list[str], arguments: list[Any]) -> Any:
        """Run a script once."""
        async with self._connections:
            return await self._redis.eval(script, len(keys), *keys, *arguments)

    async def run_read(self, command: Callable[[Any], Awaitable[Any]]) -> Any:
        """Run a command that may be repeated; once more if its connection had been closed."""
        async with self._connections:
            try:
                return await command(self._redis)
            except self._connection_error:  # e.g. after a restart, which closed all of the pool
                await self._redis.connection_pool.disconnect(inuse_connections=False)
                return await command(self._redis)

    async def touch(self, scope: Scope) -> None:
        """Record that a run is changed now, at times. At times, delete what is too old."""
        now = time.monotonic()
        if self._touched.get(scope, -math.inf) <= now - self._interval_s:
            keys = (_CLOCK, _RUNS, _names_key(scope.run))
            arguments = (self._max_age_s, *scope)
            reply = await self.run_read(lambda redis: redis.eval(TOUCH, 3, *keys, *arguments))
            self._compare_clocks(float(reply))
            if len(self._touched) >= _MAX_TOUCHED:
                self._touched.clear()
            self._touched[scope] = now
        if now >= self._prune_at:
            self._prune_at = now + self._interval_s
            self._pruning = asyncio.create_task(self._prune())

    def _compare_clocks(self, store_time: float) -> None:
        """Report a wall clock of this process that differs from that of the server."""
        difference_s = time.time() - store_time
        if abs(difference_s) > MAX_CLOCK_DIFFERENCE_S:
            self.metrics.report_clock(
                "the wall clock differs by %+.0f s from that of Redis", difference_s
            )

    async def _prune(self) -> None:
        """Delete abandoned runs and groups."""
        try:
            for raw in await self.run_read(lambda redis: redis.zrange(_RUNS, 0, -1)):
                keys = GroupKeys(raw.decode())
                arguments = [keys.prefix, ABANDONED_SECONDS, ABANDONED]
                await self.run_script(ABANDON_OLD, [keys.open], arguments)
            oldest, *old = await self.run_script(OLD_RUNS, [_CLOCK, _RUNS], [self._max_age_s])
            for raw in old:
                await self._delete(raw.decode(), oldest)
        except self._failures as error:  # the next call that is due tries again
            log.warning("old run state could not be deleted: Redis: %s", reason_of(error))

    async def _delete(self, run: str, oldest: bytes) -> None:
        """Delete a run that was changed last before a time."""
        names_key, group_keys = _names_key(run), GroupKeys(run)
        names = await self.run_read(lambda redis: redis.smembers(names_key))
        keys = [_RUNS, group_keys.groups, group_keys.open, group_keys.steps, names_key]
        for name in names:
            keys += _keys(Scope(run, name.decode()))
        await self.run_script(_DELETE_RUN, keys, [run, oldest, group_keys.prefix])

    @asynccontextmanager
    async def guarded(self, scope: Scope) -> AsyncIterator[None]:
        """Limit the time of commands, and report and count failures of the server."""
        with self.metrics.counting_failures():
            async with self._reporting(scope):
                yield

    @asynccontextmanager
    async def _reporting(self, scope: Scope) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(BUSY_SECONDS):
                yield
        except self._failures as error:
            if "WRONGTYPE" in str(error):
                raise Damaged(scope) from error
            raise Unavailable(
                f"run state cannot be used now: Redis: {reason_of(error)}", retry_after=1
            ) from error


class _Record(NamedTuple):
    """What is stored of a transition that belongs to a step."""

    field: str
    step: int
    keep_steps: int


class _Snapshot(NamedTuple):
    """A scope as it was read: its state, its steps and the outcome of the transition, as JSON."""

    version: bytes
    state: bytes | None
    steps: bytes | None
    outcome: bytes | None


class _Written(NamedTuple):
    """What a transition writes: the next state as JSON, and its record as the script takes it."""

    state: str
    record: list[str | int]
    outcome: JsonValue


def _apply(
    scope: Scope,
    transition: Transition,
    before: _Snapshot,
    record: _Record | None,
    shape: TypeAdapter[Any] | None,
) -> _Written:
    """Apply a transition to what was read.

    Raises:
        InvalidRequest: The step was deleted.
        Unavailable: What was read is damaged.
    """
    entry: list[str | int] = ["", "", "", ""]
    deleted: list[int] = []
    if record is not None:
        try:
            steps = before.steps
            log = StepLog.empty() if steps is None else StepLog.model_validate_json(steps)
        except ValidationError as error:
            raise Damaged(scope) from error
        log, deleted = log.with_step(scope.run, record.step, record.keep_steps)
    state, outcome = transition(None if before.state is None else load(scope, before.state, shape))
    written, recorded = dump(state), dump(outcome)
    if record is not None:
        entry = [record.field, recorded, record.step, log.model_dump_json(), *deleted]
    return _Written(written, entry, outcome)


def _field(step: int, uid: str) -> str:
    return json.dumps([step, uid])


def _keys(scope: Scope) -> tuple[str, str]:
    """Return the keys of a scope. The braces put both into one slot of a cluster."""
    prefix = f"rewardfleet:run-state:{{{json.dumps(scope)}}}"
    return f"{prefix}:values", f"{prefix}:steps"


def _names_key(run: str) -> str:
    return f"rewardfleet:run-state:{{{json.dumps(run)}}}:names"
