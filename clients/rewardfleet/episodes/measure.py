"""What each episode of a batch is worth by itself, whatever their kinds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rewardfleet.wire.episode import EpisodeOptions
from rewardfleet.wire.errors import RewardFleetError

from . import groups, motion, rewards
from .groups import Grouping
from .rewards import Bools, Floats
from .table import TERMINAL, Table, checked


@dataclass
class Measured:
    """Each episode by itself; all arrays are [N].

    Attributes:
        table: What was given, and which of it is good.
        rewards: Before normalisation; NaN where there is none.
        components: What the rewards are made of; NaN where a kind has no such component.
        step_rewards: By index, of the kinds `hybrid` and `shaped`.
    """

    table: Table
    rewards: Floats
    components: dict[str, Floats] = field(default_factory=dict)
    step_rewards: dict[int, Floats] = field(default_factory=dict)

    @property
    def good(self) -> Floats:
        """The rewards for a running mean and variance: without scores from elsewhere."""
        return self.rewards[self.table.ok & ~self.table.of_kind("rm")]

    def put(self, mask: Bools, name: str, values: Floats) -> None:
        """Add a component of the episodes in `mask`."""
        column = self.components.get(name)
        if column is None:
            column = self.components[name] = np.full(len(mask), np.nan)
        column[mask] = values


def measure(
    items: Sequence[Any], options: EpisodeOptions, bad: Mapping[int, RewardFleetError] | None = None
) -> Measured:
    """Reckon what each episode is worth by itself; a bad one gets its reason and no reward.

    Args:
        items: N things with the attributes of `EpisodeRequest`; lists may be arrays.
        options: What holds for all of them.
        bad: By index: those that are known to be bad already, and why.
    """
    table = checked(items, options, bad)
    measured = Measured(table, np.full(len(table), np.nan))
    for kind in dict.fromkeys(table.kinds):
        mask = table.of_kind(kind)
        if mask.any():
            _KINDS[kind](measured, mask, options)
    return measured


def _success(measured: Measured, mask: Bools, _: EpisodeOptions) -> None:
    gained = rewards.success(measured.table.number("success")[mask])
    measured.put(mask, "success", gained)
    measured.rewards[mask] = gained


def _return(measured: Measured, mask: Bools, _: EpisodeOptions) -> None:
    measured.rewards[mask] = measured.table.reward()[mask]


def _rm(measured: Measured, mask: Bools, _: EpisodeOptions) -> None:
    measured.rewards[mask] = measured.table.number("rm_score")[mask]


def _efficiency_of(table: Table, mask: Bools, options: EpisodeOptions) -> Floats:
    gained, steps, limit = (table.number(name) for name in ("success", "steps", "max_steps"))
    best = np.full(len(mask), np.nan)
    if options.efficiency == "group_best":
        grouping, _ = table.groups
        told = (gained > 0) & ~np.isnan(table.share)
        best = grouping.spread(grouping.lowest(np.where(told, table.share, np.inf)))
    form = options.efficiency
    return rewards.efficiency(gained[mask], steps[mask], limit[mask], form, best=best[mask])


def _efficiency(measured: Measured, mask: Bools, options: EpisodeOptions) -> None:
    worth = _efficiency_of(measured.table, mask, options)
    measured.put(mask, "success", measured.table.number("success")[mask])
    measured.rewards[mask] = worth


def _hybrid(measured: Measured, mask: Bools, _: EpisodeOptions) -> None:
    table = measured.table
    for index in np.flatnonzero(mask).tolist():
        steps = rewards.hybrid(
            table.array(index, "step_rewards"), table.number("episode_reward")[index]
        )
        measured.step_rewards[index] = steps
        measured.rewards[index] = steps.sum()
    episode = table.number("episode_reward")[mask]
    measured.put(mask, "episode", episode)
    measured.put(mask, "steps", measured.rewards[mask] - episode)


def _visual(measured: Measured, mask: Bools, _: EpisodeOptions) -> None:
    episode, seen = measured.table.reward()[mask], measured.table.number("visual_success")[mask]
    measured.rewards[mask] = rewards.visual(episode, seen)
    measured.put(mask, "episode", episode)
    measured.put(mask, "visual_success", seen)


def _shaped(measured: Measured, mask: Bools, options: EpisodeOptions) -> None:
    table, terminal = measured.table, measured.table.reward(TERMINAL)
    for index in np.flatnonzero(mask).tolist():
        added = rewards.shaping(table.array(index, "progress"), options.gamma)
        own = np.zeros(len(added))
        if table.items[index].step_rewards is not None:
            own = np.array(table.array(index, "step_rewards"), float)
        own[-1] += terminal[index] - own.sum()  # what the episode has beyond its steps
        measured.step_rewards[index] = own + added
        measured.rewards[index] = own.sum() + added.sum()
        terminal[index] = own.sum()
    measured.put(mask, "episode", terminal[mask])
    measured.put(mask, "shaping", measured.rewards[mask] - terminal[mask])


def _discounted(measured: Measured, mask: Bools, options: EpisodeOptions) -> None:
    table = measured.table
    terminal = table.reward(TERMINAL)[mask]
    measured.rewards[mask] = rewards.discounted(
        terminal, table.number("steps")[mask], options.gamma
    )
    measured.put(mask, "episode", terminal)


def _objectives(measured: Measured, mask: Bools, options: EpisodeOptions) -> None:
    """Weighted sum of gains, each in [0, 1] but for a progress that goes further."""
    table, total = measured.table, np.zeros(int(mask.sum()))
    for name, weight in options.weights.items():
        values = _objective(table, name, mask, options)
        measured.put(mask, name, values)
        if options.combine == "normalised":
            values = _in_group(table, mask, values)
        total = total + weight * values
    if options.combine == "gated":
        total = total * table.number("success")[mask]
    measured.rewards[mask] = total


def _objective(table: Table, name: str, mask: Bools, options: EpisodeOptions) -> Floats:
    if name == "success":
        return table.number("success")[mask]
    if name == "efficiency":
        return _efficiency_of(table, mask, options)
    indices = np.flatnonzero(mask).tolist()
    if name == "progress":
        return np.array([table.array(index, "progress")[-1] for index in indices])
    gain = {
        "smoothness": motion.smoothness,
        "energy": motion.energy,
        "path_length": motion.path_length,
    }[name]
    moved = [
        table.path(index) if name == "path_length" else table.array(index, "actions")
        for index in indices
    ]
    gains = np.zeros(len(moved))
    widths = np.array([each.shape[1] for each in moved])
    for width in np.unique(widths):  # tasks may differ in the width of their actions
        alike = np.flatnonzero(widths == width)
        gains[alike] = gain(motion.Trajectories([moved[index] for index in alike]))
    return gains


def _in_group(table: Table, mask: Bools, values: Floats) -> Floats:
    """An objective less its group's mean, by its deviation, so that none drowns the others."""
    codes = np.where(mask, table.groups[0].codes, -1)
    whole = np.zeros(len(mask))
    whole[mask] = values
    grouping = Grouping(codes, table.groups[0].count)
    return groups.normalise(whole, grouping, by_deviation=True, members=mask)[mask]


_KINDS = {
    "success": _success,
    "return": _return,
    "rm": _rm,
    "efficiency": _efficiency,
    "hybrid": _hybrid,
    "visual": _visual,
    "objectives": _objectives,
    "shaped": _shaped,
    "discounted": _discounted,
}
