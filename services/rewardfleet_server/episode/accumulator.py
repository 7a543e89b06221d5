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
from rewardfleet_server.runstate import RunState

from . import answers

#: Open groups of a run. Of those that nobody asks for any more, room is made after a minute.
MAX_OPEN = 1024
_FORGOTTEN_SECONDS = 60.0
#: Seconds after which to ask again: soon for the last member, later the longer it can take.
_ASK_AGAIN_SECONDS, _MOST_SECONDS = 0.05, 1.0


class _NotKnown(Exception):
    """What was asked for was not made yet."""


class Accumulator:
    """Gathers groups and releases each once.

    Args:
        store: Where groups are kept.
        seen: Told what each temperature of a released group came to.
    """

    def __init__(self, store: RunState, seen: Callable[[list[Bin]], None]) -> None:
        self._store = store
        self._seen = seen

    async def collect(self, request: CollectRequest, request_id: str | None) -> dict[str, Any]:
        """Take a member in, once; return its result if its group is released, else when to ask.

        Raises:
            InvalidRequest: The group's other members say another size or other options.
            DeadlineExceeded: The group was released without this one.
            Overloaded: The run has too many open groups.
        """
        run, step = f"{request.run}\0groups", request.step
        group, uid = str(request.item.group), request.item.uid
        released = await self._known(run, step, f"answer\0{group}")
        if released is None:
            await self._store.apply(
                run, step, f"item\0{group}\0{uid}", lambda state: _arrived(state, request)
            )
            opened = await self._open(run, step, group)
            if opened is not None:
                missing, patience = opened["size"] - len(opened["uids"]), opened["until"] - _now()
                if missing > 0 and patience > 0:
                    pause = min(max(patience / 20, _ASK_AGAIN_SECONDS), _MOST_SECONDS, patience)
                    return {"released": False, "missing": missing, "ask_again_s": round(pause, 3)}
                released = await self._release(run, step, group, opened, request_id)
            else:  # it was released, or forgotten, since we asked
                released = await self._known(run, step, f"answer\0{group}")
        if released is None or uid not in released["results"]:
            raise DeadlineExceeded(
                f"uid {uid[:60]!r} is late: group {group[:60]!r} of step {step} was released "
                "without it"
            )
        result = released["results"][uid]
        return {
            "released": True,
            "missing": released["missing"],
            "result": result,
            "group": released["group"],
        }

    async def _release(
        self, run: str, step: int, group: str, opened: dict[str, Any], request_id: str | None
    ) -> Any:
        """Score a group; whoever comes first with it, that answer holds."""
        items = [
            EpisodeRequest.model_validate(await self._known(run, step, f"item\0{group}\0{uid}"))
            for uid in opened["uids"]
        ]
        options = EpisodeOptions.model_validate(opened["options"])
        settled = settle(measure(items, options), options)
        results = msgspec.to_builtins(answers.results(settled, request_id))
        stats = answers.groups(settled)
        self._seen(by_temperature(settled))
        answer = {
            "results": dict(zip(opened["uids"], results, strict=True)),
            "missing": opened["size"] - len(items),
            "group": stats[0] if stats else None,
        }

        def close(state: JsonValue) -> tuple[JsonValue, JsonValue]:
            groups: Any = dict(state) if isinstance(state, dict) else {}
            groups.pop(_key(step, group), None)
            return groups, answer

        return await self._store.apply(run, step, f"answer\0{group}", close)

    async def _open(self, run: str, step: int, group: str) -> dict[str, Any] | None:
        state: Any = await self._store.read(run)
        opened: dict[str, Any] | None = (state or {}).get(_key(step, group))
        return opened

    async def _known(self, run: str, step: int, uid: str) -> Any:
        """Look up an answer that was given; a change that fails changes nothing."""

        def refuse(_: JsonValue) -> tuple[JsonValue, JsonValue]:
            raise _NotKnown

        try:
            return await self._store.apply(run, step, uid, refuse)
        except _NotKnown:
            return None


def _arrived(state: JsonValue, request: CollectRequest) -> tuple[JsonValue, JsonValue]:
    """Note a member in its open group, and keep the item as the answer to its name."""
    groups: Any = dict(state) if isinstance(state, dict) else {}
    key = _key(request.step, str(request.item.group))
    options = request.options.model_dump(mode="json")
    if key not in groups:
        if len(groups) >= MAX_OPEN:
            groups = _without_forgotten(groups)
        until = _now() + request.wait_s
        groups[key] = {"size": request.group_size, "until": until, "uids": [], "options": options}
    opened = groups[key]
    if (opened["size"], opened["options"]) != (request.group_size, options):
        raise InvalidRequest("group_size, options: not what the group's first member said")
    if len(opened["uids"]) >= opened["size"]:  # whole, and about to be released
        raise DeadlineExceeded(f"uid {request.item.uid[:60]!r} is late: its group is whole already")
    opened["uids"].append(request.item.uid)
    return groups, request.item.model_dump(mode="json", exclude_unset=True)


def _without_forgotten(groups: dict[str, Any]) -> dict[str, Any]:
    kept = {
        key: opened
        for key, opened in groups.items()
        if opened["until"] + _FORGOTTEN_SECONDS > _now()
    }
    if len(kept) >= MAX_OPEN:
        raise Overloaded(f"{len(kept)} groups of this run are open already", retry_after=1)
    return kept


def _key(step: int, group: str) -> str:
    return f"{step}\0{group}"


def _now() -> float:
    return time.time()
