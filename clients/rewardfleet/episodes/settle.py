"""What groups make of their episodes: normalised scores, who is kept, who is alike."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rewardfleet.wire.episode import Clusters, EpisodeOptions
from rewardfleet.wire.errors import InvalidRequest, RewardFleetError

from . import groups, rewards, similar
from .groups import Grouping
from .measure import Measured
from .rewards import Bools, Floats, Running
from .table import Table

#: Episodes whose distances are computed at once, so that memory stays linear in the batch.
_AT_ONCE = 4096
#: Members of a group that are compared each with each: memory and time grow with its square.
_LARGEST_GROUP = 1024
#: Pairs of moments that time warping compares in a batch: half a second, when nothing else runs.
_MOST_WARPED = 1e8


@dataclass
class Similarity:
    """How alike the trajectories of each group are.

    Attributes:
        cluster: [N], number of an episode's cluster in its group; -1 without a group.
        voted: [N], whether that is the group's largest.
        diverse: [N], whether it is among the `select_count` furthest apart.
        cluster_count: [G], how many clusters.
        majority_ratio: [G], share of the largest.
        diversity: [G], mean distance of two members; 0 for one.
    """

    cluster: NDArray[np.intp]
    voted: Bools
    diverse: Bools
    cluster_count: NDArray[np.intp]
    majority_ratio: Floats
    diversity: Floats


@dataclass
class Settled:
    """What a batch comes to.

    Attributes:
        scores: [N], after normalisation; NaN where there is none.
        reasons: By index: why there is none; None is an abstention.
        keep: [N], whether to train on it; False where there is no score.
        dropped: By index, which rule of `Keep` drops it.
        names: Of the groups, G of them; all below are [G].
        mean, deviation, success_rate: Of the rewards before normalisation; NaN where undefined.
        all_equal: Within the tolerance.
        similarity: With `clusters` alone.
    """

    measured: Measured
    scores: Floats
    reasons: dict[int, RewardFleetError | None]
    keep: Bools
    dropped: dict[int, str]
    grouping: Grouping
    names: list[str]
    mean: Floats
    deviation: Floats
    success_rate: Floats
    all_equal: Bools
    similarity: Similarity | None


def settle(measured: Measured, options: EpisodeOptions, running: Running | None = None) -> Settled:
    """Normalise, and say what each group comes to and who of it is kept.

    Args:
        measured: What `measure` gave.
        options: The same as there.
        running: For `normalise: running`: the run's, these rewards included.
    """
    table = measured.table
    grouping, names = table.groups
    raw = np.where(table.ok, measured.rewards, 0.0)
    similarity = _similarity(table, options)
    equal = groups.all_equal(raw, grouping, options.keep.tolerance)
    success_rate = grouping.mean(np.where(table.ok, table.number("success"), 0.0))
    settled = Settled(
        measured,
        np.where(table.ok, _normalised(measured, raw, options, running), np.nan),
        table.reasons,
        table.ok.copy(),
        {},
        grouping,
        names,
        grouping.mean(raw),
        grouping.deviation(raw),
        success_rate,
        equal,
        similarity,
    )
    if not options.keep.last_try:  # else the seed returns everything, as there is no resampling
        _choose(settled, options)
    return settled


def _normalised(
    measured: Measured, raw: Floats, options: EpisodeOptions, running: Running | None
) -> Floats:
    """Scores; a pre-computed score passes untouched."""
    table = measured.table
    grouping, _ = table.groups
    if options.normalise == "none":
        return raw
    if options.normalise == "length":
        scores = np.full(len(raw), np.nan)
        divided = table.ok & ~table.of_kind("rm")
        scores[divided] = rewards.by_length(raw[divided], table.number("steps")[divided])
    elif options.normalise == "running":
        if running is None:
            raise ValueError("normalise: running needs the run's mean and variance")
        scores = running.normalise(raw)
    else:
        by_deviation = options.normalise == "group_deviation"
        compared = table.ok & ~table.of_kind("rm")  # others' scores are no part of the baseline
        own = Grouping(np.where(compared, grouping.codes, -1), grouping.count)
        scores = groups.normalise(raw, own, by_deviation=by_deviation, members=compared)
    measured.put(table.ok, "reward", raw[table.ok])
    return np.where(table.of_kind("rm"), raw, scores)


def _similarity(table: Table, options: EpisodeOptions) -> Similarity | None:
    """Distances, clusters and votes, for a bounded number of groups at once."""
    if options.clusters is None:
        return None
    grouping, names = table.groups
    asked, count = options.clusters, len(table)
    _check_cost(table, grouping, asked)
    found = Similarity(
        np.full(count, -1, np.intp),
        np.zeros(count, bool),
        np.zeros(count, bool),
        np.zeros(len(names), np.intp),
        np.full(len(names), np.nan),
        np.full(len(names), np.nan),
    )
    for alike in grouping.alike():
        size = alike.shape[1]
        step = max(_AT_ONCE // size, 1)
        for members in (alike[first : first + step] for first in range(0, len(alike), step)):
            distances = _distances(table, members, asked)
            numbers = similar.clusters(distances, asked.threshold)
            found.cluster[members] = numbers
            voted, ratio = similar.majority(numbers)
            found.voted[members] = voted
            of = grouping.codes[members[:, 0]]
            found.cluster_count[of] = numbers.max(axis=1) + 1
            found.majority_ratio[of] = ratio
            pairs = max(size * (size - 1), 1)
            found.diversity[of] = distances.sum(axis=(1, 2)) / pairs
            if options.keep.select == "diverse":
                found.diverse[members] = groups.most_diverse(distances, options.keep.select_count)
    return found


def _check_cost(table: Table, grouping: Grouping, asked: Clusters) -> None:
    """Refuse what would hold the service for minutes.

    Raises:
        InvalidRequest: A group is too large, or its trajectories too long to be warped.
    """
    largest = int(grouping.sizes.max(initial=0))
    if largest > _LARGEST_GROUP:
        raise InvalidRequest(f"clusters: a group of {largest}; at most {_LARGEST_GROUP}")
    if asked.distance == "dtw":
        lengths = np.zeros(len(table))
        for index in np.flatnonzero(grouping.in_one).tolist():
            lengths[index] = len(table.moved(index, asked.over))
        longest = -grouping.lowest(-lengths)
        band = np.maximum(2 * similar.WARP_SHARE * longest, 4)
        cells = grouping.sizes * (grouping.sizes - 1) / 2 * longest * np.minimum(band, longest)
        if float(cells[grouping.sizes > 1].sum()) > _MOST_WARPED:
            raise InvalidRequest("clusters: too many or too long trajectories for dtw")


def _distances(table: Table, members: NDArray[np.intp], asked: Clusters) -> Floats:
    moved = [[table.moved(index, asked.over) for index in group] for group in members.tolist()]
    if asked.distance == "dtw":
        return np.stack([similar.dtw_distances(group) for group in moved])
    by_width: dict[int, list[int]] = {}
    for number, group in enumerate(moved):
        by_width.setdefault(group[0].shape[1], []).append(number)
    distances = np.zeros((len(moved), members.shape[1], members.shape[1]))
    for numbers in by_width.values():
        flat = [each for number in numbers for each in moved[number]]
        brought = similar.resampled(flat)
        shape = (len(numbers), members.shape[1], *brought.shape[1:])
        distances[numbers] = similar.resampled_distances(brought.reshape(shape))
    return distances


def _choose(settled: Settled, options: EpisodeOptions) -> None:
    """Drop who is not to train, by the first rule that says so."""
    keep, grouping, table = options.keep, settled.grouping, settled.measured.table
    member = table.ok & grouping.in_one
    drops_equal = not keep.test_time_rl if keep.drop_all_equal is None else keep.drop_all_equal
    if drops_equal:
        alone = grouping.sizes == 1
        _drop(settled, member & (grouping.spread(alone.astype(float)) > 0), "alone")
        _drop(settled, member & (grouping.spread(settled.all_equal.astype(float)) > 0), "all_equal")
    if keep.accuracy_bounds is not None:
        low, high = keep.accuracy_bounds
        rate = grouping.spread(settled.success_rate)
        _drop(settled, member & ((rate < low) | (rate > high)), "accuracy")
    if keep.select == "efficient":
        worthy = table.number("success") > 0
        chosen = groups.most_efficient(table.share, worthy, grouping, keep.select_count)
        _drop(settled, member & ~chosen, "not_selected")
    elif keep.select == "diverse" and settled.similarity is not None:
        _drop(settled, member & ~settled.similarity.diverse, "not_selected")


def _drop(settled: Settled, mask: Bools, rule: str) -> None:
    mask = mask & settled.keep
    settled.keep[mask] = False
    settled.dropped.update(dict.fromkeys(np.flatnonzero(mask).tolist(), rule))
