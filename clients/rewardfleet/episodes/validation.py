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

from .arrays import Bools
from .batch import Batch, Columns, visual_score
from .groups import Grouping
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
    draft = _Draft(items, invalid or {})
    _check_uids(draft)
    for index, item in enumerate(items):
        if item.masked and draft.ok[index]:
            draft.fail(index, None)
    _check_required_fields(draft, options)
    _check_numbers(draft, options)
    _check_lists(draft)
    _check_visual_success(draft)
    _check_widths(draft, options)
    grouping, names = _grouped(draft, options, members_missing)
    draft.ok.flags.writeable = False
    return Batch(draft.columns, draft.ok, draft.reasons, grouping, names)


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
    batch = validate_batch([item], options.model_copy(update=alone) if alone else options)
    reason = batch.reasons.get(0)
    has_its_own = isinstance(item.visual_success, Score)  # the failure of its video is its result
    if isinstance(reason, InvalidRequest) and not has_its_own:
        raise reason


class _Draft:
    """A batch while it is validated."""

    def __init__(self, items: Sequence[Any], invalid: Mapping[int, RewardFleetError]) -> None:
        self.items = items
        self.columns = Columns(items)
        #: [N], whether an episode is valid so far.
        self.ok: Bools = np.ones(len(items), bool)
        #: By index: why it is not; None if the judge of its video abstained.
        self.reasons: dict[int, RewardFleetError | None] = dict(invalid)
        self.ok[list(self.reasons)] = False
        #: Groups with a member that is valid, and has no score.
        self.unscored_groups: set[str | None] = set()

    def refuse_all(self, mask: Bools, reason: str) -> None:
        """Refuse the episodes in `mask` that are valid so far."""
        for index in np.flatnonzero(mask & self.ok).tolist():
            self.refuse(index, reason)

    def refuse(self, index: int, reason: str) -> None:
        name = str(self.items[index].uid)[:60]
        self.reasons[index] = InvalidRequest(f"item {index} (uid {name!r}): {reason}")
        self.ok[index] = False

    def fail(self, index: int, error: RewardFleetError | None) -> None:
        """Leave out an episode that is valid, and has no score."""
        self.reasons[index] = error
        self.ok[index] = False
        self.unscored_groups.add(self.items[index].group)


def _check_uids(draft: _Draft) -> None:
    uids = [item.uid for item in draft.items]
    if len(set(uids)) == len(uids):
        return
    first: dict[str, int] = {}
    for index, uid in enumerate(uids):
        if draft.ok[index] and first.setdefault(uid, index) != index:
            draft.refuse(index, f"the same uid as item {first[uid]}")


def _check_required_fields(draft: _Draft, options: EpisodeOptions) -> None:
    for kind in draft.columns.kinds:
        for cause, field in _requirements(kind, options):
            of_kind = draft.columns.is_kind(kind) & draft.ok
            if not of_kind.any():
                break
            given = np.logical_or.reduce([draft.columns.has(name) for name in field.split(" or ")])
            draft.refuse_all(of_kind & ~given, f"{cause} needs {field}")


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


def _check_numbers(draft: _Draft, options: EpisodeOptions) -> None:
    """Check the ranges of scalar fields; a missing one, NaN, is outside of none."""
    number = draft.columns.number
    steps, limit, success = number("steps"), number("max_steps"), number("success")
    for name, is_wrong, range_ in (
        ("steps", steps < 0, "0 or more"),
        ("max_steps", limit <= 0, "above 0"),
        ("max_steps", limit < 1 / MAX_MAGNITUDE, "too small"),
        ("success", ~(np.isnan(success) | (success == 0) | (success == 1)), "0 or 1"),
        ("temperature", number("temperature") < 0, "0 or above"),
    ):
        for index in np.flatnonzero(is_wrong & draft.ok).tolist():
            value = float(getattr(draft.items[index], name))
            draft.refuse(index, f"{name}: {range_} (got {value:g})")
    for name in ("steps", "max_steps", "episode_reward", "reward_model_score", "temperature"):
        draft.refuse_all(np.abs(number(name)) > MAX_MAGNITUDE, f"{name}: {_NUMBER}")
    if options.normalize == "length":
        is_empty = (steps == 0) & ~draft.columns.is_kind("reward_model")
        draft.refuse_all(is_empty, "steps: a length to divide by is above 0")


