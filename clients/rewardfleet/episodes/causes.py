"""Why the scores of episodes are below 1, or missing. In shapes, N is the number of episodes."""

import numpy as np
from numpy.typing import NDArray

from rewardfleet.wire.causes import SUCCESS_THRESHOLD, EpisodeCause
from rewardfleet.wire.episode import EpisodeOptions, RewardKind
from rewardfleet.wire.errors import ErrorKind

from .arrays import Bools, Floats
from .batch import Batch, visual_score
from .kinds import Rewards

#: By code, which is an index; the first one is none.
_CAUSES: list[EpisodeCause | None] = [None, *EpisodeCause]
_CODES = {cause: code for code, cause in enumerate(_CAUSES)}
_Codes = NDArray[np.int8]


def causes_of(
    rewards: Rewards, scores: Floats, in_equal_group: Bools, options: EpisodeOptions
) -> list[EpisodeCause | ErrorKind | None]:
    """Return the cause of each score, N of them; None for a score of 1 or more.

    Args:
        rewards: The rewards before normalization.
        scores: [N], after normalization.
        in_equal_group: [N], whether a score is compared within a group whose rewards are all equal.
        options: The options that they were computed with.
    """
    batch = rewards.batch
    codes = np.zeros(len(batch), np.int8)
    is_low = batch.ok & (scores < 1)
    codes[is_low] = _CODES[EpisodeCause.NORMALIZED]
    has_low_reward = is_low & (rewards.values < 1)
    for kind in batch.columns.kinds:
        mask = has_low_reward & batch.columns.is_kind(kind)
        if mask.any():
            codes[mask] = _of_kind(kind, rewards, options)[mask]
    codes[is_low & in_equal_group & (scores == 0)] = _CODES[EpisodeCause.NO_VARIANCE]
    causes: list[EpisodeCause | ErrorKind | None] = [_CAUSES[code] for code in codes.tolist()]
    for index, error in batch.reasons.items():
        causes[index] = _of_abstention(batch, index) if error is None else error.kind
    return causes


def _of_abstention(batch: Batch, index: int) -> EpisodeCause:
    item = batch.columns.items[index]
    if item.masked:
        return EpisodeCause.MASKED
    if item.kind == "visual" and visual_score(item) is None:
        return EpisodeCause.VIDEO_ABSTAINED
    return EpisodeCause.ALONE


def _of_kind(kind: RewardKind, rewards: Rewards, options: EpisodeOptions) -> _Codes:
    """Return the codes of rewards of a kind that are below 1; meaningless for others, [N]."""
    codes = np.full(len(rewards.batch), _CODES[_LOWERED_BY[kind]], np.int8)
    if kind in {"visual", "discounted"}:  # which lower the reward of the environment
        codes[_figure(rewards, "episode") < 1] = _CODES[EpisodeCause.LOW_REWARD]
    if kind == "visual":
        says_no = _figure(rewards, "visual_success") < SUCCESS_THRESHOLD
        codes[says_no] = _CODES[EpisodeCause.JUDGE_SAYS_NO]
    failed = _failed(kind, rewards, options)
    if failed.any():
        codes[failed] = _CODES[EpisodeCause.FAILED]
        is_truncated = rewards.batch.columns.step_fraction >= 1
        codes[failed & is_truncated] = _CODES[EpisodeCause.TRUNCATED]
    return codes


def _failed(kind: RewardKind, rewards: Rewards, options: EpisodeOptions) -> Bools:
    """Return whether an episode has not succeeded, where its reward depends on that, [N]."""
    columns, success = rewards.batch.columns, _figure(rewards, "success")
    if kind == "objectives" and options.combine == "gated":
        success = columns.number("success")
    elif kind in {"shaped", "discounted"}:
        has_reward = columns.has("episode_reward") | columns.has("step_rewards")
        success = np.where(has_reward, np.nan, columns.number("success"))
    failed: Bools = success == 0
    return failed


def _figure(rewards: Rewards, name: str) -> Floats:
    missing: Floats = np.full(len(rewards.batch), np.nan)
    details = rewards.details.get(name, missing)
    return np.where(np.isnan(details), rewards.components.get(name, missing), details)


#: What lowers a reward of each kind, unless `_of_kind` finds more.
_LOWERED_BY: dict[RewardKind, EpisodeCause] = {
    "success": EpisodeCause.FAILED,
    "return": EpisodeCause.LOW_REWARD,
    "reward_model": EpisodeCause.LOW_REWARD,
    "efficiency": EpisodeCause.STEPS_TAKEN,
    "hybrid": EpisodeCause.LOW_REWARD,
    "visual": EpisodeCause.NOT_FINISHED,
    "objectives": EpisodeCause.LOW_OBJECTIVES,
    "shaped": EpisodeCause.LOW_REWARD,
    "discounted": EpisodeCause.STEPS_TAKEN,
}
