"""`POST /groups/members`: groups collected member by member, for trainers that call per sample.

A caller sends its episode again until the group is released: when all members have arrived, or when
`wait_s` has passed since the first one. No request waits for another, so requests hold no permits
while their group is incomplete, and groups cannot block each other. Everything is in the run-state
store, a group and its members apart from all others.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, JsonValue, ValidationError

from rewardfleet.episodes import (
    TemperatureBin,
    aggregate,
    by_temperature,
    compute_rewards,
    validate_batch,
)
from rewardfleet.wire.episode import (
    EpisodeOptions,
    EpisodeRequest,
    EpisodeScore,
    GroupMemberRequest,
    GroupStats,
)
from rewardfleet_server.run_state import Damaged, Group, GroupKey, Groups

from . import encode

ModelT = TypeVar("ModelT", bound=BaseModel)
OnRelease = Callable[[Iterable[tuple[EpisodeRequest, Mapping[str, Any]]]], None]

#: Limits of `retry_after_s`: short if the group may soon be complete, else long.
_MIN_RETRY_SECONDS, _MAX_RETRY_SECONDS = 0.05, 1.0


class GroupCollector:
    """Collects the members of groups, and releases each group once.

    Args:
        on_temperatures: Called with the temperature bins of each released group.
    """

    def __init__(
        self, groups: Groups, on_temperatures: Callable[[list[TemperatureBin]], None]
    ) -> None:
        self._groups = groups
        self._on_temperatures = on_temperatures

    async def add_member(
        self, request: GroupMemberRequest, request_id: str | None, on_release: OnRelease
    ) -> dict[str, Any]:
        """Add a member, once; return a `GroupMemberResponse` as plain values.

        Args:
            on_release: Called with all members and their results, if this request releases them.

        Raises:
            Conflict: The uid was sent with another episode before, or the attempt has ended.
            InvalidRequest: The group is complete or was released without this member, the first
                member had another group size or other options, or the step is too old.
            Overloaded: The run has too many open groups.
            Unavailable: The store cannot be used now, or what it stores is damaged.
        """
        key = GroupKey(request.run, request.step, str(request.item.group))
        item = request.item.model_dump(mode="json", exclude_unset=True)
        options = request.options.model_dump(mode="json")
        new = Group(size=request.group_size, options=options, left_s=request.wait_s)
        add = partial(self._groups.add, key, request.item.uid, item, new, request.attempt)
        group, score = await add()
        while group.missing is None:
            retry_after_s = _retry_after_s(group)
            if retry_after_s is not None:
                missing = group.size - group.arrived
                return {"released": False, "missing": missing, "retry_after_s": retry_after_s}
            await self._release(key, group, request, request_id, on_release)
            # The member is stored already: this returns its result.
            group, score = await add()
        _check(key, EpisodeScore, score)
        if group.stats is not None:
            _check(key, GroupStats, group.stats)
        rest = {"missing": group.missing, "result": score, "group": group.stats}
        return {"released": True, **rest}

    async def _release(
        self,
        key: GroupKey,
        group: Group,
        request: GroupMemberRequest,
        request_id: str | None,
        on_release: OnRelease,
    ) -> None:
        """Score an open group. If several requests do, the result of the first one counts."""
        members = await self._groups.members(key)
        if members is None:  # another request has released it
            return
        if not members:
            raise Damaged(key.scope)
        items = [_check(key, EpisodeRequest, member.value) for member in members.values()]
        options = _check(key, EpisodeOptions, group.options)
        missing = max(group.size - len(items), 0)
        batch = validate_batch(items, options, members_missing=missing > 0)
        rewards = compute_rewards(batch, options)
        result = aggregate(rewards, options)
        results = msgspec.to_builtins(encode.results(result, request_id))
        stats = encode.group_stats(result)
        by_uid = {
            uid: member._replace(value=result)
            for (uid, member), result in zip(members.items(), results, strict=True)
        }
        if await self._groups.release(
            key, missing, stats[0] if stats else None, by_uid, request.attempt
        ):
            self._on_temperatures(by_temperature(rewards))
            on_release(zip(items, results, strict=True))


def _check(key: GroupKey, model: type[ModelT], stored: JsonValue) -> ModelT:
    try:
        return model.model_validate(stored)
    except ValidationError as error:
        raise Damaged(key.scope) from error


def _retry_after_s(group: Group) -> float | None:
    """Return the seconds until the next request; None if it is time to release the group."""
    remaining_s = group.left_s
    if group.arrived >= group.size or remaining_s <= 0:
        return None
    pause_s = min(max(remaining_s / 20, _MIN_RETRY_SECONDS), _MAX_RETRY_SECONDS)
    return round(min(pause_s, remaining_s), 3)