def _check_lists(draft: _Draft) -> None:
    """Check the shapes and magnitudes of list fields, of the episodes that have any."""
    has_lists = np.logical_or.reduce([draft.columns.has(name) for name in _DIMENSIONS])
    for index in np.flatnonzero(has_lists & draft.ok).tolist():
        reason = _invalid_list(draft.columns, index, draft.items[index])
        if reason is not None:
            draft.refuse(index, reason)


def _invalid_list(columns: Columns, index: int, item: Any) -> str | None:
    """Return why a list field of an episode is invalid, or None."""
    lengths: dict[str, int] = {}
    for name, dimensions in _DIMENSIONS.items():
        if getattr(item, name) is None:
            continue
        try:
            values = columns.array(index, name)
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


def _check_visual_success(draft: _Draft) -> None:
    """Check video scores. If the video has no score, the episode has its error or abstention."""
    for index in np.flatnonzero(draft.columns.is_kind("visual") & draft.ok).tolist():
        item = draft.items[index]
        value = item.visual_success
        if isinstance(value, dict):
            try:
                value = Score.model_validate_json(json.dumps(value, default=float), strict=True)
            except (TypeError, ValueError):
                draft.refuse(index, "visual_success: a number or a Score")
                continue
        if isinstance(value, Score) and value.score is None:
            problem = value.error
            draft.fail(index, RewardFleetError.from_problem(problem) if problem else None)
        elif (score := visual_score(item)) is None or not 0 <= score <= 1:
            draft.refuse(index, f"visual_success: in [0, 1] (got {score})")


def _check_widths(draft: _Draft, options: EpisodeOptions) -> None:
    """Check that trajectories that are compared have the width of the first one of their group."""
    if options.clusters is None:
        return
    source = options.clusters.over
    widths: dict[str, int] = {}
    for index in np.flatnonzero(draft.ok).tolist():
        group = draft.items[index].group
        if group is None:
            continue
        width = draft.columns.trajectory(index, source).shape[1]
        if widths.setdefault(group, width) != width:
            draft.refuse(index, f"{source}: width {width}, but {widths[group]} in its group")


def _grouped(
    draft: _Draft, options: EpisodeOptions, members_missing: bool
) -> tuple[Grouping, list[str]]:
    """Group the valid episodes. Leave out an episode that has no other to be compared with."""
    grouping, names = _by_name(draft)
    for compared in _comparisons(draft.columns, options):
        others = grouping.where(compared & draft.ok)
        is_alone = others.broadcast(others.sizes) == 1
        for index in np.flatnonzero(is_alone).tolist():
            group = draft.items[index].group
            if members_missing or group in draft.unscored_groups:
                draft.fail(index, None)
            else:
                reason = f"no other member of group {group[:60]!r} to compare it with"
                draft.refuse(index, reason)
        if is_alone.any():
            grouping, names = _by_name(draft)
    return grouping, names


def _by_name(draft: _Draft) -> tuple[Grouping, list[str]]:
    items = enumerate(draft.items)
    return Grouping.by_name([None if n in draft.reasons else item.group for n, item in items])


def _comparisons(columns: Columns, options: EpisodeOptions) -> Iterator[Bools]:
    """Yield each set of episodes that are compared within their groups, [N]."""
    if options.combine == "normalized":  # first: an episode it refuses leaves the next set
        yield columns.is_kind("objectives")
    if options.normalize in WITHIN_GROUP:
        yield ~columns.is_kind("reward_model")
