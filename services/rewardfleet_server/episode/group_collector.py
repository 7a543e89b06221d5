"""`POST /collect`: groups whose members come one by one, from trainers that call once a sample.

A member is sent until its group is released: when all have come, or when the first one's patience
is over. Nobody waits here, so that no place is held and no two groups can block each other. All is
in the run-state store: members and answers by (run, step, uid), and for each run a list of its open
groups, which is short.
"""

import time
from collections.abc import Callable
from typing import Any

import msgspec
from pydantic import JsonValue

from rewardfleet.episodes import measure, settle
from rewardfleet.episodes.temperatures import Bin, by_temperature
from rewardfleet.wire.episode import CollectRequest, EpisodeOptions, EpisodeRequest
from rewardfleet.wire.errors import DeadlineExceeded, InvalidRequest, Overloaded
from rewardfleet_server.run_state import RunState, Scope

from . import encode

#: Open groups of a run. One that nobody asks for any more is evicted a minute after its wait.
MAX_OPEN = 1024
_EVICTED_AFTER_SECONDS = 60.0
#: Seconds after which callers retry: soon if the group may soon be complete, else later.
_MIN_RETRY_SECONDS, _MAX_RETRY_SECONDS = 0.05, 1.0
#: For so many steps the members of a run's groups are kept: they are large, and soon of no use.
#: Trainers that overlap rollouts with training are a few steps apart.
_KEEP_STEPS = 16


class GroupCollector:
    """Collects the members of groups, and releases each group once.

    Args:
        store: Where groups are kept.
        on_temperatures: Called with the temperature bins of each released group.
    """

    def __init__(self, store: RunState, on_temperatures: Callable[[list[Bin]], None]) -> None:
        self._store = store
        self._on_temperatures = on_temperatures

    async def collect(self, request: CollectRequest, request_id: str | None) -> dict[str, Any]:
        """Add a member, once. Return its result if its group is released, else when to retry.

        Raises:
            InvalidRequest: The group's other members gave another size or other options.
            DeadlineExceeded: The group was released without this member.
            Overloaded: The run has too many open groups.
        """
        scope, step = Scope(request.run, "groups"), request.step
        group, uid = str(request.item.group), request.item.uid
        released: Any = await self._store.answer(scope, step, _released_uid(group))
        if released is None:
            await self._store.apply_once(
                scope,
                step,
                _member_uid(group, uid),
                lambda state: _add_member(state, request),
                keep_steps=_KEEP_STEPS,
            )
            state: Any = await self._store.read(scope)
            opened = (state or {}).get(_key(step, group))
            if opened is not None:
                missing, patience = opened["size"] - len(opened["uids"]), opened["until"] - _now()
                if missing > 0 and patience > 0:
                    pause = min(max(patience / 20, _MIN_RETRY_SECONDS), _MAX_RETRY_SECONDS)
                    retry_after_s = round(min(pause, patience), 3)
                    return {"released": False, "missing": missing, "retry_after_s": retry_after_s}
                released = await self._release(scope, step, group, opened, request_id)
            else:  # it was released, or evicted, in the meantime
                released = await self._store.answer(scope, step, _released_uid(group))
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

    async def _release(
        self, scope: Scope, step: int, group: str, opened: dict[str, Any], request_id: str | None
    ) -> Any:
        """Score a group. If several callers do, the first one's answer is everyone's."""
        members = [
            await self._store.answer(scope, step, _member_uid(group, uid)) for uid in opened["uids"]
        ]
        items = [EpisodeRequest.model_validate(member) for member in members]
        options = EpisodeOptions.model_validate(opened["options"])
        settled = settle(measure(items, options), options)
        results = msgspec.to_builtins(encode.results(settled, request_id))
        stats = encode.groups(settled)
        self._on_temperatures(by_temperature(settled))
        answer = {
            "results": dict(zip(opened["uids"], results, strict=True)),
            "missing": opened["size"] - len(items),
            "group": stats[0] if stats else None,
        }

        def close(state: JsonValue) -> tuple[JsonValue, JsonValue]:
            groups: Any = dict(state) if isinstance(state, dict) else {}
            groups.pop(_key(step, group), None)
            return groups, answer

        return await self._store.apply_once(
            scope, step, _released_uid(group), close, keep_steps=_KEEP_STEPS
        )


def _member_uid(group: str, uid: str) -> str:
    return f"member\0{group}\0{uid}"


def _released_uid(group: str) -> str:
    return f"released\0{group}"


def _add_member(state: JsonValue, request: CollectRequest) -> tuple[JsonValue, JsonValue]:
    """Note a member in its open group, and keep the item as the answer to its name."""
    groups: Any = dict(state) if isinstance(state, dict) else {}
    key = _key(request.step, str(request.item.group))
    options = request.options.model_dump(mode="json")
    if key not in groups:
        if len(groups) >= MAX_OPEN:
            groups = _evict_abandoned(groups)
        until = _now() + request.wait_s
        groups[key] = {"size": request.group_size, "until": until, "uids": [], "options": options}
    opened = groups[key]
    if (opened["size"], opened["options"]) != (request.group_size, options):
        raise InvalidRequest("group_size, options: not what the group's first member said")
    if len(opened["uids"]) >= opened["size"]:  # whole, and about to be released
        raise DeadlineExceeded(f"uid {request.item.uid[:60]!r} is late: its group is whole already")
    opened["uids"].append(request.item.uid)
    return groups, request.item.model_dump(mode="json", exclude_unset=True)


def _evict_abandoned(groups: dict[str, Any]) -> dict[str, Any]:
    kept = {
        key: opened
        for key, opened in groups.items()
        if opened["until"] + _EVICTED_AFTER_SECONDS > _now()
    }
    if len(kept) >= MAX_OPEN:
        raise Overloaded(f"{len(kept)} groups of this run are open already", retry_after=1)
    return kept


def _key(step: int, group: str) -> str:
    return f"{step}\0{group}"


def _now() -> float:
    return time.time()
