"""How an episode moved: smoothness, energy and path length of trajectories of any lengths.

All take a list of N trajectories, each [T_i, A] with T_i of 0 or more and one A for all, and
return [N]. Each figure f >= 0 becomes a gain 1/(1 + f) in (0, 1], like the seed's efficiency.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .rewards import Floats


class Trajectories:
    """N trajectories one after another in one array.

    Attributes:
        points: [sum of T_i, A].
        lengths: [N], T_i.
        owner: [sum of T_i], which trajectory a point is of.
    """

    def __init__(self, trajectories: Sequence[Floats]) -> None:
        self.lengths = np.array([len(each) for each in trajectories], np.intp)
        self.points = np.concatenate(trajectories) if len(trajectories) else np.zeros((0, 0))
        self.owner = np.repeat(np.arange(len(trajectories)), self.lengths)

    @property
    def starts(self) -> NDArray[np.intp]:
        """[N], where each begins in `points`."""
        return np.cumsum(self.lengths) - self.lengths

    def mean(self, order: int, *, root: bool = False) -> Floats:
        """Mean squared norm of the differences of that order over time, 0 where there are none."""
        total = self.total(order, root=root)
        return total / np.maximum(self.lengths - order, 1)

    def total(self, order: int, *, root: bool = False) -> Floats:
        """Sum of the (squared) norms of the differences of that order over time."""
        differences = np.diff(self.points, order, axis=0) if order else self.points
        inside = self.owner[order:] == self.owner[: len(self.owner) - order]
        norms = np.einsum("ta,ta->t", differences, differences)
        if root:
            norms = np.sqrt(norms)
        weights = np.where(inside, norms, 0.0)
        return np.bincount(self.owner[order:], weights, len(self.lengths)).astype(float)


def smoothness(actions: Trajectories) -> Floats:
    """1/(1 + mean |a(t+2) - 2 a(t+1) + a(t)|^2), in (0, 1]; 1 for fewer than three actions.

    The second difference of actions. Where they are velocities or position deltas, as LIBERO's,
    that is the jerk of the motion. Source: the acceleration and jerk terms of RLinf's smoothness.
    """
    return gain(actions.mean(2))


def energy(actions: Trajectories) -> Floats:
    """1/(1 + mean |a(t)|^2), in (0, 1]. Source: Gymnasium MuJoCo's control cost, a step."""
    return gain(actions.mean(0))


def path_length(path: Trajectories) -> Floats:
    """1/(1 + sum |p(t+1) - p(t)|), in (0, 1]; path in metres."""
    return gain(path.total(1, root=True))


def commanded_path(actions: Floats) -> Floats:
    """The path that position deltas ask for: the running sum of the first three, [T + 1, 3].

    For episodes without a measured path. LIBERO's controllers scale a delta of 1 to 5 cm; the
    unit is then that of the actions.
    """
    moved = actions[:, :3]
    return np.concatenate([np.zeros((1, moved.shape[1])), np.cumsum(moved, axis=0)])


def gain(figure: Floats) -> Floats:
    """1/(1 + figure)."""
    return 1 / (1 + figure)
