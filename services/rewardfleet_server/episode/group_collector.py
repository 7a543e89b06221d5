"""`POST /groups/members`: groups collected member by member, for trainers that call per sample.

A caller sends its episode again until the group is released: when all members have arrived, or when
`wait_s` has passed since the first one. No request waits for another, so requests hold no permits
while their group is incomplete, and groups cannot block each other. Everything is in the run-state
store: members and released groups by (run, step, uid), and for each run its open groups.
"""

import json
import time
import uuid
from collections.abc import Callable
from typing import Any

import msgspec
from pydantic import JsonValue

from rewardfleet.episodes import (
    TemperatureBin,
    aggregate,
    by_temperature,
    compute_rewards,
    validate_batch,
)
from rewardfleet.wire.episode import EpisodeOptions, EpisodeRequest, GroupMemberRequest
from rewardfleet.wire.errors import DeadlineExceeded, InvalidRequest, Overloaded
from rewardfleet_server.run_state import RunState, Scope

from . import encode

#: Limit on the open groups of a run.
MAX_OPEN = 1024
#: At that limit, groups are evicted that should have been released this long ago, which no caller
#: requested.
_EVICTED_AFTER_SECONDS = 60.0
#: Limits of `retry_after_s`: short if the group may soon be complete, else long.
_MIN_RETRY_SECONDS, _MAX_RETRY_SECONDS = 0.05, 1.0
#: Number of the last steps whose members are stored, as they are large. Trainers that overlap
#: rollouts with training are a few steps apart.
_KEEP_STEPS = 16


class GroupCollector:
    """Collects the members of groups, and releases each group once.

    Args:
        store: Where groups are stored.
        on_temperatures: Called with the temperature bins of each released group.
    """

    def __init__(
        self, store: RunState, on_temperatures: Callable[[list[TemperatureBin]], None]
    ) -> None:
        self._store = store
        self._on_temperatures = on_temperatures

    async def add_member(
        self, request: GroupMemberRequest, request_id: str | None
    ) -> dict[str, Any]:
        """Add a member, once; return a `GroupMemberResponse` as plain values.

        Raises:
            InvalidRequest: The first member had another group size or other options.
            DeadlineExceeded: The group was released without this member.
            Overloaded: The run has too many open groups.
        """
        scope, step = Scope(request.run, "groups"), request.step
        group, uid = str(request.item.group), request.item.uid
        released: Any = await self._store.outcome(scope, step, _key("released", group))
        if released is None:
            opened = await self._add(scope, request)
            if opened is None:  # released or evicted in the meantime
                released = await self._store.outcome(scope, step, _key("released", group))
            elif (retry_after_s := _retry_after_s(opened)) is not None:
                missing = _missing(opened)
                return {"released": False, "missing": missing, "retry_after_s": retry_after_s}
            else:
                released = await self._release(scope, step, group, opened, request_id)
        if released is None or uid not in released["results"]:
            raise DeadlineExceeded(
                f"uid {uid[:60]!r} is late: group {group[:60]!r} of step {step} was released "
                "without it"
            )
        return {
            "released": True,
            "missing": released["missing"],
            "result": released["results"][uid],
            "group": released["group"],
        }

    async def _add(self, scope: Scope, request: GroupMemberRequest) -> dict[str, Any] | None:
        """Add a member to its group; return the group, or None if it is no longer open."""
        group = str(request.item.group)
        await self._store.apply_once(
            scope,
            request.step,
            _key("member", group, request.item.uid),
            lambda state: _with_member(state, request),
            keep_steps=_KEEP_STEPS,
        )
        groups: Any = await self._store.read(scope)
        key = _key(request.step, group)
        opened: dict[str, Any] | None = (groups or {}).get(key)
        if await self._store.outcome(scope, request.step, _key("released", group)) is None:
            return opened
        if opened is not None:  # it was released just before, and this member opened it again
            await self._store.update(scope, lambda state: (_without(state, key), None))
        return None

    async def _release(
        self, scope: Scope, step: int, group: str, opened: dict[str, Any], request_id: str | None
    ) -> Any:
        """Score a group. If several requests do, all of them return the result of the first."""
        members = [
            await self._store.outcome(scope, step, _key("member", group, uid))
            for uid in opened["uids"]
        ]
        outcome, bins = _scored(members, opened, request_id)

        def close(state: JsonValue) -> tuple[JsonValue, JsonValue]:
            return _without(state, _key(step, group)), outcome

        released: Any = await self._store.apply_once(
            scope, step, _key("released", group), close, keep_steps=_KEEP_STEPS
        )
        if released.get("released_by") == outcome["released_by"]:
            self._on_temperatures(bins)
        return released


