"""The running mean and variance of the rewards of each training run."""

import hashlib
from typing import Annotated

from pydantic import BaseModel, ConfigDict, FiniteFloat, StringConstraints, TypeAdapter

from rewardfleet.episodes import Rewards, RunningMeanStd
from rewardfleet.wire.episode import EpisodeBatchHeader
from rewardfleet.wire.errors import Conflict, InvalidRequest
from rewardfleet_server.run_state import RunState, Scope, Shape
from rewardfleet_server.run_state.steps import Ranges, contains, including

#: Number of the last steps whose counted episodes are stored. Trainers that overlap rollouts with
#: training are a few steps apart.
_STEPS = 8


class _StatsState(BaseModel):
    """What is stored of a run."""

    model_config = ConfigDict(extra="forbid", strict=True)

    moments: RunningMeanStd
    #: Rewards of the episodes counted in the last steps by digests of their names, in the order of
    #: these steps.
    seen: dict[Annotated[str, StringConstraints(pattern=r"^[0-9]{1,16}$")], dict[str, FiniteFloat]]
    deleted: Ranges  #: the steps before

    def count(self, step: int, rewards: dict[str, float]) -> RunningMeanStd:
        """Count the rewards of a step by the digests of their episodes; return the statistics.

        Raises:
            Conflict: An episode was counted with another reward.
            InvalidRequest: The step is so old that its counted episodes are no longer stored.
        """
        if contains(self.deleted, step):
            raise InvalidRequest(
                f"step {step} is too old: the run is at step {next(reversed(self.seen), step)}, "
                f"and counted episodes are stored for the last {_STEPS} steps"
            )
        before = self.seen.get(str(step), {})
        if any(before.get(digest, reward) != reward for digest, reward in rewards.items()):
            raise Conflict(
                f"step {step}: an episode was counted with another reward; a trainer that starts "
                "again and samples anew sends another `attempt`"
            )
        new = [reward for digest, reward in rewards.items() if digest not in before]
        self.moments = self.moments.updated(new)
        self.seen[str(step)] = before | rewards
        while len(self.seen) > _STEPS:
            oldest = next(iter(self.seen))
            del self.seen[oldest]
            self.deleted = including(self.deleted, int(oldest))
        return self.moments


#: What is stored of each run.
SHAPE = Shape(TypeAdapter(_StatsState), TypeAdapter(RunningMeanStd))


async def count_rewards(
    store: RunState, header: EpisodeBatchHeader, rewards: Rewards
) -> RunningMeanStd:
    """Count the rewards of a batch; return the statistics of the run, these included.

    Each episode of a run is counted once, by (run, step, uid). A batch that is sent again gets the
    statistics it got the first time. Of a batch that overlaps others of its step, only the new
    episodes are counted.

    Raises:
        Conflict: An episode was counted with another reward, or the attempt has ended.
        InvalidRequest: The step is so old that its counted episodes are no longer stored.
        Unavailable: The run state cannot be written now.
    """
    assert header.run is not None  # noqa: S101 - the model ensures both
    assert header.step is not None  # noqa: S101
    batch, step = rewards.batch, header.step
    digests = [_digest(str(item.uid)) for item in batch.columns.items]
    counted = {
        digest: reward
        for digest, reward, counts in zip(
            digests, rewards.values.tolist(), batch.is_normalizable.tolist(), strict=True
        )
        if counts
    }

    def transition(state: _StatsState | None) -> tuple[_StatsState, RunningMeanStd]:
        state = state or _StatsState(moments=RunningMeanStd(), seen={}, deleted=[])
        return state, state.count(step, counted)

    uid = _digest("\0".join(sorted(counted)))
    scope = Scope(header.run, "running_stats")
    running: RunningMeanStd = await store.apply_once(
        scope, step, uid, transition, content=sorted(counted.items()), attempt=header.attempt
    )
    return running


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
