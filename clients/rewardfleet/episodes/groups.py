"""Groups of episodes: statistics, normalization, and selection of members.

In shapes, N is the number of episodes, G of groups, and S of the members of one group.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .arrays import EPSILON, Bools, Floats, Indices, check


class Grouping:
    """Maps each episode to its group.

    Args:
        codes: [N], the number of the group, from 0; -1 for an episode without a group.
    """

    def __init__(self, codes: ArrayLike, count: int) -> None:
        self.codes = np.asarray(codes, np.intp)
        self.count = count
        self.has_group = self.codes >= 0  #: [N]
        self._all_have_group = bool(self.has_group.all())
        #: [G], members of each group.
        self.sizes = np.bincount(self._members(self.codes), minlength=count)

    @classmethod
    def by_name(cls, names: Sequence[str | None]) -> tuple["Grouping", list[str]]:
        """Return the grouping by name, None for no group, and the names as they first appear."""
        numbers: dict[str, int] = {}
        codes = [-1 if name is None else numbers.setdefault(name, len(numbers)) for name in names]
        return cls(codes, len(numbers)), list(numbers)

    def where(self, mask: Bools) -> "Grouping":
        """Return the same groups with only the members in `mask`, [N]."""
        if (mask | ~self.has_group).all():
            return self
        return Grouping(np.where(mask, self.codes, -1), self.count)

    def sum(self, values: Floats) -> Floats:
        """Return the sum of each group: [N] → [G]."""
        codes, weights = self._members(self.codes), self._members(values)
        return np.bincount(codes, weights, self.count).astype(float, copy=False)

    def mean(self, values: Floats) -> Floats:
        """Return the mean of each group: [N] → [G]; 0 for an empty group."""
        return self.sum(values) / np.maximum(self.sizes, 1)

    def std(self, values: Floats) -> Floats:
        """Return the sample standard deviation of each group: [N] → [G]; NaN below two members.

        Divides by n - 1, as GRPO does in verl and TRL.
        """
        return self.std_of_centered(self.centered(values))

    def centered(self, values: Floats) -> Floats:
        """Return each value minus the mean of its group, [N]; exactly 0 if all are equal.

        The mean of equal values may differ from them by rounding, which a standard deviation of
        almost 0 would enlarge. So one member is subtracted first.
        """
        member = np.zeros(self.count)
        member[self._members(self.codes)] = self._members(values)
        shifted = values - self.broadcast(member)
        return shifted - self.broadcast(self.mean(shifted))

    def std_of_centered(self, centered: Floats) -> Floats:
        """Return `std` of values from which the mean of their group was subtracted."""
        squares = self.sum(centered * centered)
        variance = np.full(self.count, np.nan)
        np.divide(squares, self.sizes - 1, out=variance, where=self.sizes > 1)
        std: Floats = np.sqrt(variance)
        return std

    def minimum(self, values: Floats) -> Floats:
        """Return the minimum of each group: [N] → [G]; infinity for an empty group."""
        out = np.full(self.count, np.inf)
        np.minimum.at(out, self.codes[self.has_group], values[self.has_group])
        return out

    def broadcast(self, values: ArrayLike) -> Floats:
        """Return the value of each episode's group: [G] → [N]; NaN without a group."""
        numbers = np.asarray(values, float)
        if self._all_have_group:
            return numbers[self.codes]
        out = np.full(len(self.codes), np.nan)
        out[self.has_group] = numbers[self.codes[self.has_group]]
        return out

    def by_size(self) -> list[Indices]:
        """Return, for each group size, the members of all groups of that size: [groups, S]."""
        order = np.argsort(self.codes, kind="stable")[len(self.codes) - int(self.sizes.sum()) :]
        starts = np.cumsum(self.sizes) - self.sizes
        return [
            order[starts[self.sizes == size][:, None] + np.arange(size)]
            for size in np.unique(self.sizes[self.sizes > 0])
        ]

    def _members(self, values: NDArray[np.generic]) -> NDArray[np.generic]:
        return values if self._all_have_group else values[self.has_group]


