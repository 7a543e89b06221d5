"""Motion of trajectories: smoothness, energy, path length.

The objectives take N trajectories of any lengths, each [T_i, A] with T_i of 0 or more and the same
A, and return [N]. Each turns a cost f >= 0 into an objective 1/(1 + f) in (0, 1]: larger is better.
"""

from collections.abc import Sequence

import numpy as np

from .arrays import Floats, Indices


class Trajectories:
    """N trajectories, concatenated in one array.

    Args:
        trajectories: N arrays [T_i, A].

    Raises:
        ValueError: They differ in A.
    """

    def __init__(self, trajectories: Sequence[Floats]) -> None:
        self.lengths = np.array([len(each) for each in trajectories], np.intp)  #: [N], T_i
        #: [sum of T_i, A], and [sum of T_i], the trajectory that a point belongs to.
        self.points = np.concatenate(trajectories) if len(trajectories) else np.zeros((0, 0))
        self.owner: Indices = np.repeat(np.arange(len(trajectories)), self.lengths)

    def mean(self, order: int) -> Floats:
        """Return the mean squared norm of the differences of an order, [N]; 0 without any."""
        return self.total(order) / np.maximum(self.lengths - order, 1)

    def total(self, order: int, *, root: bool = False) -> Floats:
        """Return the sum of the squared norms of the differences of an order, [N].

        Args:
            order: How many times to difference over time; 0 for the points themselves.
            root: Sum the norms, not their squares.
        """
        differences = np.diff(self.points, order, axis=0) if order else self.points
        is_inside = self.owner[order:] == self.owner[: len(self.owner) - order]
        norms = np.einsum("ta,ta->t", differences, differences)
        if root:
            norms = np.sqrt(norms)
        weights = np.where(is_inside, norms, 0.0)
        return np.bincount(self.owner[order:], weights, len(self.lengths)).astype(float)


def smoothness(actions: Trajectories) -> Floats:
    """Return 1/(1 + mean |a(t+2) - 2 a(t+1) + a(t)|^2), in (0, 1]; 1 for fewer than three actions.

    Where actions are velocities or position deltas, as in LIBERO, their second difference is the
    jerk of the motion. Source: the acceleration and jerk terms of RLinf's smoothness.
    """
    return 1 / (1 + actions.mean(2))


def low_energy(actions: Trajectories) -> Floats:
    """Return 1/(1 + mean |a(t)|^2), in (0, 1]. Source: control cost of Gymnasium MuJoCo."""
    return 1 / (1 + actions.mean(0))


def short_path(path: Trajectories) -> Floats:
    """Return 1/(1 + sum |p(t+1) - p(t)|), in (0, 1]; path in meters."""
    return 1 / (1 + path.total(1, root=True))


def commanded_path(actions: Floats) -> Floats:
    """Return the path that position deltas command: the sum of the first three so far, [T + 1, 3].

    For episodes without a measured path. `actions` is [T, A]; its unit is that of the path.
    LIBERO's controllers scale a delta of 1 to 5 cm.
    """
    deltas = actions[:, :3]
    return np.concatenate([np.zeros((1, deltas.shape[1])), np.cumsum(deltas, axis=0)])
