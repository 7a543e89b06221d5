"""Clusters of similar trajectories within each group, and the majority vote (TTRL).

In shapes, G is the number of groups, S of members of one group, and A the width of a trajectory.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rewardfleet.wire.episode import ClusterOptions, EpisodeOptions
from rewardfleet.wire.errors import InvalidRequest

from .arrays import Bools, Floats, Indices
from .batch import Batch
from .groups import most_diverse

#: Points to which trajectories are resampled, to be compared point by point.
_POINTS = 32
#: Sakoe-Chiba band of time warping, as a fraction of the longest trajectory.
_DTW_WINDOW = 0.1

#: Limit on the members of a group: memory and time grow with its square.
_MAX_GROUP = 1024
#: Limit on the point pairs that time warping compares in a batch: half a second on an idle machine.
_MAX_DTW_CELLS = 1e8
#: Episodes whose distances are computed together, so that memory is linear in the batch.
_CHUNK = 4096


@dataclass(frozen=True)
class Clusters:
    """The clusters of a batch. N is the number of its episodes."""

    labels: Indices  #: [N], number of the cluster within its group; -1 without a group
    is_majority: Bools  #: [N], whether the cluster is the largest of its group
    is_diverse: Bools  #: [N], whether the trajectory is among the `select_count` furthest apart
    counts: Indices  #: [G], number of clusters
    majority_ratio: Floats  #: [G], fraction of the members in the largest cluster
    diversity: Floats  #: [G], mean distance between two members; 0 for one member


def cluster_batch(batch: Batch, clusters: ClusterOptions, options: EpisodeOptions) -> Clusters:
    """Cluster the trajectories of each group of a batch.

    Args:
        batch: Its episodes have the actions or paths that are compared, of one width per group.
        options: Has `filter.select` and `filter.select_count`, for `is_diverse`.

    Raises:
        InvalidRequest: A group is too large, or its trajectories are too long for `dtw`.
    """
    _check_cost(batch, clusters)
    count, group_count = len(batch), len(batch.group_names)
    result = Clusters(
        labels=np.full(count, -1, np.intp),
        is_majority=np.zeros(count, bool),
        is_diverse=np.zeros(count, bool),
        counts=np.zeros(group_count, np.intp),
        majority_ratio=np.full(group_count, np.nan),
        diversity=np.full(group_count, np.nan),
    )
    chunks = (
        each[first : first + max(_CHUNK // each.shape[1], 1)]
        for each in batch.grouping.by_size()
        for first in range(0, len(each), max(_CHUNK // each.shape[1], 1))
    )
    for members in chunks:  # [groups, S], of one size
        size, group = members.shape[1], batch.grouping.codes[members[:, 0]]
        distances = _distances(batch, members, clusters)
        labels = single_linkage(distances, clusters.threshold)
        result.labels[members] = labels
        result.is_majority[members], result.majority_ratio[group] = majority_vote(labels)
        result.counts[group] = labels.max(axis=1) + 1
        result.diversity[group] = distances.sum(axis=(1, 2)) / max(size * (size - 1), 1)
        if options.filter.select == "diverse":
            result.is_diverse[members] = most_diverse(distances, options.filter.select_count)
    return result


def _check_cost(batch: Batch, clusters: ClusterOptions) -> None:
    """Refuse a batch whose distances would take minutes."""
    grouping = batch.grouping
    largest = int(grouping.sizes.max(initial=0))
    if largest > _MAX_GROUP:
        raise InvalidRequest(f"clusters: a group of {largest}; at most {_MAX_GROUP}")
    if clusters.distance == "dtw":
        lengths = np.zeros(len(batch))
        for index in np.flatnonzero(grouping.has_group).tolist():
            lengths[index] = len(batch.trajectory(index, clusters.over))
        longest = -grouping.minimum(-lengths)
        band = np.maximum(2 * _DTW_WINDOW * longest, 4)
        cells = grouping.sizes * (grouping.sizes - 1) / 2 * longest * np.minimum(band, longest)
        if float(cells[grouping.sizes > 1].sum()) > _MAX_DTW_CELLS:
            raise InvalidRequest("clusters: too many or too long trajectories for dtw")


def _distances(batch: Batch, members: Indices, clusters: ClusterOptions) -> Floats:
    """Return the distances within groups of one size: [G, S] → [G, S, S]."""
    trajectories = [
        [batch.trajectory(index, clusters.over) for index in group] for group in members.tolist()
    ]
    if clusters.distance == "dtw":
        return np.stack([dtw_distances(group) for group in trajectories])
    by_width: dict[int, list[int]] = {}
    for number, group in enumerate(trajectories):
        by_width.setdefault(group[0].shape[1], []).append(number)
    size = members.shape[1]
    distances = np.zeros((len(trajectories), size, size))
    for numbers in by_width.values():
        points = resample([each for number in numbers for each in trajectories[number]])
        shape = (len(numbers), size, *points.shape[1:])
        distances[numbers] = resampled_distances(points.reshape(shape))
    return distances


def resample(trajectories: Sequence[Floats], points: int = _POINTS) -> Floats:
    """Resample N trajectories [T_i, A], T_i above 0, to [N, points, A] by linear interpolation."""
    lengths = np.array([len(each) for each in trajectories])
    ends = np.cumsum(lengths)
    flat = np.concatenate(trajectories)
    at = np.linspace(0, 1, points) * (lengths - 1)[:, None] + (ends - lengths)[:, None]
    below = at.astype(np.intp)
    above = np.minimum(below + 1, ends[:, None] - 1)
    weight = (at - below)[..., None]
    resampled: Floats = flat[below] * (1 - weight) + flat[above] * weight
    return resampled


def resampled_distances(resampled: Floats) -> Floats:
    """Return the root mean square distance of each two members: [G, S, P, A] → [G, S, S].

    The mean is over points and components, so the unit is that of the data.
    """
    groups, size = resampled.shape[:2]
    flat = resampled.reshape(groups, size, -1)
    squares = np.einsum("gsp,gsp->gs", flat, flat)
    products = flat @ flat.transpose(0, 2, 1)
    squared = squares[:, :, None] + squares[:, None, :] - 2 * products
    squared[:, np.arange(size), np.arange(size)] = 0.0
    distances: Floats = np.sqrt(np.maximum(squared, 0.0) / max(flat.shape[2], 1))
    return distances


def dtw_distances(trajectories: Sequence[Floats]) -> Floats:
    """Return the dynamic time warping distance of each two of S trajectories [T_i, A] → [S, S].

    Computed by `dtaidistance`, and divided by sqrt(longest T x A) to be comparable with
    `resampled_distances`.

    Raises:
        ModuleNotFoundError: The package `dtaidistance` is not installed.
    """
    from dtaidistance import dtw_ndim  # noqa: PLC0415 - optional

    longest = max(len(each) for each in trajectories)
    series = [np.ascontiguousarray(each, float) for each in trajectories]
    window = max(2, round(_DTW_WINDOW * longest))
    matrix = dtw_ndim.distance_matrix_fast(series, window=window, parallel=False)
    matrix = np.minimum(matrix, matrix.T)
    np.fill_diagonal(matrix, 0.0)
    distances: Floats = matrix / np.sqrt(longest * series[0].shape[1])
    return distances


def single_linkage(distances: Floats, threshold: float) -> Indices:
    """Return the number of each member's cluster: [G, S, S] → [G, S].

    Two members are in one cluster if a chain of members connects them, each within `threshold` of
    the next. Clusters are numbered from 0 by their first members.
    """
    groups, size = distances.shape[:2]
    reach = distances <= threshold
    reach[:, np.arange(size), np.arange(size)] = True
    for _ in range(max(size - 1, 1).bit_length()):  # each round doubles the length of chains
        reach = (reach.astype(np.float32) @ reach.astype(np.float32)) > 0
    first = reach.argmax(axis=2)  # the first member of the cluster
    is_first = first == np.arange(size)
    number = np.cumsum(is_first, axis=1) - 1
    return np.take_along_axis(number, first, axis=1).reshape(groups, size)


def majority_vote(labels: Indices) -> tuple[Bools, Floats]:
    """Return which members are in the largest cluster, and its fraction of the group.

    Of two equally large clusters, the first wins. Source: TTRL (Zuo et al. 2025), whose label is
    the most frequent answer of the group; here an answer is a cluster of trajectories.

    Args:
        labels: [G, S], numbers of clusters.

    Returns:
        [G, S] and [G].
    """
    size = labels.shape[1]
    counts = (labels[:, :, None] == np.arange(size)).sum(axis=1)
    largest = counts.argmax(axis=1)
    return labels == largest[:, None], counts.max(axis=1) / size
