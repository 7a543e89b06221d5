"""Aggregation of a batch by group: normalized scores, statistics, and which episodes to keep."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rewardfleet.wire.causes import EpisodeCause
from rewardfleet.wire.episode import DropReason, EpisodeOptions, FilterOptions
from rewardfleet.wire.errors import ErrorKind

from . import groups
from .arrays import Bools, Floats, Indices
from .batch import Batch
from .causes import causes_of
from .clustering import Clusters, cluster_batch
from .kinds import Rewards, compute_rewards
from .rewards import by_length
from .running import RunningMeanStd
from .validation import WITHIN_GROUP, validate_batch


@dataclass(frozen=True)
class GroupColumns:
    """The `GroupStats` of the G groups of a batch, as columns; all are [G]."""

    group: NDArray[Any]  #: their names, in the order of their first members
    size: Indices  #: members with a score
    mean: Floats  #: the mean of their rewards
    std: Floats  #: sample standard deviation; NaN for one member
    success_rate: Floats  #: NaN if a member has no `success`
    all_equal: Bools  #: whether the rewards are within the tolerance of each other


@dataclass(frozen=True)
class BatchResult:
    """The result of a batch of N episodes."""

    batch: Batch  #: the episodes, and why some have no score
    scores: Floats  #: [N], after normalization; NaN where there is none
    components: Mapping[str, Floats]  #: addends by name: [N]; NaN where an episode has no such one
    details: Mapping[str, Floats]  #: other figures, likewise
    step_rewards: Mapping[int, Floats]  #: by index: [T]; none of normalized scores
    keep: Bools  #: [N], whether to train on an episode; False where there is no score
    drop_reasons: Mapping[int, DropReason]  #: by index: the filter rule that dropped an episode
    #: N of them: why a score is below 1, or missing.
    causes: Sequence[EpisodeCause | ErrorKind | None]
    groups: GroupColumns  #: statistics of the groups
    clusters: Clusters | None  #: None unless requested


def score_episodes(items: Sequence[Any], options: EpisodeOptions | None = None) -> BatchResult:
    """Validate, compute and aggregate a batch.

    Args:
        items: Objects with the attributes of `EpisodeRequest`; their lists may be arrays.
        options: Options of the batch. `normalize: running` needs `aggregate`.

    Raises:
        InvalidRequest: The batch cannot be clustered; see `cluster_batch`.
    """
    options = options or EpisodeOptions()
    return aggregate(compute_rewards(validate_batch(items, options), options), options)


def aggregate(
    rewards: Rewards, options: EpisodeOptions, running: RunningMeanStd | None = None
) -> BatchResult:
    """Normalize rewards, compute the statistics of groups, and filter episodes.

    Args:
        rewards: The result of `compute_rewards`.
        options: The options that they were computed with.
        running: Needed by `normalize: running`: the statistics of the run, these rewards included.

    Raises:
        InvalidRequest: The batch cannot be clustered; see `cluster_batch`.
        ValueError: `running` is missing.
    """
    batch = rewards.batch
    values = np.where(batch.ok, rewards.values, 0.0)
    clusters = None
    if options.clusters is not None:
        clusters = cluster_batch(batch, options.clusters, options)
    statistics = GroupColumns(
        group=np.array(batch.group_names, object),
        size=batch.grouping.sizes,
        mean=batch.grouping.mean(values),
        std=batch.grouping.std(values),
        success_rate=batch.grouping.mean(np.where(batch.ok, batch.number("success"), 0.0)),
        all_equal=groups.all_equal(values, batch.grouping, options.filter.tolerance),
    )
    scores = np.where(batch.ok, _normalized(batch, values, options, running), np.nan)
    components, details = rewards.components, rewards.details
    if options.normalize != "none":
        # One addend: what is subtracted from a sum and divides it belongs to no part of it.
        reward = np.where(batch.ok, values, np.nan)
        components, details = {"normalized": scores}, {**components, **details, "reward": reward}
    keep, drop_reasons = _filter(batch, statistics, clusters, options.filter)
    is_equal = batch.grouping.broadcast(statistics.all_equal) > 0
    is_compared = batch.is_normalizable & (options.normalize in WITHIN_GROUP)
    return BatchResult(
        batch=batch,
        scores=scores,
        components=components,
        details=details,
        # A normalized score is that of the episode among others, and belongs to no steps.
        step_rewards=rewards.step_rewards if options.normalize == "none" else {},
        keep=keep,
        drop_reasons=drop_reasons,
        causes=causes_of(rewards, scores, is_compared & is_equal, options),
        groups=statistics,
        clusters=clusters,
    )


def _normalized(
    batch: Batch, values: Floats, options: EpisodeOptions, running: RunningMeanStd | None
) -> Floats:
    """Return normalized rewards, [N]; those of the kind `reward_model` stay as they are."""
    if options.normalize == "none":
        return values
    mask = batch.is_normalizable
    if options.normalize == "length":
        scores = np.full(len(values), np.nan)
        scores[mask] = by_length(values[mask], batch.number("steps")[mask])
    elif options.normalize == "running":
        if running is None:
            raise ValueError("normalize: running needs the mean and variance of the run")
        scores = running.normalize(values)
    elif options.normalize == "leave_one_out":
        scores = groups.leave_one_out(values, batch.grouping, mask=mask)
    else:
        by_std = options.normalize == "group_std"
        scores = groups.normalize(values, batch.grouping, by_std=by_std, mask=mask)
    return np.where(batch.is_kind("reward_model"), values, scores)


def _filter(
    batch: Batch, statistics: GroupColumns, clusters: Clusters | None, options: FilterOptions
) -> tuple[Bools, dict[int, DropReason]]:
    """Return which episodes to keep, [N], and by index the first rule that drops an episode."""
    keep, reasons = batch.ok.copy(), {}
    for reason, dropped in _filter_rules(batch, statistics, clusters, options):
        indices = np.flatnonzero(dropped & batch.grouping.has_group & keep).tolist()
        keep[indices] = False
        reasons.update(dict.fromkeys(indices, reason))
    return keep, reasons


def _filter_rules(
    batch: Batch, statistics: GroupColumns, clusters: Clusters | None, options: FilterOptions
) -> Iterator[tuple[DropReason, Bools]]:
    """Yield each rule with the episodes that it drops, [N], in order of precedence."""
    grouping = batch.grouping
    if options.final_attempt:  # nothing can be resampled
        return
    if not options.test_time_rl if options.drop_all_equal is None else options.drop_all_equal:
        yield "alone", grouping.broadcast(grouping.sizes == 1) > 0
        yield "all_equal", grouping.broadcast(statistics.all_equal) > 0
    if options.accuracy_bounds is not None:
        low, high = options.accuracy_bounds
        rate = grouping.broadcast(statistics.success_rate)
        yield "accuracy", (rate < low) | (rate > high)
    if options.select == "efficient":
        fraction, succeeded = batch.step_fraction, batch.number("success") > 0
        selected = groups.most_efficient(fraction, succeeded, grouping, options.select_count)
        yield "not_selected", ~selected
    elif options.select == "diverse" and clusters is not None:
        yield "not_selected", ~clusters.is_diverse
