"""The running mean and variance of the rewards of each training run."""

from collections.abc import Sequence

from pydantic import TypeAdapter

from rewardfleet.episodes import Rewards, RunningMeanStd
from rewardfleet.wire.episode import EpisodeBatchHeader
from rewardfleet_server.run_state import RunState, Scope, Shape
from rewardfleet_server.run_state.values import digest

#: Number of the steps besides the newest whose counted episodes are stored. Trainers that overlap
#: rollouts with training are a few steps apart.
_KEEP_STEPS = 7

#: What is stored of each run.
_SHAPE = Shape(TypeAdapter(RunningMeanStd), TypeAdapter(RunningMeanStd))


async def count_rewards(
    store: RunState, header: EpisodeBatchHeader, rewards: Rewards
) -> RunningMeanStd:
    """Count the rewards of a batch; return the statistics of the run, these included.

    Each episode of a run is counted once, by (run, step, uid). A batch that is sent again gets the
    statistics it got the first time. Of a batch that overlaps others of its step, only the new
    episodes are counted.

    Raises:
        RewardFleetError: See `RunState.apply_once`.
    """
    assert header.run is not None  # noqa: S101 - the model ensures both
    assert header.step is not None  # noqa: S101
    batch, step = rewards.batch, header.step
    names = [digest(str(item.uid)).decode() for item in batch.columns.items]
    counted = {
        name: reward
        for name, reward, counts in zip(
            names, rewards.values.tolist(), batch.is_normalizable.tolist(), strict=True
        )
        if counts
    }

    def transition(
        new: Sequence[float], state: RunningMeanStd | None
    ) -> tuple[RunningMeanStd, RunningMeanStd]:
        updated = (state or RunningMeanStd()).updated(new)
        return updated, updated

    running: RunningMeanStd = await store.apply_once(
        Scope(header.run, "running_stats", _SHAPE),
        step,
        digest(sorted(counted)).decode(),
        transition,
        content=sorted(counted.items()),
        items=counted,
        attempt=header.attempt,
        keep_steps=_KEEP_STEPS,
    )
    return running
