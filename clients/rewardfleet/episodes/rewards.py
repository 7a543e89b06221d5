"""What an episode is worth. Each function takes arrays of one entry an episode, and returns one.

Whatever is impossible (a negative step count, a length of zero) raises ValueError and names the
first such entry; `rewardfleet.episodes.measure` sorts them out before.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

#: `linear` pays a success at the limit this much, so that it is still worth more than a failure.
LINEAR_FLOOR = 0.1
#: `exponential` pays a success at the limit exp(-3) = 0.05.
EXPONENTIAL_RATE = 3.0
#: Added to deviations, as trainers do (verl, TRL), so that equal rewards give 0 and not NaN.
EPSILON = 1e-6


def check(good: ArrayLike, what: str, values: ArrayLike) -> None:
    """Raise ValueError for the first entry that is not good."""
    right = np.asarray(good, bool)
    if not right.all():
        bad = np.flatnonzero(~right)
        value = np.asarray(values).ravel()[bad[0]]
        raise ValueError(f"{what} (entry {bad[0]}: {value})")


def success(succeeded: ArrayLike) -> Floats:
    """Return 1.0 for a success and 0.0 for a failure.

    Range {0, 1}. Source: SimpleVLA-RL, `RobRewardManager.verify`.
    """
    values = np.asarray(succeeded, float)
    check((values == 0) | (values == 1), "success is 0 or 1", values)
    return values


def _reciprocal(share: Floats, best: Floats) -> Floats:  # noqa: ARG001 - all forms take both
    return 1 / (1 + share)


def _linear(share: Floats, best: Floats) -> Floats:  # noqa: ARG001
    return 1 - (1 - LINEAR_FLOOR) * share


def _exponential(share: Floats, best: Floats) -> Floats:  # noqa: ARG001
    return np.exp(-EXPONENTIAL_RATE * share)


def _group_best(share: Floats, best: Floats) -> Floats:
    gained: Floats = best / share
    return gained


EFFICIENCY: dict[str, Callable[[Floats, Floats], Floats]] = {
    "reciprocal": _reciprocal,
    "linear": _linear,
    "exponential": _exponential,
    "group_best": _group_best,
}


def efficiency(
    succeeded: ArrayLike,
    steps: ArrayLike,
    max_steps: ArrayLike,
    form: str = "reciprocal",
    *,
    best: ArrayLike = np.nan,
) -> Floats:
    """Return what a success is worth by its steps; a failure is worth 0. With x = steps/max_steps:

    - `reciprocal`: 1/(1 + x), in [0.5, 1]. Source: seed 000, test-time RL for SimpleVLA-RL, which
      fixes max_steps at 500: 100 steps → 0.8333, 500 → 0.5.
    - `linear`: 1 - 0.9 x, in [0.1, 1].
    - `exponential`: exp(-3 x), in [0.0498, 1].
    - `group_best`: best/x, in (0, 1]; `best` is the least x of a success in the episode's group.
      Less than one step counts as one.

    Args:
        succeeded: [N], 0 or 1.
        steps: [N], in [0, max_steps].
        max_steps: [N] or one number, above 0: those of each episode's task.
        form: See above.
        best: [N], for `group_best` alone; entries of failures are not looked at.
    """
    gained, limit = success(succeeded), np.asarray(max_steps, float)
    check(limit > 0, "max_steps is above 0", limit)
    share = np.asarray(steps, float) / limit
    check((share >= 0) & (share <= 1), "steps are 0 to max_steps", steps)
    least = 1 / limit if form == "group_best" else 0.0
    share, first = np.maximum(share, least), np.maximum(np.asarray(best, float), least)
    worth = EFFICIENCY[form](share, first)
    worth[gained == 0] = 0.0
    return worth


def visual(episode_reward: ArrayLike, visual_success: ArrayLike) -> Floats:
    """Return episode reward x video score.

    Range: that of the reward, as the score is in [0, 1]. Source: seed 001, multi-modal extension.
    """
    seen = np.asarray(visual_success, float)
    check((seen >= 0) & (seen <= 1), "visual_success is in [0, 1]", seen)
    product: Floats = np.asarray(episode_reward, float) * seen
    return product


def hybrid(step_rewards: ArrayLike, episode_reward: float) -> Floats:
    """Return one episode's rewards a step, the episode's own added to the last: [T].

    They belong at the last token of each step. Their sum is the episode's score. Source: seed 001,
    hybrid rewards, which writes them at token 0, 1, 2 … instead.

    Raises:
        ValueError: There is no step.
    """
    rewards = np.array(step_rewards, float)
    if not rewards.size:
        raise ValueError("step_rewards: a hybrid reward needs one step or more")
    rewards[-1] += episode_reward
    return rewards


def shaping(progress: ArrayLike, gamma: float) -> Floats:
    """Return what potential-based shaping adds to each step: F_t = gamma P(t+1) - P(t), [T].

    The potential after the last step is 0, so that the discounted sum is -P(0) whatever the policy
    did between: the best policy stays the best. Source: Ng, Harada, Russell 1999.

    Args:
        progress: [T], the potential of the state before each step.
        gamma: Discount of a step, in [0, 1].
    """
    potential = np.asarray(progress, float)
    after = np.append(potential[1:], 0.0) if potential.size else potential
    added: Floats = gamma * after - potential
    return added


def discounted(reward: ArrayLike, steps: ArrayLike, gamma: float) -> Floats:
    """Return gamma^(steps - 1) x reward: a terminal reward as seen from the first step.

    Range: between 0 and the reward. Source: OpenEnv, `ExponentialDiscountingTrajectoryRubric`.
    """
    taken = np.asarray(steps, float)
    check(taken >= 0, "steps are 0 or more", taken)
    seen: Floats = np.asarray(reward, float) * gamma ** np.maximum(taken - 1, 0)
    return seen


def by_length(reward: ArrayLike, steps: ArrayLike) -> Floats:
    """Return reward/steps. Source: verl-agent, `normalize_by_length`.

    Raises:
        ValueError: A length is not above 0.
    """
    taken = np.asarray(steps, float)
    check(taken > 0, "a length to divide by is above 0", taken)
    share: Floats = np.asarray(reward, float) / taken
    return share


class Running:
    """Mean and variance of all rewards so far, batch by batch.

    Source: Chan, Golub, LeVeque 1979 (parallel variance), as in Gymnasium's `RunningMeanStd`.

    Attributes:
        count: How many rewards.
        mean: Their mean.
        m2: Sum of their squared distances from it.
    """

    def __init__(self, count: int = 0, mean: float = 0.0, m2: float = 0.0) -> None:
        self.count, self.mean, self.m2 = count, mean, m2

    @property
    def variance(self) -> float:
        """Of the population; 0 for none."""
        return self.m2 / self.count if self.count else 0.0

    def with_batch(self, rewards: ArrayLike) -> "Running":
        """Return what they are after `rewards`, [N], too."""
        values = np.asarray(rewards, float)
        if not values.size:
            return self
        count = self.count + values.size
        delta = float(values.mean()) - self.mean
        within = float(((values - values.mean()) ** 2).sum())
        m2 = self.m2 + within + delta**2 * self.count * values.size / count
        return Running(count, self.mean + delta * values.size / count, m2)

    def normalise(self, rewards: ArrayLike) -> Floats:
        """Return (reward - mean)/(deviation + epsilon), [N]."""
        deviation = np.sqrt(self.variance) + EPSILON
        scaled: Floats = (np.asarray(rewards, float) - self.mean) / deviation
        return scaled