def _scored(
    members: list[JsonValue], opened: dict[str, Any], request_id: str | None
) -> tuple[dict[str, Any], list[TemperatureBin]]:
    """Score a group; return what is stored of it, and its temperature bins."""
    items = [EpisodeRequest.model_validate(member) for member in members]
    options = EpisodeOptions.model_validate(opened["options"])
    rewards = compute_rewards(validate_batch(items, options), options)
    result = aggregate(rewards, options)
    results = msgspec.to_builtins(encode.results(result, request_id))
    stats = encode.group_stats(result)
    outcome = {
        "results": dict(zip(opened["uids"], results, strict=True)),
        "missing": opened["size"] - len(items),
        "group": stats[0] if stats else None,
        "released_by": uuid.uuid4().hex,  # the request whose result this is
    }
    return outcome, by_temperature(rewards)


def _without(state: JsonValue, key: str) -> JsonValue:
    groups = dict(state) if isinstance(state, dict) else {}
    groups.pop(key, None)
    return groups


def _key(*parts: str | int) -> str:
    return json.dumps(parts)


def _missing(opened: dict[str, Any]) -> int:
    missing: int = opened["size"] - len(opened["uids"])
    return missing


def _retry_after_s(opened: dict[str, Any]) -> float | None:
    """Return the seconds until the next request; None if it is time to release the group."""
    remaining_s: float = opened["until"] - _now()
    if _missing(opened) <= 0 or remaining_s <= 0:
        return None
    pause_s = min(max(remaining_s / 20, _MIN_RETRY_SECONDS), _MAX_RETRY_SECONDS)
    return round(min(pause_s, remaining_s), 3)


def _with_member(state: JsonValue, request: GroupMemberRequest) -> tuple[JsonValue, JsonValue]:
    """Add a member to its open group. The outcome of the transition is the member's episode."""
    groups: Any = dict(state) if isinstance(state, dict) else {}
    key = _key(request.step, str(request.item.group))
    options = request.options.model_dump(mode="json")
    if key not in groups:
        if len(groups) >= MAX_OPEN:
            groups = _without_abandoned(groups)
        until = _now() + request.wait_s
        groups[key] = {"size": request.group_size, "until": until, "uids": [], "options": options}
    opened = groups[key]
    if (opened["size"], opened["options"]) != (request.group_size, options):
        raise InvalidRequest("group_size, options: they differ from those of the first member")
    if _missing(opened) <= 0:  # complete, and about to be released
        raise DeadlineExceeded(f"uid {request.item.uid[:60]!r} is late: its group is complete")
    opened["uids"].append(request.item.uid)
    return groups, request.item.model_dump(mode="json", exclude_unset=True)


def _without_abandoned(groups: dict[str, Any]) -> dict[str, Any]:
    remaining = {
        key: opened
        for key, opened in groups.items()
        if opened["until"] + _EVICTED_AFTER_SECONDS > _now()
    }
    if len(remaining) >= MAX_OPEN:
        raise Overloaded(f"this run has {len(remaining)} open groups already", retry_after=1)
    return remaining


def _now() -> float:
    return time.time()
