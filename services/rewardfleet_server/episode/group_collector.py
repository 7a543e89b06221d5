"""`POST /groups/members`: groups collected member by member, for trainers that call per sample.

A caller sends its episode again until the group is released: when all members have arrived, or when
`wait_s` has passed since the first one; that request scores it. No request waits for another, so
requests hold no permits while their group is incomplete, and groups cannot block each other.
Everything is in the run-state store, a group and its members apart from all others.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
from pydantic import BaseModel, JsonValue, ValidationError

from rewardfleet.episodes import Rewards, aggregate, compute_rewards, validate_batch
from rewardfleet.wire.episode import (
    EpisodeOptions,
    EpisodeRequest,
    EpisodeScore,
    GroupMemberRequest,
    GroupStats,
)
from rewardfleet_server.run_state import Damaged, Group, GroupKey, RunState, add_to_group

from . import encode

ModelT = TypeVar("ModelT", bound=BaseModel)

#: Limits of `retry_after_s`: short if the group may soon be complete, else long.
_MIN_RETRY_SECONDS, _MAX_RETRY_SECONDS = 0.05, 1.0


class Released(NamedTuple):
    """A group that was just released: its members in the same order everywhere."""

    rewards: Rewards
    items: list[EpisodeRequest]
    results: list[dict[str, Any]]  #: an `EpisodeScore` of each, as plain values


async def add_member(
    state: RunState, request: GroupMemberRequest, request_id: str | None
) -> tuple[dict[str, Any], Released | None]:
    """Add a member to its group, once.

    Returns:
        A `GroupMemberResponse` as plain values, and the group if this request has released it.

    Raises:
        RewardFleetError: See `add_to_group`.
    """
    key = GroupKey(request.run, request.step, str(request.item.group))

    def score(
        group: Group, members: Sequence[JsonValue]
    ) -> tuple[Sequence[JsonValue], JsonValue, Released]:
        items = [_check(key, EpisodeRequest, member) for member in members]
        options = _check(key, EpisodeOptions, group.options)
        batch = validate_batch(items, options, members_missing=len(items) < group.size)
        rewards = compute_rewards(batch, options)
        result = aggregate(rewards, options)
        results = msgspec.to_builtins(encode.results(result, request_id))
        stats = next(iter(encode.group_stats(result)), None)
        return results, stats, Released(rewards, items, results)

    group, result, released = await add_to_group(
        state,
        key,
        request.item.uid,
        request.item.model_dump(mode="json", exclude_unset=True),
        Group(
            size=request.group_size,
            options=request.options.model_dump(mode="json"),
            left_s=request.wait_s,
        ),
        score=score,
        attempt=request.attempt,
    )
    if group.missing is None:
        pause_s = min(max(group.left_s / 20, _MIN_RETRY_SECONDS), _MAX_RETRY_SECONDS, group.left_s)
        missing = group.size - group.arrived
        return {"released": False, "missing": missing, "retry_after_s": round(pause_s, 3)}, None
    _check(key, EpisodeScore, result)
    if group.stats is not None:
        _check(key, GroupStats, group.stats)
    rest = {"missing": group.missing, "result": result, "group": group.stats}
    return {"released": True, **rest}, released


def _check(key: GroupKey, model: type[ModelT], stored: JsonValue) -> ModelT:
    try:
        return model.model_validate(stored)
    except ValidationError as error:
        raise Damaged(key.scope) from error
