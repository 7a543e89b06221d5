"""Validation of a batch: every invalid episode is refused, each with its reason.

What comes after relies on the result: shapes agree, numbers are in range, and every episode that is
compared with its group has another member to be compared with.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rewardfleet.wire.episode import MAX_MAGNITUDE, REQUIRED_FIELDS, EpisodeOptions, RewardKind
from rewardfleet.wire.errors import InvalidRequest, RewardFleetError
from rewardfleet.wire.score import Score

from .batch import Batch, visual_score
from .kinds import OBJECTIVES, PATH

_NUMBER = "a number between -1e100 and 1e100"
#: The dimensions of list fields.
_DIMENSIONS = {"step_rewards": 1, "progress": 1, "actions": 2, "path": 2}
#: Normalizations that compare an episode with the others of its group.
WITHIN_GROUP = {"group_mean", "group_std", "leave_one_out"}


def validate_batch(
    items: Sequence[Any],
    options: EpisodeOptions,
    invalid: Mapping[int, RewardFleetError] | None = None,
    *,
    members_missing: bool = False,
) -> Batch:
    """Validate a batch; an invalid episode is refused with its reason, and the others go on.

    An episode that is compared with its group has no score if none of the others has one. It is
    refused only if it was the only one to begin with.

    Args:
        items: N objects with the attributes of `EpisodeRequest`; their lists may be arrays.
        invalid: By index: why an item is already known to be invalid.
        members_missing: Each group has further members, which have no score.
    """
    batch = Batch(items, invalid or {})
    _check_uids(batch)
    for index, item in enumerate(items):
        if item.masked and batch.ok[index]:
            batch.leave_out(index, None)
    _check_required_fields(batch, options)
    _check_numbers(batch, options)
    _check_lists(batch)
    _check_visual_success(batch)
    _check_widths(batch, options)
    _leave_out_alone(batch, options, members_missing)
    batch.ok.flags.writeable = False
    return batch


def check_episode(item: Any, options: EpisodeOptions) -> None:
    """Check an episode whose group is not complete yet.

    Args:
        item: An object with the attributes of `EpisodeRequest`.

    Raises:
        InvalidRequest: It is invalid, whatever the other members are.
    """
    alone = {"normalize": "none"} if options.normalize in WITHIN_GROUP else {}
    if options.combine == "normalized":
        alone["combine"] = "sum"
    reason = validate_batch([item], options.model_copy(update=alone)).reasons.get(0)
    has_its_own = isinstance(item.visual_success, Score)  # the failure of its video is its result
    if isinstance(reason, InvalidRequest) and not has_its_own:
        raise reason


def _check_uids(batch: Batch) -> None:
    uids = [item.uid for item in batch.items]
    if len(set(uids)) == len(uids):
        return
    first: dict[str, int] = {}
    for index, uid in enumerate(uids):
        if batch.ok[index] and first.setdefault(uid, index) != index:
            batch.refuse(index, f"the same uid as item {first[uid]}")


def _check_required_fields(batch: Batch, options: EpisodeOptions) -> None:
    for kind in batch.kinds:
        for cause, field in _requirements(kind, options):
            of_kind = batch.is_kind(kind) & batch.ok
            if not of_kind.any():
                break
            given = np.logical_or.reduce([batch.has(name) for name in field.split(" or ")])
            batch.refuse_all(of_kind & ~given, f"{cause} needs {field}")


def _requirements(kind: RewardKind, options: EpisodeOptions) -> Iterator[tuple[str, str]]:
    """Yield what an episode of a kind must have: what needs it, and the field; one of "a or b"."""
    yield from ((f"kind {kind}", field) for field in REQUIRED_FIELDS[kind])
    if kind == "objectives":
        for name in options.weights:
            yield from ((f"objective {name}", field) for field in OBJECTIVES[name][0])
        if options.combine == "gated":
            yield "combine: gated", "success"
        if options.combine == "normalized":
            yield "combine: normalized", "group"
    if kind in {"efficiency", "objectives"} and options.efficiency == "group_best":
        yield "efficiency: group_best", "group"
    if kind != "reward_model":
        if options.normalize == "length":
            yield "normalize: length", "steps"
        elif options.normalize in WITHIN_GROUP:
            yield f"normalize: {options.normalize}", "group"
    if options.filter.select == "efficient":
        for field in ("steps", "max_steps", "success"):
            yield "filter.select: efficient", field
    if options.clusters is not None:
        yield "clusters", PATH if options.clusters.over == "path" else "actions"


def _check_numbers(batch: Batch, options: EpisodeOptions) -> None:
    """Check the ranges of scalar fields; a missing one, NaN, is outside of none."""
    number = batch.number
    steps, limit, success = number("steps"), number("max_steps"), number("success")
    for name, is_wrong, range_ in (
        ("steps", steps < 0, "0 or more"),
        ("max_steps", limit <= 0, "above 0"),
        ("max_steps", limit < 1 / MAX_MAGNITUDE, "too small"),
        ("success", ~(np.isnan(success) | (success == 0) | (success == 1)), "0 or 1"),
        ("temperature", number("temperature") < 0, "0 or above"),
    ):
        for index in np.flatnonzero(is_wrong & batch.ok).tolist():
            value = float(getattr(batch.items[index], name))
            batch.refuse(index, f"{name}: {range_} (got {value:g})")
    for name in ("steps", "max_steps", "episode_reward", "reward_model_score", "temperature"):
        batch.refuse_all(np.abs(number(name)) > MAX_MAGNITUDE, f"{name}: {_NUMBER}")
    if options.normalize == "length":
        is_empty = (steps == 0) & ~batch.is_kind("reward_model")
        batch.refuse_all(is_empty, "steps: a length to divide by is above 0")


def _check_lists(batch: Batch) -> None:
    """Check the shapes and magnitudes of list fields, of the episodes that have any."""
    has_lists = np.logical_or.reduce([batch.has(name) for name in _DIMENSIONS])
    for index in np.flatnonzero(has_lists & batch.ok).tolist():
        reason = _invalid_list(batch, index)
        if reason is not None:
            batch.refuse(index, reason)


def _invalid_list(batch: Batch, index: int) -> str | None:
    """Return why a list field of an episode is invalid, or None."""
    item, lengths = batch.items[index], dict[str, int]()
    for name, dimensions in _DIMENSIONS.items():
        if getattr(item, name) is None:
            continue
        try:
            values = batch.array(index, name)
        except ValueError:
            return f"{name}: its rows are of different lengths"
        if values.ndim != dimensions or not values.size:
            return f"{name}: [{'T' if dimensions == 1 else 'T, A'}] with one step or more"
        if not (np.abs(values) <= MAX_MAGNITUDE).all():
            return f"{name}: {_NUMBER}"
        lengths[name] = len(values)
    if item.step_token_ends is not None:
        ends = np.asarray(item.step_token_ends)
        lengths["step_token_ends"] = len(ends)
        if len(ends) and (ends[0] < 0 or (np.diff(ends) <= 0).any()):
            return "step_token_ends: token indices from 0, strictly rising"
    lengths.pop("path", None)  # as many points as actions, or one more
    if len(set(lengths.values())) > 1:
        return f"one entry per step in each list (got {lengths})"
    return None


def _check_visual_success(batch: Batch) -> None:
    """Check video scores. If the video has no score, the episode has its error or abstention."""
    for index in np.flatnonzero(batch.is_kind("visual") & batch.ok).tolist():
        item = batch.items[index]
        value = item.visual_success
        if isinstance(value, dict):
            try:
                value = Score.model_validate_json(json.dumps(value, default=float), strict=True)
            except (TypeError, ValueError):
                batch.refuse(index, "visual_success: a number or a Score")
                continue
        if isinstance(value, Score) and value.score is None:
            problem = value.error
            batch.leave_out(index, RewardFleetError.from_problem(problem) if problem else None)
        elif (score := visual_score(item)) is None or not 0 <= score <= 1:
            batch.refuse(index, f"visual_success: in [0, 1] (got {score})")


def _check_widths(batch: Batch, options: EpisodeOptions) -> None:
    """Check that trajectories that are compared have the width of the first one of their group."""
    if options.clusters is None:
        return
    source = options.clusters.over
    widths: dict[str, int] = {}
    for index in np.flatnonzero(batch.ok).tolist():
        group = batch.items[index].group
        if group is None:
            continue
        width = batch.trajectory(index, source).shape[1]
        if widths.setdefault(group, width) != width:
            batch.refuse(index, f"{source}: width {width}, but {widths[group]} in its group")


def _leave_out_alone(batch: Batch, options: EpisodeOptions, members_missing: bool) -> None:
    """Leave out an episode that has no other of its group to be compared with."""
    batch.group()
    comparisons = []
    if options.combine == "normalized":  # first: an episode it refuses leaves the next set
        comparisons.append(batch.is_kind("objectives"))
    if options.normalize in WITHIN_GROUP:
        comparisons.append(~batch.is_kind("reward_model"))
    for compared in comparisons:
        others = batch.grouping.where(compared & batch.ok)
        is_alone = others.broadcast(others.sizes) == 1
        for index in np.flatnonzero(is_alone).tolist():
            group = batch.items[index].group
            if members_missing or group in batch.unscored_groups:
                batch.leave_out(index, None)
            else:
                reason = f"no other member of group {group[:60]!r} to compare it with"
                batch.refuse(index, reason)
        if is_alone.any():
            batch.group()
