"""Groups of episodes: what their members have in common, and which of them to train on."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .rewards import EPSILON, Bools, Floats, check

Codes = NDArray[np.intp]


class Grouping:
    """Which group each episode is of.

    Args:
        codes: [N], the group's number from 0; -1 for an episode of none.
        count: How many groups.

    Attributes:
        sizes: [G], members of each group.
    """

    def __init__(self, codes: ArrayLike, count: int) -> None:
        self.codes = np.asarray(codes, np.intp)
        self.count = count
        self.in_one = self.codes >= 0
        self._all_in_one = bool(self.in_one.all())
        rising = self._all_in_one and bool((self.codes[1:] >= self.codes[:-1]).all())
        self._order = None if rising else np.argsort(self.codes, kind="stable")
        self.sizes = np.bincount(self._members(self.codes), minlength=count)

    @classmethod
    def by_name(cls, names: Sequence[str | None]) -> tuple["Grouping", list[str]]:
        """Number the groups in the order of their first members; None is no group."""
        numbers: dict[str | None, int] = {}
        codes = [numbers.setdefault(name, len(numbers)) for name in names]
        if None not in numbers:
            return cls(codes, len(numbers)), [name for name in numbers if name is not None]
        none = numbers[None]
        codes = [-1 if code == none else code - (code > none) for code in codes]
        return cls(codes, len(numbers) - 1), [name for name in numbers if name is not None]

    def sum(self, values: Floats) -> Floats:
        """[N] → [G]."""
        codes, weights = self._members(self.codes), self._members(values)
        return np.bincount(codes, weights, self.count).astype(float, copy=False)

    def mean(self, values: Floats) -> Floats:
        """[N] → [G]; 0 for an empty group."""
        means: Floats = self.sum(values) / np.maximum(self.sizes, 1)
        return means

    def deviation(self, values: Floats) -> Floats:
        """[N] → [G]: the sample's (n - 1), as GRPO has it in verl and TRL; NaN below two."""
        return self.deviation_of(values - self.spread(self.mean(values)))

    def deviation_of(self, centred: Floats) -> Floats:
        """The same, of values less their group's mean."""
        squares = self.sum(centred * centred)
        variance = np.full(self.count, np.nan)
        np.divide(squares, self.sizes - 1, out=variance, where=self.sizes > 1)
        deviations: Floats = np.sqrt(variance)
        return deviations

    def lowest(self, values: Floats) -> Floats:
        """[N] → [G]; infinite for an empty group."""
        out = np.full(self.count, np.inf)
        present = self.sizes > 0
        if present.any():
            starts = (np.cumsum(self.sizes) - self.sizes)[present]
            out[present] = np.minimum.reduceat(self._sorted(values), starts)
        return out

    def spread(self, of_groups: Floats) -> Floats:
        """[G] → [N]: each episode's group's; NaN for an episode of none."""
        if self._all_in_one:
            return of_groups[self.codes]
        out = np.full(len(self.codes), np.nan)
        out[self.in_one] = of_groups[self.codes[self.in_one]]
        return out

    def alike(self) -> list[Codes]:
        """The members of all groups of one size, as [groups, size], for each size."""
        order = np.arange(len(self.codes)) if self._order is None else self._order
        order = order[len(order) - int(self.sizes.sum()) :]
        starts = np.cumsum(self.sizes) - self.sizes
        return [
            order[starts[self.sizes == size][:, None] + np.arange(size)]
            for size in np.unique(self.sizes[self.sizes > 0])
        ]

    def _members(self, values: NDArray[np.generic]) -> NDArray[np.generic]:
        return values if self._all_in_one else values[self.in_one]

    def _sorted(self, values: Floats) -> Floats:
        """The members' values, group by group."""
        if self._order is None:
            return values
        return values[self._order][len(values) - int(self.sizes.sum()) :]


def normalise(
    rewards: ArrayLike, grouping: Grouping, *, by_deviation: bool, members: ArrayLike = True
) -> Floats:
    """Return reward - mean of its group, [N], divided by deviation + 1e-6 where asked.

    The latter is GRPO's advantage (Shao et al. 2024), the former Dr. GRPO's (Liu et al. 2025).

    Raises:
        ValueError: An episode is of no group, or alone in its group.
    """
    values = np.asarray(rewards, float)
    if not (grouping.in_one.all() and (grouping.sizes > 1).all()):
        sizes = grouping.spread(grouping.sizes.astype(float))
        check((sizes > 1) | ~np.asarray(members, bool), "a group has two members or more", sizes)
    centred = values - grouping.spread(grouping.mean(values))
    if not by_deviation:
        return centred
    return centred / grouping.spread(grouping.deviation_of(centred) + EPSILON)


def all_equal(rewards: ArrayLike, grouping: Grouping, tolerance: float) -> Bools:
    """Return whether a group's rewards are all within `tolerance` of each other, [G].

    Such a group teaches nothing. Source: DAPO (Yu et al. 2025), verl-agent's `filter_group_data`,
    whose exact equality an efficiency term of 1e-9 defeats.
    """
    values = np.asarray(rewards, float)
    equal: Bools = -grouping.lowest(-values) - grouping.lowest(values) <= tolerance
    return equal


def most_efficient(share: ArrayLike, worthy: ArrayLike, grouping: Grouping, count: int) -> Bools:
    """Return whether an episode is among the `count` of its group with the fewest steps, [N].

    Args:
        share: [N], steps/max_steps.
        worthy: [N], successes; failures come after all of them.
        count: How many of each group.
    """
    cost = np.asarray(share, float) + np.where(np.asarray(worthy, bool), 0.0, 2.0)
    chosen = np.zeros(len(cost), bool)
    for members in grouping.alike():
        ranks = np.argsort(cost[members], axis=1, kind="stable")[:, :count]
        chosen[np.take_along_axis(members, ranks, axis=1)] = True
    return chosen


def most_diverse(distances: Floats, count: int) -> Bools:
    """Return whether a member is among the `count` that lie furthest apart, [G, S].

    Begins with the member furthest from all others, then adds the one furthest from those chosen
    (Gonzalez 1985: at least half as far apart as the best choice).

    Args:
        distances: [G, S, S], symmetric.
        count: How many of each group.
    """
    groups = np.arange(len(distances))
    chosen = np.zeros(distances.shape[:2], bool)
    if not distances.size:
        return chosen
    next_one = distances.sum(axis=2).argmax(axis=1)
    nearest = np.full(distances.shape[:2], np.inf)
    for _ in range(min(count, distances.shape[1])):
        chosen[groups, next_one] = True
        nearest = np.minimum(nearest, distances[groups, next_one])
        next_one = np.where(chosen, -1.0, nearest).argmax(axis=1)
    return chosen
