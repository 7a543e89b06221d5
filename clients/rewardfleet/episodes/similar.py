"""Similar trajectories of a group: distances, clusters, and the majority's vote (TTRL)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .rewards import Floats

#: Points to which trajectories of different lengths are brought, to be compared point by point.
POINTS = 32
#: Sakoe-Chiba band of time warping: how far two moments that are compared may lie apart.
WARP_SHARE = 0.1


def resampled(trajectories: Sequence[Floats], points: int = POINTS) -> Floats:
    """Bring N trajectories [T_i, A], T_i above 0, to [N, points, A] by linear interpolation."""
    lengths = np.array([len(each) for each in trajectories])
    ends = np.cumsum(lengths)
    flat = np.concatenate(trajectories)
    at = np.linspace(0, 1, points) * (lengths - 1)[:, None] + (ends - lengths)[:, None]
    below = at.astype(np.intp)
    above = np.minimum(below + 1, ends[:, None] - 1)
    share = (at - below)[..., None]
    brought: Floats = flat[below] * (1 - share) + flat[above] * share
    return brought


def resampled_distances(brought: Floats) -> Floats:
    """Root mean square distance of each two members: [G, S, P, A] → [G, S, S].

    The mean is over points and components, so that the unit is the data's.
    """
    groups, size = brought.shape[:2]
    flat = brought.reshape(groups, size, -1)
    squares = np.einsum("gsp,gsp->gs", flat, flat)
    products = flat @ flat.transpose(0, 2, 1)
    squared = squares[:, :, None] + squares[:, None, :] - 2 * products
    squared[:, np.arange(size), np.arange(size)] = 0.0
    distances: Floats = np.sqrt(np.maximum(squared, 0.0) / max(flat.shape[2], 1))
    return distances


def dtw_distances(trajectories: Sequence[Floats]) -> Floats:
    """Dynamic time warping of each two of S trajectories [T_i, A] → [S, S], by `dtaidistance`.

    Divided by sqrt(longest T x A), to be comparable with `resampled_distances`.

    Raises:
        ModuleNotFoundError: The package `dtaidistance` is not installed.
    """
    from dtaidistance import dtw_ndim  # noqa: PLC0415 - only for those who ask for it

    longest = max(len(each) for each in trajectories)
    series = [np.ascontiguousarray(each, float) for each in trajectories]
    matrix = dtw_ndim.distance_matrix_fast(
        series, window=max(2, round(WARP_SHARE * longest)), parallel=False
    )
    matrix = np.minimum(matrix, matrix.T)
    np.fill_diagonal(matrix, 0.0)
    distances: Floats = matrix / np.sqrt(longest * series[0].shape[1])
    return distances


def clusters(distances: Floats, threshold: float) -> NDArray[np.intp]:
    """Number the clusters of each group: [G, S, S] → [G, S].

    Two members are of one cluster where a chain of members, each within `threshold` of the next,
    leads from one to the other (single linkage). Numbers count from 0 by a cluster's first member.
    """
    groups, size = distances.shape[:2]
    reach = distances <= threshold
    reach[:, np.arange(size), np.arange(size)] = True
    for _ in range(max(size - 1, 1).bit_length()):  # chains twice as long each time
        reach = (reach.astype(np.float32) @ reach.astype(np.float32)) > 0
    first = reach.argmax(axis=2)  # the first member of one's cluster
    is_first = first == np.arange(size)
    number = np.cumsum(is_first, axis=1) - 1
    return np.take_along_axis(number, first, axis=1).reshape(groups, size)


def majority(numbers: NDArray[np.intp]) -> tuple[NDArray[np.bool_], Floats]:
    """Vote: which members are of the largest cluster, [G, S], and its share of the group, [G].

    Where two are as large, the one that came first wins. Source: TTRL (Zuo et al. 2025), whose
    label is the group's most frequent answer; here an answer is a cluster of trajectories.
    """
    size = numbers.shape[1]
    counts = (numbers[:, :, None] == np.arange(size)).sum(axis=1)
    winner = counts.argmax(axis=1)
    return numbers == winner[:, None], counts.max(axis=1) / size
