"""Rewards of steps from scores of steps: absolute, or as differences."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .config import RewardModelConfig


class StepRewards:
    """Rewards for environments that have a score at every step, e.g. a judge's progress.

    With `use_rel_reward`, a reward is the difference to the reward of the step before in the same
    episode, so that an episode's rewards add up to that of its last score. Where there is no score
    (NaN), the reward is NaN, and the next difference is to the last score before. The first step
    of an episode is compared with 0.

    Args:
        config: `binary_reward`, `success_threshold`, `reward_coef` and `use_rel_reward` apply.
        environments: Number of environments.
    """

    def __init__(self, config: RewardModelConfig, environments: int) -> None:
        self._config = config
        self._before = np.zeros(environments)

    def step(self, scores: ArrayLike, starts: ArrayLike | None = None) -> NDArray[np.float64]:
        """Return the rewards of one step.

        Args:
            scores: [N], in [0, 1], or NaN where there is none.
            starts: [N], True where this step is the first of an episode. None means nowhere.

        Raises:
            ValueError: An argument has another shape.
        """
        scores = np.asarray(scores, float)
        if scores.shape != self._before.shape:
            raise ValueError(f"scores: give {list(self._before.shape)}, not {list(scores.shape)}")
        if starts is not None:
            starts = np.asarray(starts, bool)
            if starts.shape != self._before.shape:
                raise ValueError(
                    f"starts: give {list(self._before.shape)}, not {list(starts.shape)}"
                )
            self._before[starts] = 0.0
        values = np.array(
            [np.nan if np.isnan(each) else self._config.reward(each) for each in scores]
        )
        if not self._config.use_rel_reward:
            return values
        rewards = values - self._before
        self._before = np.where(np.isnan(values), self._before, values)
        return rewards
