"""Advantages of answers that have a task reward and a cost, within groups of the same prompt.

In shapes, N is the number of answers and G of groups.
"""

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rewardfleet.episodes import Grouping, normalize
from rewardfleet.episodes.arrays import Floats, check

#: How task reward and cost become one advantage; see `advantages`.
Method = Literal["separate", "gated", "mean", "std"]

#: Method "gated": largest part of the task advantage that the cost may add or take away.
_MAX_COST_SHARE = 0.5


def advantages(
    task: ArrayLike,
    cost: ArrayLike,
    groups: ArrayLike,
    multiplier: float,
    *,
    method: Method = "separate",
    correct: ArrayLike | None = None,
) -> Floats:
    """Return the advantage of each answer, [N].

    z(x) = (x - mean)/(std + 1e-6) of the group, with the sample standard deviation (n - 1), as in
    verl and TRL. It is 0 in a group of equal values. λ is the multiplier.

    An answer whose task reward or cost is NaN could not be scored, and does not count in its group.
    It has no advantage, and neither has an answer that is the only one scored in its group.

    - "separate": (z(task) - λ z(cost))/(1 + λ). λ is the weight of the cost relative to the task,
      whatever their units, and the scale of the advantages stays that of z. The form of Safe RLHF
      (Dai et al. 2023).
    - "gated": Correctness first, in the manner of the clipped advantage shaping of AdaTIR
      (arXiv 2601.14696). A wrong answer has z(task). A correct answer has
      z(task) - s, where s = λ/(1 + λ) x z(cost among the correct answers of the group). If the
      group has wrong answers too, s is limited to half of z(task), or to 0 if z(task) is negative:
      the cost never changes the sign of an advantage, so no correct answer is discouraged for its
      cost in favor of wrong ones. In a group where all are correct, s is not limited. The weight
      λ/(1 + λ) is that of "separate"; the task advantage keeps its scale, or its limit would
      fall with λ and the cost would matter less at a higher price.
    - "mean": r - mean(r) of the group, r = task - λ cost. The advantage of Dr. GRPO (Liu et al.
      2025). In the unit of the task reward.
    - "std": z(r), r = task - λ cost. The advantage of GRPO (Shao et al. 2024), for comparison. It
      has two flaws: in groups with equal task rewards it does not depend on λ as long as λ > 0, and
      a correct answer with a cost may fall below the mean of a group with wrong answers.

    Args:
        task: [N], task rewards; NaN where there is none.
        cost: [N], costs, e.g. the number of tool calls; NaN where there is none.
        groups: [N], labels of groups, all strings or all integers; in any order.
        multiplier: λ, 0 or more.
        method: One of the above.
        correct: [N], booleans; needed by "gated", not used by the others.

    Returns:
        [N], NaN where there is no advantage.

    Raises:
        ValueError: A task reward or cost is infinite (the message names its position), an answer is
            the only one of its group, shapes differ, or an argument is out of range or missing.
    """
    task_rewards, costs = _numbers("task", task), _numbers("cost", cost)
    labels = np.asarray(groups)
    _check_length("cost", costs, task_rewards)
    _check_length("groups", labels, task_rewards)
    if not (np.isfinite(multiplier) and multiplier >= 0):
        raise ValueError(f"multiplier: a finite number of 0 or more (got {multiplier})")
    names, codes = np.unique(labels, return_inverse=True)
    grouping = Grouping(codes, names.size)
    scored = ~(np.isnan(task_rewards) | np.isnan(costs))
    task_rewards, costs = (np.where(scored, each, np.nan) for each in (task_rewards, costs))
    mixed = task_rewards - multiplier * costs

    if method in {"std", "mean"}:
        return normalize(mixed, grouping, by_std=method == "std")
    z_task = normalize(task_rewards, grouping, by_std=True)
    if method == "separate":
        z_cost = normalize(costs, grouping, by_std=True)
        return (z_task - multiplier * z_cost) / (1 + multiplier)
    if method != "gated":
        raise ValueError(f"unknown method {method!r}; known: {', '.join(get_args(Method))}")
    if correct is None:
        raise ValueError("correct: needed by the method gated")
    is_correct = np.asarray(correct)
    _check_length("correct", is_correct, task_rewards)
    if is_correct.dtype != np.bool_:
        raise ValueError(f"correct: booleans (got {is_correct.dtype})")
    grouping = grouping.where(scored)
    correct_ones = grouping.where(is_correct & scored)
    number = correct_ones.broadcast(correct_ones.sizes)  # NaN for wrong answers
    compared = number > 1
    z_cost = normalize(costs, correct_ones.where(compared), by_std=True, mask=compared)
    shift = multiplier / (1 + multiplier) * np.where(compared, z_cost, 0.0)
    is_mixed = grouping.broadcast(correct_ones.sizes < grouping.sizes) > 0
    limit = np.where(is_mixed, _MAX_COST_SHARE * np.maximum(z_task, 0.0), np.inf)
    return z_task - np.clip(shift, -limit, limit)


def _numbers(name: str, values: ArrayLike) -> Floats:
    numbers = np.asarray(values, float)
    if numbers.ndim != 1:
        raise ValueError(f"{name}: [N] (got shape {numbers.shape})")
    check(~np.isinf(numbers), f"{name}: finite numbers, or NaN", numbers)
    return numbers


def _check_length(name: str, values: NDArray[np.generic], task: Floats) -> None:
    if values.shape != task.shape:
        raise ValueError(f"{name}: one entry per task reward (got {values.shape}, {task.shape})")
