"""The kinds of rewards and the objectives: the fields that each needs, and how it is computed.

To add a kind, add its name and fields to `RewardKind` and `REQUIRED_FIELDS` in
`rewardfleet.wire.episode`, a function and its entry in `KINDS` here, and a line to
docs/episodes.md. In shapes, N is the number of episodes of a batch, M of those of one kind.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from rewardfleet.wire.episode import EpisodeOptions

from . import groups, motion, rewards
from .arrays import Bools, Floats
from .batch import Batch


@dataclass(frozen=True)
class Rewards:
    """The reward of each episode of a batch, before normalization."""

    batch: Batch  #: the episodes
    values: Floats  #: [N], NaN where there is no reward
    components: Mapping[str, Floats]  #: addends by name: [N], NaN where a kind has no such one
    details: Mapping[str, Floats]  #: other figures, likewise
    #: By index, for the kinds `hybrid` and `shaped`: [T]; their sum is the reward.
    step_rewards: Mapping[int, Floats]


def compute_rewards(batch: Batch, options: EpisodeOptions) -> Rewards:
    """Compute the reward of each valid episode.

    Args:
        batch: The result of `validate_batch`.
        options: The options that the batch was validated with.
    """
    values = np.full(len(batch), np.nan)
    components: dict[str, Floats] = {}
    details: dict[str, Floats] = {}
    step_rewards: dict[int, Floats] = {}
    for kind in batch.kinds:
        mask = batch.is_kind(kind) & batch.ok
        if not mask.any():
            continue
        episodes = KindEpisodes(batch, mask)
        computed = KINDS[kind](episodes, options)
        values[mask] = computed.rewards
        addends = computed.components or {"reward": computed.rewards}
        for found, columns in ((components, addends), (details, computed.details)):
            for name, column in columns.items():
                found.setdefault(name, np.full(len(batch), np.nan))[mask] = column
        step_rewards |= zip(episodes.indices, computed.step_rewards, strict=False)
    return Rewards(batch, values, components, details, step_rewards)


@dataclass(frozen=True)
class KindEpisodes:
    """The M valid episodes of one kind."""

    batch: Batch  #: all episodes
    mask: Bools  #: [N], which episodes of the batch they are

    @cached_property
    def indices(self) -> list[int]:
        """Their indices in the batch, [M]."""
        return np.flatnonzero(self.mask).tolist()

    def number(self, name: str) -> Floats:
        """Return a scalar field, [M]."""
        return self.batch.number(name)[self.mask]

    def arrays(self, name: str) -> list[Floats]:
        """Return a list field of each, M arrays."""
        return [self.batch.array(index, name) for index in self.indices]

    def total_rewards(self) -> Floats:
        """Return the given episode reward, else the sum of the step rewards, [M].

        NaN where neither is given. Source: verl-agent, `TrajectoryCollector`.
        """
        totals, has_steps = self.number("episode_reward"), self.batch.has("step_rewards")[self.mask]
        for i in np.flatnonzero(np.isnan(totals) & has_steps).tolist():
            totals[i] = self.batch.array(self.indices[i], "step_rewards").sum()
        return totals

    def terminal_rewards(self) -> Floats:
        """Return `total_rewards`, or the success where there is none, [M]."""
        totals = self.total_rewards()
        return np.where(np.isnan(totals), self.number("success"), totals)


@dataclass(frozen=True)
class KindRewards:
    """The rewards of the episodes of one kind."""

    rewards: Floats  #: [M]
    #: Addends by name, [M], whose sum is the reward; if empty, it has the one `reward`.
    components: Mapping[str, Floats] = field(default_factory=dict)
    step_rewards: Sequence[Floats] = ()  #: M arrays [T]; empty if the kind has none
    details: Mapping[str, Floats] = field(default_factory=dict)  #: other figures by name, [M]


def _success(episodes: KindEpisodes, _: EpisodeOptions) -> KindRewards:
    values = rewards.success(episodes.number("success"))
    return KindRewards(values, {"success": values})


def _efficiency(episodes: KindEpisodes, options: EpisodeOptions) -> KindRewards:
    values = _efficiency_values(episodes, options)
    return KindRewards(values, details={"success": episodes.number("success")})


def _hybrid(episodes: KindEpisodes, _: EpisodeOptions) -> KindRewards:
    episode = episodes.number("episode_reward")
    step_rewards = [
        rewards.hybrid(steps, terminal)
        for steps, terminal in zip(episodes.arrays("step_rewards"), episode, strict=True)
    ]
    totals = np.array([steps.sum() for steps in step_rewards])
    return KindRewards(totals, {"episode": episode, "steps": totals - episode}, step_rewards)


def _visual(episodes: KindEpisodes, _: EpisodeOptions) -> KindRewards:
    episode, score = episodes.total_rewards(), episodes.number("visual_success")
    values = rewards.visual(episode, score)
    return KindRewards(values, details={"episode": episode, "visual_success": score})


def _objectives(episodes: KindEpisodes, options: EpisodeOptions) -> KindRewards:
    """Weigh the objectives, each in [0, 1] except a `progress` outside that range."""
    total: Floats = np.zeros(len(episodes.indices))
    components: dict[str, Floats] = {}
    details: dict[str, Floats] = {}
    gate = episodes.number("success") if options.combine == "gated" else 1.0
    for name, weight in options.weights.items():
        values = details[name] = OBJECTIVES[name][1](episodes, options)
        if options.combine == "normalized":
            # Within its group, so that no objective dominates by its scale.
            column = np.full(len(episodes.mask), np.nan)
            column[episodes.mask] = values
            grouping, mask = episodes.batch.grouping, episodes.mask
            values = groups.normalize(column, grouping, by_std=True, mask=mask)[mask]
        components[name] = weight * values * gate
        total = total + components[name]
    return KindRewards(total, components, details=details)


def _shaped(episodes: KindEpisodes, _: EpisodeOptions) -> KindRewards:
    batch, terminal = episodes.batch, episodes.terminal_rewards()
    step_rewards = []
    for total, index in zip(terminal, episodes.indices, strict=True):
        shaped = rewards.shaping(batch.array(index, "progress"))
        unshaped = np.zeros(len(shaped))
        if batch.items[index].step_rewards is not None:
            unshaped = batch.array(index, "step_rewards")
        shaped += unshaped
        shaped[-1] += total - unshaped.sum()  # the rest of the episode reward
        step_rewards.append(shaped)
    return KindRewards(terminal, {"episode": terminal}, step_rewards)


def _discounted(episodes: KindEpisodes, options: EpisodeOptions) -> KindRewards:
    terminal = episodes.terminal_rewards()
    values = rewards.discounted(terminal, episodes.number("steps"), options.gamma)
    return KindRewards(values, details={"episode": terminal})


def _efficiency_values(episodes: KindEpisodes, options: EpisodeOptions) -> Floats:
    best = np.full(len(episodes.indices), np.nan)
    if options.efficiency == "group_best":
        batch, fraction = episodes.batch, episodes.batch.step_fraction
        is_candidate = (batch.number("success") > 0) & ~np.isnan(fraction)
        least = batch.grouping.minimum(np.where(is_candidate, fraction, np.inf))
        best = batch.grouping.broadcast(least)[episodes.mask]
    succeeded, steps, limit = (episodes.number(name) for name in ("success", "steps", "max_steps"))
    return rewards.efficiency(succeeded, steps, limit, options.efficiency, best=best)


def _motion_values(
    formula: Callable[[motion.Trajectories], Floats], source: str
) -> Callable[[KindEpisodes, EpisodeOptions], Floats]:
    """Return a function that applies a formula to the `actions` or the `path` of each episode."""

    def compute(episodes: KindEpisodes, _: EpisodeOptions) -> Floats:
        trajectories = [episodes.batch.trajectory(i, source) for i in episodes.indices]
        widths = np.array([each.shape[1] for each in trajectories])
        values = np.zeros(len(trajectories))
        for width in np.unique(widths):  # tasks may differ in the width of their actions
            same = np.flatnonzero(widths == width)
            values[same] = formula(motion.Trajectories([trajectories[i] for i in same]))
        return values

    return compute


#: What a path can be taken from.
PATH = "path or actions"

#: The kinds of rewards, for episodes that have the fields of `REQUIRED_FIELDS`. `objectives` also
#: needs what the weighted objectives need.
KINDS: dict[str, Callable[[KindEpisodes, EpisodeOptions], KindRewards]] = {
    "success": _success,
    "return": lambda episodes, _: KindRewards(episodes.total_rewards()),
    "reward_model": lambda episodes, _: KindRewards(episodes.number("reward_model_score")),
    "efficiency": _efficiency,
    "hybrid": _hybrid,
    "visual": _visual,
    "objectives": _objectives,
    "shaped": _shaped,
    "discounted": _discounted,
}

#: The objectives: the fields that an episode must have ("a or b" is met by either), and one value
#: per episode, [M]; larger is better.
OBJECTIVES: dict[str, tuple[tuple[str, ...], Callable[[KindEpisodes, EpisodeOptions], Floats]]] = {
    "success": (("success",), lambda episodes, _: episodes.number("success")),
    "efficiency": (("success", "steps", "max_steps"), _efficiency_values),
    "smoothness": (("actions",), _motion_values(motion.smoothness, "actions")),
    "low_energy": (("actions",), _motion_values(motion.low_energy, "actions")),
    "short_path": ((PATH,), _motion_values(motion.short_path, "path")),
    "progress": (
        ("progress",),
        lambda episodes, _: np.array([progress[-1] for progress in episodes.arrays("progress")]),
    ),
}
