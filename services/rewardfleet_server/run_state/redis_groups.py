"""Groups in a Redis server: a hash per group, and three keys per run that list them."""

import json
import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from pydantic import JsonValue, ValidationError

from .groups import (
    ABANDONED,
    KEEP_GROUP_STEPS,
    Group,
    GroupKey,
    NewMember,
    Release,
    Rules,
    disagrees,
    late,
    too_many,
)
from .redis_clock import TIME
from .steps import StepLog
from .store import Damaged, Scope, dump, load

#: The hash of a group has `rules` and `until`, by the server's clock. Before it is released, it has
#: `left`, the seconds that it was still to wait when the server's clock was `seen`; afterwards,
#: `release`. Per member it has a field that starts with `m:`, with its value, or its result in a
#: released group. Of each run there are a string with its steps, a sorted set of its groups by
#: step, and one of its open groups by the time of their release.

#: The most seconds that a group has waited from one call to the next, whatever the server's clock
#: says: members call every second.
_MAX_PASSED = 10
#: How many of them are not stored, so that most calls write nothing.
_NOT_STORED = 2

#: Adds a member, unless the group is released, complete or has other rules.
_ADD = f"""{TIME}
local group = KEYS[1]
local field, value, rules, size = unpack(ARGV)
local found = redis.call('HMGET', group, 'rules', 'until', 'release', field, 'left', 'seen')
local left, seen = tonumber(found[5]), tonumber(found[6])
if found[1] and not found[3] and not (left and seen) then
    return {{found[1], false, false, false, 0, 0, '0'}}
end
local count = redis.call('HLEN', group) - 4
local added = 0
if found[1] == rules and not found[3] and not found[4] and count < tonumber(size) then
    redis.call('HSET', group, field, value)
    count, added = count + 1, 1
end
local remaining = 0
if left then
    local time = now()
    remaining = left - math.min(math.max(time - seen, 0), {_MAX_PASSED})
    if time < seen or time - seen > {_NOT_STORED} then
        redis.call('HSET', group, 'left', text(remaining), 'seen', text(time))
    end
end
return {{found[1], found[2], found[3], found[4], count, added, text(remaining)}}
"""

#: Ends an open group without a result.
_ABANDON_FUNCTION = """
local function abandon(open, prefix, name, release)
    local found = redis.call('HMGET', prefix .. name, 'rules', 'until')
    if found[1] and found[2] then
        redis.call('DEL', prefix .. name)
        redis.call(
            'HSET', prefix .. name, 'rules', found[1], 'until', found[2], 'release', release)
    end
    redis.call('ZREM', open, name)
end
"""

#: Opens a group, unless the steps are no longer those that were read; returns the number of open
#: groups if there are too many. Deletes the groups of the last arguments, which are steps.
_OPEN = f"""{TIME}{_ABANDON_FUNCTION}
local open, groups, steps, group = unpack(KEYS)
local prefix, name, step, read_steps, new_steps, rules, wait = unpack(ARGV)
local max_open, before, release = tonumber(ARGV[8]), text(now() - ARGV[9]), ARGV[10]
local release_at = text(now() + wait)
if (redis.call('GET', steps) or '') ~= read_steps then
    return -1
end
if redis.call('EXISTS', group) == 1 then
    return 0
end
if redis.call('ZCARD', open) >= max_open then
    for _, each in ipairs(redis.call('ZRANGEBYSCORE', open, '-inf', '(' .. before)) do
        abandon(open, prefix, each, release)
    end
    local count = redis.call('ZCARD', open)
    if count >= max_open then
        return count
    end
end
for index = 11, #ARGV do
    for _, each in ipairs(redis.call('ZRANGEBYSCORE', groups, ARGV[index], ARGV[index])) do
        redis.call('UNLINK', prefix .. each)
        redis.call('ZREM', open, each)
    end
    redis.call('ZREMRANGEBYSCORE', groups, ARGV[index], ARGV[index])
end
redis.call('SET', steps, new_steps)
redis.call('HSET', group, 'rules', rules, 'until', release_at, 'left', wait, 'seen', text(now()))
redis.call('ZADD', open, release_at, name)
redis.call('ZADD', groups, step, name)
return 0
"""

#: Replaces the members of an open group by their results: fields and values, the last arguments.
_RELEASE = """
local group, open = unpack(KEYS)
local found = redis.call('HMGET', group, 'rules', 'until', 'release')
if not found[1] or not found[2] or found[3] then
    return 0
end
redis.call('DEL', group)
redis.call('HSET', group, 'rules', found[1], 'until', found[2], 'release', ARGV[2])
for index = 3, #ARGV, 2 do
    redis.call('HSET', group, ARGV[index], ARGV[index + 1])
end
redis.call('ZREM', open, ARGV[1])
return 1
"""

#: Ends the open groups of a run that were due so many seconds ago.
ABANDON_OLD = f"""{TIME}{_ABANDON_FUNCTION}
local open = KEYS[1]
local prefix, seconds, release = unpack(ARGV)
local before = '(' .. text(now() - seconds)
for _, each in ipairs(redis.call('ZRANGEBYSCORE', open, '-inf', before)) do
    abandon(open, prefix, each, release)
end
return 0
"""


