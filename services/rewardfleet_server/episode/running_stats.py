"""The running mean and variance of a run's rewards."""

import hashlib
from typing import Any

from pydantic import JsonValue

from rewardfleet.episodes import Measured, Running
from rewardfleet.wire.episode import EpisodeBatchHead
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet_server.run_state import RunState, Scope

#: For so many steps it is known which episodes were counted. Trainers that overlap rollouts with
#: training are a few steps apart.
_STEPS = 8


class RunningStatsStore:
    """Takes up each episode of a run once, by (run, step, uid)."""

    def __init__(self, store: RunState) -> None:
        self._store = store

    async def update(self, head: EpisodeBatchHead, measured: Measured) -> Running:
        """Count the rewards of a batch; return what the run's were then, these included.

        A batch that is sent again gets the answer that it was given first. Of one that overlaps
        with others of its step, only the new episodes are counted.

        Raises:
            InvalidRequest: The step is so old that its episodes are not known any more.
        """
        assert head.run is not None  # noqa: S101 - the model sees to both
        assert head.step is not None  # noqa: S101
        table, step = measured.table, head.step
        names = [_digest(str(item.uid)) for item in table.items]
        rewards = {
            name: reward
            for name, reward, good in zip(
                names, measured.rewards.tolist(), table.ok & ~table.of_kind("rm"), strict=True
            )
            if good
        }

        def transition(state: JsonValue) -> tuple[JsonValue, JsonValue]:
            return _counted(state, step, rewards)

        uid = _digest("\0".join(sorted(rewards)))
        answer: Any = await self._store.apply_once(
            Scope(head.run, "running_stats"), step, uid, transition
        )
        return Running(**answer)


def _counted(state: JsonValue, step: int, rewards: dict[str, float]) -> tuple[JsonValue, JsonValue]:
    known: Any = state or {"moments": {}, "seen": {}}
    seen: dict[str, list[str]] = known["seen"]
    newest = max(map(int, seen), default=step)
    if step <= newest - _STEPS:
        raise InvalidRequest(
            f"step {step} is too old: the run is at {newest}, and which episodes were counted is "
            f"known of the last {_STEPS} steps"
        )
    before = set(seen.get(str(step), []))
    new = [reward for name, reward in rewards.items() if name not in before]
    running = Running(**known["moments"]).with_batch(new)
    moments: JsonValue = dict(vars(running))
    newest = max(newest, step)
    kept = {each: names for each, names in seen.items() if int(each) > newest - _STEPS}
    kept[str(step)] = sorted(before | set(rewards))
    return {"moments": moments, "seen": kept}, moments  # type: ignore[dict-item] # a dict of lists of str is JSON


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
