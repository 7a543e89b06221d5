"""Reward formulas. Each function takes arrays with one entry per episode, and returns one.

They raise ValueError for impossible input, e.g. a negative step count, and name the first invalid
entry. In a batch, `validate_batch` refuses such episodes one by one, before they get here.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from .arrays import Floats, check

#: Efficiency `linear` of a success at the step limit or beyond. Above 0, the reward of a failure.
_LINEAR_FLOOR = 0.1
#: Rate of the efficiency `exponential`: exp(-3) = 0.05 for a success at the step limit.
_EXPONENTIAL_RATE = 3.0


def success(succeeded: ArrayLike) -> Floats:
    """Return 1.0 for a success and 0.0 for a failure, [N].

    Range {0, 1}. Source: SimpleVLA-RL, `RobRewardManager.verify`.

    Raises:
        ValueError: An entry is neither 0 nor 1.
    """
    values = np.asarray(succeeded, float)
    check((values == 0) | (values == 1), "success is 0 or 1", values)
    return values


#: By name: maps steps/max_steps, and its minimum among the group's successes, to an efficiency.
EFFICIENCY: dict[str, Callable[[Floats, Floats], Floats]] = {
    "reciprocal": lambda fraction, _: 1 / (1 + fraction),
    "linear": lambda fraction, _: np.maximum(1 - (1 - _LINEAR_FLOOR) * fraction, _LINEAR_FLOOR),
    "exponential": lambda fraction, _: np.exp(-_EXPONENTIAL_RATE * fraction),
    "group_best": lambda fraction, best: best / fraction,
}


def efficiency(
    succeeded: ArrayLike,
    steps: ArrayLike,
    max_steps: ArrayLike,
    form: str = "reciprocal",
    *,
    best: ArrayLike = np.nan,
) -> Floats:
    """Return the efficiency of each success, and 0 for each failure, [N]. With x = steps/max_steps:

    - `reciprocal`: 1/(1 + x), 0.5 at the limit. Source: the original test-time RL code for
      SimpleVLA-RL, with max_steps 500 by default: 100 steps → 0.8333, 500 → 0.5, 512 → 0.4941.
    - `linear`: 1 - 0.9 x, at least 0.1, which is its value at the limit.
    - `exponential`: exp(-3 x), 0.0498 at the limit.
    - `group_best`: best/x, in (0, 1]. Less than one step counts as one.

    A success may have taken more steps than the limit, which only scales them: x is then above 1.

    Args:
        succeeded: [N], 0 or 1.
        steps: [N], 0 or more.
        max_steps: [N] or one number, above 0: the step limit of the episode's task.
        form: One of the above, a key of `EFFICIENCY`.
        best: [N], for `group_best` only: the least x of a success in the episode's group. Entries
            of failures are ignored.

    Raises:
        ValueError: An entry is out of range.
        KeyError: `form` is none of the above.
    """
    is_success, limit = success(succeeded), np.asarray(max_steps, float)
    check(limit > 0, "max_steps is above 0", limit)
    fraction = np.asarray(steps, float) / limit
    check(fraction >= 0, "steps are 0 or more", steps)
    least = 1 / limit if form == "group_best" else 0.0
    best_fraction = np.maximum(np.asarray(best, float), least)
    values = EFFICIENCY[form](np.maximum(fraction, least), best_fraction)
    values[is_success == 0] = 0.0
    return values


def visual(episode_reward: ArrayLike, visual_success: ArrayLike) -> Floats:
    """Return episode reward x video score, [N].

    The score is in [0, 1], so the product is between 0 and the reward. Source: the multi-modal
    extension of the original analysis of verl-agent's `EpisodeRewardManager`.

    Args:
        episode_reward: [N].
        visual_success: [N] or one number, in [0, 1].

    Raises:
        ValueError: A video score is outside [0, 1].
    """
    score = np.asarray(visual_success, float)
    check((score >= 0) & (score <= 1), "visual_success is in [0, 1]", score)
    product: Floats = np.asarray(episode_reward, float) * score
    return product


def hybrid(step_rewards: ArrayLike, episode_reward: float) -> Floats:
    """Return the step rewards of one episode, with its episode reward added to the last, [T].

    They belong at the last token of each step. Their sum is the episode's score. Source: the hybrid
    rewards of the original analysis of verl-agent's `EpisodeRewardManager`, which places them at
    tokens 0, 1, 2 … instead.

    Args:
        step_rewards: [T], T above 0.
        episode_reward: Return of the episode.

    Raises:
        ValueError: There is no step.
    """
    rewards = np.array(step_rewards, float)
    if not rewards.size:
        raise ValueError("step_rewards: a hybrid reward needs one step or more")
    rewards[-1] += episode_reward
    return rewards


def shaping(progress: ArrayLike, gamma: float = 1.0) -> Floats:
    """Return the potential-based shaping of each step: F_t = gamma P(t+1) - P(t), [T].

    The potential P is the progress since the start, and 0 after the last step. So the sum that
    gamma discounts is 0, whatever the policy did: the optimal policy stays optimal. Of a sum with
    another discount this does not hold. Source: Ng, Harada, Russell 1999.

    Args:
        progress: [T], the progress before each step.
        gamma: Discount per step, in [0, 1], with which the rewards of steps are summed.
    """
    potential = np.asarray(progress, float)
    potential = potential - potential[:1]
    following = np.append(potential[1:], potential[:1])
    added: Floats = gamma * following - potential
    return added


def discounted(reward: ArrayLike, steps: ArrayLike, gamma: float) -> Floats:
    """Return gamma^(steps - 1) x reward, [N]: a terminal reward, discounted to the first step.

    Range: between 0 and the reward. Source: OpenEnv, `ExponentialDiscountingTrajectoryRubric`.

    Args:
        reward: [N], the reward after the last step.
        steps: [N] or one number, 0 or more; 0 counts as 1.
        gamma: Discount per step, in [0, 1].

    Raises:
        ValueError: A step count is negative.
    """
    taken = np.asarray(steps, float)
    check(taken >= 0, "steps are 0 or more", taken)
    values: Floats = np.asarray(reward, float) * gamma ** np.maximum(taken - 1, 0)
    return values


def by_length(reward: ArrayLike, steps: ArrayLike) -> Floats:
    """Return reward/steps, [N]. Source: verl-agent, `normalize_by_length`.

    Args:
        reward: [N].
        steps: [N] or one number, above 0.

    Raises:
        ValueError: A length is not above 0.
    """
    lengths = np.asarray(steps, float)
    check(lengths > 0, "a length to divide by is above 0", lengths)
    quotient: Floats = np.asarray(reward, float) / lengths
    return quotient