class GroupKeys:
    """The Redis keys of a run's groups. The braces put them into one slot of a cluster.

    Args:
        run: The training run.

    Attributes:
        open: The sorted set of its open groups.
        groups: The sorted set of all its groups.
        steps: The string with its steps.
        prefix: What the keys of the hashes start with.
    """

    def __init__(self, run: str) -> None:
        of_run = f"rewardfleet:run-state:{{{json.dumps(run)}}}"
        self.open, self.groups = f"{of_run}:open-groups", f"{of_run}:groups"
        self.steps, self.prefix = f"{of_run}:group-steps", f"{of_run}:group:"


class _Connection(Protocol):
    """What groups need of `RedisRunState`."""

    def guarded(self, scope: Scope) -> AbstractAsyncContextManager[None]: ...

    async def run_script(self, script: str, keys: list[str], arguments: list[Any]) -> Any: ...

    async def run_read(self, command: Callable[[Any], Awaitable[Any]]) -> Any: ...

    async def touch(self, scope: Scope) -> None: ...


class RedisGroups:
    """Groups in a Redis server.

    Args:
        connection: Runs commands.
    """

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection

    async def add(self, key: GroupKey, member: NewMember) -> Group:
        rules, group = member.rules.dump(), _group_key(key)
        arguments = [f"m:{member.uid}", dump(member.value), rules, member.rules.size]
        async with self._connection.guarded(key.scope):
            await self._connection.touch(key.scope)
            while True:
                reply = await self._connection.run_script(_ADD, [group], arguments)
                if reply[:2] != [None, None]:
                    break
                await self._open(key, member)
        *found, stored, count, added, remaining = reply
        group_rules, release = _parsed(key.scope, *found)
        remaining_s = float(remaining)
        if not math.isfinite(remaining_s):
            raise Damaged(key.scope)
        if release is not None:
            if stored is None:
                raise late(key, member.uid, "was released without it")
            return Group(group_rules, remaining_s, 0, release, load(key.scope, stored))
        if stored is None and not added:
            raise (
                disagrees() if found[0] != rules.encode() else late(key, member.uid, "is complete")
            )
        return Group(group_rules, remaining_s, count, None, None)

    async def _open(self, key: GroupKey, member: NewMember) -> None:
        """Open a group that is not there, unless another process just did.

        Raises:
            Unavailable: A part of what is stored is missing, e.g. because the server evicted it.
        """
        keys, name, group = GroupKeys(key.run), _name(key), _group_key(key)

        async def read(redis: Any) -> Any:
            async with redis.pipeline() as pipeline:
                pipeline.get(keys.steps)
                pipeline.zcard(keys.groups)
                pipeline.zscore(keys.groups, name)
                pipeline.exists(group)
                return await pipeline.execute()

        while True:
            steps, groups, listed, exists = await self._connection.run_read(read)
            if exists:
                return
            try:
                log = StepLog.empty() if steps is None else StepLog.model_validate_json(steps)
            except ValidationError as error:
                raise Damaged(key.scope) from error
            if listed is not None or bool(groups) != bool(log.stored):
                raise Damaged(key.scope)
            entered, deleted = log.with_step(key.run, key.step, KEEP_GROUP_STEPS)
            arguments = [
                *(keys.prefix, name, key.step, steps or "", entered.model_dump_json()),
                *(member.rules.dump(), member.wait_s, member.max_open),
                *(member.abandoned_s, ABANDONED, *deleted),
            ]
            count = await self._connection.run_script(
                _OPEN, [keys.open, keys.groups, keys.steps, group], arguments
            )
            if count == 0:
                return
            if count > 0:
                raise too_many(count)

    async def members(self, key: GroupKey) -> dict[str, JsonValue] | None:
        group = _group_key(key)
        async with self._connection.guarded(key.scope):
            fields = await self._connection.run_read(lambda redis: redis.hgetall(group))
        if not fields or b"release" in fields:
            return None
        return {
            field.decode()[2:]: load(key.scope, value)
            for field, value in sorted(fields.items())
            if field.startswith(b"m:")
        }

    async def release(self, key: GroupKey, release: Release, results: dict[str, JsonValue]) -> bool:
        keys = GroupKeys(key.run)
        arguments = [_name(key), release.model_dump_json()]
        for uid, result in results.items():
            arguments += [f"m:{uid}", dump(result)]
        async with self._connection.guarded(key.scope):
            await self._connection.touch(key.scope)
            return bool(
                await self._connection.run_script(_RELEASE, [_group_key(key), keys.open], arguments)
            )


def _name(key: GroupKey) -> str:
    return json.dumps([key.step, key.name])


def _group_key(key: GroupKey) -> str:
    return GroupKeys(key.run).prefix + _name(key)


def _parsed(
    scope: Scope, rules: bytes | None, until: bytes | None, release: bytes | None
) -> tuple[Rules, Release | None]:
    try:
        if rules is None or not math.isfinite(float(until or b"")):
            raise Damaged(scope)
        return (
            Rules.model_validate_json(rules),
            None if release is None else Release.model_validate_json(release),
        )
    except ValueError as error:  # pydantic's is one
        raise Damaged(scope) from error