def normalize(
    rewards: ArrayLike, grouping: Grouping, *, by_std: bool, mask: ArrayLike = True
) -> Floats:
    """Return reward - mean of the group, [N]; with `by_std`, divided by std + 1e-6.

    With `by_std` this is GRPO's advantage (Shao et al. 2024), without it Dr. GRPO's (Liu et al.
    2025). An episode without a reward does not count in its group. It has no advantage, and neither
    has an episode that is compared with none because of that.

    Args:
        rewards: [N], NaN where there is none.
        mask: [N], the episodes that count; the others are treated as if they had no reward.

    Returns:
        [N], NaN where there is no advantage.

    Raises:
        ValueError: An episode in `mask` has no group, is the only one in it, or has an infinite
            reward; or there is another number of rewards than of episodes.
    """
    values, counting = _counting(rewards, grouping, mask)
    centered = counting.centered(values)
    if not by_std:
        return centered
    return centered / counting.broadcast(counting.std_of_centered(centered) + EPSILON)


def leave_one_out(rewards: ArrayLike, grouping: Grouping, *, mask: ArrayLike = True) -> Floats:
    """Return reward - mean of the other members of its group, [N].

    This is the advantage of RLOO (Ahmadian et al. 2024). Arguments, missing rewards and errors are
    those of `normalize`.
    """
    values, counting = _counting(rewards, grouping, mask)
    factors = counting.sizes / np.maximum(counting.sizes - 1, 1)
    return counting.centered(values) * counting.broadcast(factors)


def _counting(rewards: ArrayLike, grouping: Grouping, mask: ArrayLike) -> tuple[Floats, Grouping]:
    """Return the rewards, and the groups of those that have another to be compared with."""
    values = np.asarray(rewards, float)
    if values.shape != grouping.codes.shape:
        raise ValueError(f"rewards: [N] (got {values.shape} for {len(grouping.codes)} episodes)")
    masked = np.broadcast_to(np.asarray(mask, bool), values.shape)
    if not (grouping.has_group.all() and (grouping.sizes > 1).all()):
        sizes = grouping.broadcast(grouping.sizes)
        check((sizes > 1) | ~masked, "a group has two members or more", sizes)
    check(~np.isinf(values) | ~masked, "rewards: finite numbers, or NaN", values)
    scored = grouping.where(masked & ~np.isnan(values))
    if scored is not grouping:  # what is left of a group may be one member
        scored = scored.where(scored.broadcast(scored.sizes) > 1)
    return values, scored


def all_equal(rewards: ArrayLike, grouping: Grouping, tolerance: float) -> Bools:
    """Return whether all rewards of a group are within `tolerance` of each other, [G].

    Such a group has no advantage to learn from. Source: DAPO (Yu et al. 2025), and verl-agent's
    `filter_group_data`, which tests for exact equality: an efficiency term of 1e-9 defeats it.

    Args:
        rewards: [N], NaN where there is none; such episodes do not count.
        tolerance: The largest difference, in the unit of the rewards, 0 or more.
    """
    values = np.asarray(rewards, float)
    grouping = grouping.where(~np.isnan(values))
    return -grouping.minimum(-values) - grouping.minimum(values) <= tolerance


def most_efficient(
    step_fraction: ArrayLike, succeeded: ArrayLike, grouping: Grouping, count: int
) -> Bools:
    """Return whether an episode is among the `count` of its group with the fewest steps, [N].

    Args:
        step_fraction: [N], steps/max_steps, which may be above 1.
        succeeded: [N]; failures, and NaN, rank after all successes.
    """
    fraction = np.asarray(step_fraction, float)
    is_last = ~(np.asarray(succeeded, float) > 0) | np.isnan(fraction)
    selected = np.zeros(len(fraction), bool)
    for members in grouping.by_size():
        ranks = np.lexsort((fraction[members], is_last[members]), axis=1)[:, :count]
        selected[np.take_along_axis(members, ranks, axis=1)] = True
    return selected


def most_diverse(distances: Floats, count: int) -> Bools:
    """Return whether a member is among the `count` selected for being far apart, [G, S].

    Starts with the member furthest from all others, then adds the one furthest from those selected
    (Gonzalez 1985: at least half as far apart as the optimal selection).

    Args:
        distances: [G, S, S], symmetric.
    """
    groups = np.arange(len(distances))
    selected = np.zeros(distances.shape[:2], bool)
    candidate = distances.sum(axis=2).argmax(axis=1)
    nearest = np.full(distances.shape[:2], np.inf)
    for _ in range(min(count, distances.shape[1])):
        selected[groups, candidate] = True
        nearest = np.minimum(nearest, distances[groups, candidate])
        candidate = np.where(selected, -1.0, nearest).argmax(axis=1)
    return selected
