"""Why the scores of episodes are below 1, or missing. In shapes, N is the number of episodes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rewardfleet.wire.causes import SUCCESS_THRESHOLD, EpisodeCause
from rewardfleet.wire.episode import EpisodeOptions, RewardKind
from rewardfleet.wire.errors import ErrorKind

from .arrays import Bools, Floats
from .batch import visual_score
from .kinds import Rewards

#: Causes, [N].
_Causes = NDArray[Any]


def causes_of(
    rewards: Rewards, scores: Floats, in_equal_group: Bools, options: EpisodeOptions
) -> list[EpisodeCause | ErrorKind | None]:
    """Return the cause of each score, N of them; None for a reward of 1 or more that can differ.

    Args:
        rewards: The rewards before normalization.
        scores: [N], after normalization.
        in_equal_group: [N], whether a score is compared within a group whose rewards are all equal.
        options: The options that they were computed with.
    """
    batch = rewards.batch
    found: _Causes = np.full(len(batch), None)
    has_low_reward = batch.ok & (rewards.values < 1)
    for kind in batch.kinds:
        mask = has_low_reward & batch.is_kind(kind)
        if mask.any():
            found[mask] = _of_kind(kind, rewards, options)[mask]
    found[batch.ok & in_equal_group & (scores == 0)] = EpisodeCause.NO_VARIANCE
    causes: list[EpisodeCause | ErrorKind | None] = found.tolist()
    for index, error in batch.reasons.items():
        item = batch.items[index]
        if error is not None:
            causes[index] = error.kind
        elif item.masked:
            causes[index] = EpisodeCause.MASKED
        else:
            is_visual = item.kind == "visual" and visual_score(item) is None
            causes[index] = EpisodeCause.VIDEO_ABSTAINED if is_visual else EpisodeCause.ALONE
    return causes


def _of_kind(kind: RewardKind, rewards: Rewards, options: EpisodeOptions) -> _Causes:
    """Return the causes of rewards of a kind that are below 1; meaningless for others, [N]."""
    causes: _Causes = np.empty(len(rewards.batch), object)
    causes[:] = _LOWERED_BY.get(kind, EpisodeCause.LOW_REWARD)
    if kind in {"visual", "discounted"}:  # which lower the reward of the environment
        causes[_figure(rewards, "episode") < 1] = EpisodeCause.LOW_REWARD
    if kind == "visual":
        says_no = _figure(rewards, "visual_success") < SUCCESS_THRESHOLD
        causes[says_no] = EpisodeCause.JUDGE_SAYS_NO
    failed = _failed(kind, rewards, options)
    if failed.any():
        causes[failed] = EpisodeCause.FAILED
        is_truncated = rewards.batch.step_fraction >= 1
        causes[failed & is_truncated] = EpisodeCause.TRUNCATED
    return causes


def _failed(kind: RewardKind, rewards: Rewards, options: EpisodeOptions) -> Bools:
    """Return whether an episode has not succeeded, where its reward depends on that, [N]."""
    batch, success = rewards.batch, _figure(rewards, "success")
    if kind == "objectives" and options.combine == "gated":
        success = batch.number("success")
    elif kind in {"shaped", "discounted"}:
        has_reward = batch.has("episode_reward") | batch.has("step_rewards")
        success = np.where(has_reward, np.nan, batch.number("success"))
    failed: Bools = success == 0
    return failed


def _figure(rewards: Rewards, name: str) -> Floats:
    missing: Floats = np.full(len(rewards.batch), np.nan)
    details = rewards.details.get(name, missing)
    return np.where(np.isnan(details), rewards.components.get(name, missing), details)


#: What lowers a reward of a kind, unless `_of_kind` finds more; others are just low.
_LOWERED_BY: dict[str, EpisodeCause] = {
    "success": EpisodeCause.FAILED,
    "efficiency": EpisodeCause.STEPS_TAKEN,
    "visual": EpisodeCause.NOT_FINISHED,
    "objectives": EpisodeCause.LOW_OBJECTIVES,
    "discounted": EpisodeCause.STEPS_TAKEN,
}
