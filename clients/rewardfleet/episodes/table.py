"""A batch of episodes as columns, and what is wrong with each of them."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rewardfleet.wire.episode import EpisodeOptions
from rewardfleet.wire.errors import ERRORS, InvalidRequest, RewardFleetError
from rewardfleet.wire.score import Score

from .groups import Grouping
from .motion import commanded_path
from .rewards import Bools, Floats

_REWARD = "episode_reward or step_rewards"
TERMINAL = "episode_reward, step_rewards or success"
_PATH = "path or actions"

_NUMBERS = {"success", "steps", "max_steps", "episode_reward", "rm_score", "temperature"}
#: Larger numbers are no measurements, and their squares would not be finite.
LARGEST = 1e100
_NUMBER = "a number between -1e100 and 1e100"

#: The fields that each kind needs; of several joined by "or", one.
NEEDS: dict[str, tuple[str, ...]] = {
    "success": ("success",),
    "return": (_REWARD,),
    "rm": ("rm_score",),
    "efficiency": ("success", "steps", "max_steps"),
    "hybrid": ("step_rewards", "step_token_ends", "episode_reward"),
    "visual": (_REWARD, "visual_success"),
    "objectives": (),
    "shaped": ("progress", TERMINAL),
    "discounted": ("steps", TERMINAL),
}
#: Likewise each objective.
OBJECTIVE_NEEDS: dict[str, tuple[str, ...]] = {
    "success": ("success",),
    "efficiency": ("success", "steps", "max_steps"),
    "smoothness": ("actions",),
    "energy": ("actions",),
    "path_length": (_PATH,),
    "progress": ("progress",),
}


class Table:
    """The columns of N episodes, made when they are asked for.

    A number that is missing is NaN. An item that is bad for what is asked of it is refused: it has
    its own reason, and all others go on without it.

    Args:
        items: Anything with the attributes of `rewardfleet.wire.episode.EpisodeRequest`.
        bad: By index: those that are known to be bad, and why.
    """

    def __init__(
        self, items: Sequence[Any], bad: Mapping[int, RewardFleetError] | None = None
    ) -> None:
        self.items = items
        self.ok = np.ones(len(items), bool)
        #: By index: why there is no score; None where the judge of a video abstained.
        self.reasons: dict[int, RewardFleetError | None] = dict(bad or {})
        self.ok[list(self.reasons)] = False
        known = {kind: code for code, kind in enumerate(NEEDS)}
        self._kinds = np.array([known.get(item.kind, -1) for item in items], np.int8)
        self._numbers: dict[str, Floats] = {}
        self._arrays: dict[tuple[str, int], Floats] = {}

    @property
    def kinds(self) -> list[str]:
        """The kinds that there are."""
        return [kind for code, kind in enumerate(NEEDS) if (self._kinds == code).any()]

    @property
    def unknown_kind(self) -> Bools:
        """[N], whether an episode's kind is none of ours."""
        unknown: Bools = self._kinds < 0
        return unknown

    def __len__(self) -> int:
        return len(self.items)

    def of_kind(self, kind: str) -> Bools:
        """[N], whether an episode is of that kind and good so far."""
        same: Bools = (self._kinds == list(NEEDS).index(kind)) & self.ok
        return same

    def number(self, name: str) -> Floats:
        """[N], a scalar field."""
        column = self._numbers.get(name)
        if column is None:
            get = _seen if name == "visual_success" else attrgetter(name)
            column = np.array(list(map(get, self.items)), float)
            self._numbers[name] = column
        return column

    def has(self, name: str) -> Bools:
        """[N], whether a field is given; of several joined by "or", one."""
        if " or " in name or ", " in name:
            names = name.replace(" or ", ", ").split(", ")
            given: Bools = np.logical_or.reduce([self.has(each) for each in names])
            return given
        if name in _NUMBERS:
            return np.asarray(~np.isnan(self.number(name)))
        return np.array([each is not None for each in map(attrgetter(name), self.items)], bool)

    def array(self, index: int, name: str) -> Floats:
        """A list field of one episode."""
        made = self._arrays.get((name, index))
        if made is None:
            made = np.asarray(getattr(self.items[index], name), float)
            self._arrays[name, index] = made
        return made

    def path(self, index: int) -> Floats:
        """The measured path, or else the one that the actions ask for."""
        if self.items[index].path is not None:
            return self.array(index, "path")
        return commanded_path(self.array(index, "actions"))

    def moved(self, index: int, over: str) -> Floats:
        """The actions of one episode, or its path: [T, A]."""
        return self.path(index) if over == "path" else self.array(index, "actions")

    def reward(self, needs: str = _REWARD) -> Floats:
        """[N], the given episode reward, else the sum of the steps, else, where allowed, success.

        NaN where there is none. Source: verl-agent, `TrajectoryCollector`.
        """
        reward = self.number("episode_reward").copy()
        for index in np.flatnonzero(np.isnan(reward) & self.has("step_rewards") & self.ok).tolist():
            reward[index] = self.array(index, "step_rewards").sum()
        if needs == TERMINAL:
            reward = np.where(np.isnan(reward), self.number("success"), reward)
        return reward

    @cached_property
    def share(self) -> Floats:
        """[N], steps/max_steps."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.number("steps") / self.number("max_steps")

    @cached_property
    def groups(self) -> tuple[Grouping, list[str]]:
        """Whose group each is, and their names; asked for when all checks are made."""
        names = [item.group for item in self.items]
        for index in self.reasons:
            names[index] = None
        return Grouping.by_name(names)

    def refuse(self, bad: NDArray[np.bool_], why: Callable[[Any], str]) -> None:
        """Refuse those that are bad and still good so far, each with its reason."""
        for index in np.flatnonzero(bad & self.ok).tolist():
            self.refuse_one(index, why(self.items[index]))

    def refuse_one(self, index: int, why: str) -> None:
        name = str(self.items[index].uid)[:60]
        self.drop(index, InvalidRequest(f"item {index} (uid {name!r}): {why}"))

    def drop(self, index: int, reason: RewardFleetError | None) -> None:
        self.reasons[index] = reason
        self.ok[index] = False


def checked(
    items: Sequence[Any], options: EpisodeOptions, bad: Mapping[int, RewardFleetError] | None = None
) -> Table:
    """Return the table of a batch, every item refused that is bad for what is asked."""
    table = Table(items, bad)
    _check_names(table)
    kinds = ", ".join(NEEDS)
    table.refuse(table.unknown_kind, lambda item: f"kind {item.kind!r}: known are {kinds}")
    for kind in table.kinds:
        for needed in _needs(kind, options):
            of_kind = table.of_kind(kind)
            if of_kind.any():
                what = f"kind {kind} needs {needed}"
                table.refuse(of_kind & ~table.has(needed), lambda _, what=what: what)  # type: ignore[misc] # bound now
    _check_numbers(table)
    if options.normalise == "length":
        empty = (table.number("steps") == 0) & ~table.of_kind("rm")
        table.refuse(empty, lambda _: "steps: a length to divide by is above 0")
    _check_lists(table)
    _take_over_judgments(table)
    _check_groups(table, options)
    return table


def _needs(kind: str, options: EpisodeOptions) -> set[str]:
    needs = set(NEEDS[kind])
    if kind == "objectives":
        needs.update(*(OBJECTIVE_NEEDS[name] for name in options.weights))
        needs |= {"success"} if options.combine == "gated" else set()
        needs |= {"group"} if options.combine == "normalised" else set()
    if kind in {"efficiency", "objectives"} and options.efficiency == "group_best":
        needs.add("group")
    if options.normalise == "length" and kind != "rm":  # which passes untouched
        needs.add("steps")
    if options.normalise.startswith("group") and kind != "rm":
        needs.add("group")
    if options.keep.select == "efficient":
        needs |= {"steps", "max_steps", "success"}
    if options.clusters is not None:
        needs.add(options.clusters.over if options.clusters.over == "actions" else _PATH)
    return needs


def _check_names(table: Table) -> None:
    uids = [item.uid for item in table.items]
    if len(set(uids)) == len(uids):
        return
    first: dict[str, int] = {}
    for index, uid in enumerate(uids):
        if table.ok[index] and first.setdefault(uid, index) != index:
            table.refuse_one(index, f"the same uid as item {first[uid]}")


def _check_numbers(table: Table) -> None:
    """Ranges; NaN, which is missing, is outside of none."""
    steps, limit = table.number("steps"), table.number("max_steps")
    table.refuse(steps < 0, lambda item: f"steps: 0 or more (got {item.steps:g})")
    table.refuse(limit <= 0, lambda item: f"max_steps: above 0 (got {item.max_steps:g})")
    table.refuse(limit < 1 / LARGEST, lambda item: f"max_steps: too small (got {item.max_steps:g})")
    table.refuse(
        steps > limit, lambda item: f"steps {item.steps:g} are beyond max_steps {item.max_steps:g}"
    )
    gained = table.number("success")
    table.refuse(
        ~(np.isnan(gained) | (gained == 0) | (gained == 1)),
        lambda item: f"success: 0 or 1 (got {item.success})",
    )
    table.refuse(
        table.number("temperature") < 0,
        lambda item: f"temperature: 0 or above (got {item.temperature:g})",
    )
    for name in ("steps", "max_steps", "episode_reward", "rm_score", "temperature"):
        large = np.abs(table.number(name)) > LARGEST
        table.refuse(large, lambda _, name=name: f"{name}: {_NUMBER}")  # type: ignore[misc] # bound now


def _check_lists(table: Table) -> None:
    """Shapes; looked at only where a list is given."""
    given = [
        index
        for index, item in enumerate(table.items)
        if item.step_rewards is not None
        or item.progress is not None
        or item.actions is not None
        or item.path is not None
    ]
    for index in given:
        if not table.ok[index]:
            continue
        why = _wrong_lists(table, index, table.items[index])
        if why:
            table.refuse_one(index, why)


def _wrong_lists(table: Table, index: int, item: Any) -> str | None:
    lengths: dict[str, int] = {}
    for name, dimensions in (("step_rewards", 1), ("progress", 1), ("actions", 2), ("path", 2)):
        if getattr(item, name) is None:
            continue
        try:
            values = table.array(index, name)
        except ValueError:
            return f"{name}: its rows are of different lengths"
        if values.ndim != dimensions or not values.size:
            return f"{name}: [{'T' if dimensions == 1 else 'T, A'}] with one step or more"
        if not (np.abs(values) <= LARGEST).all():
            return f"{name}: {_NUMBER}"
        lengths[name] = len(values)
    if item.step_token_ends is not None:
        ends = np.asarray(item.step_token_ends)
        lengths["step_token_ends"] = len(ends)
        if len(ends) and (ends[0] < 0 or (np.diff(ends) <= 0).any()):
            return "step_token_ends: indices of tokens from 0, rising"
    lengths.pop("path", None)  # one point more than actions, or as many
    if len(set(lengths.values())) > 1:
        return f"one entry a step in each list (got {lengths})"
    return None


def _seen(item: Any) -> float | None:
    """The number of a video score, which may be given as the service's whole answer."""
    seen = item.visual_success
    if isinstance(seen, dict):
        seen = seen.get("score")
    elif isinstance(seen, Score):
        seen = seen.score
    return seen if isinstance(seen, int | float) else None


def _take_over_judgments(table: Table) -> None:
    """A video without a score gives none here: its abstention or failure is passed on."""
    if not table.of_kind("visual").any():
        return
    for index in np.flatnonzero(table.of_kind("visual")).tolist():
        seen = table.items[index].visual_success
        if isinstance(seen, dict):
            try:
                seen = Score.model_validate(seen)
            except ValueError:
                table.refuse_one(index, "visual_success: a number or a Score")
                continue
        if isinstance(seen, Score) and seen.score is None:
            problem = seen.error
            table.drop(index, ERRORS[problem.kind].of(problem) if problem else None)
    score = table.number("visual_success")
    table.refuse(
        table.of_kind("visual") & ~((score >= 0) & (score <= 1)),
        lambda item: f"visual_success: in [0, 1] (got {_seen(item)})",
    )


def _check_groups(table: Table, options: EpisodeOptions) -> None:
    """Whoever is compared with his group must not be alone in it, nor of another shape."""
    if options.clusters is not None:
        widths: dict[str | None, int] = {}
        for index in np.flatnonzero(table.ok).tolist():
            width = table.moved(index, options.clusters.over).shape[1]
            group = table.items[index].group
            if group is not None and widths.setdefault(group, width) != width:
                why = f"{options.clusters.over}: {width} wide, where its group's are"
                table.refuse_one(index, f"{why} {widths[group]}")
    if options.combine == "normalised":  # first: whoever it refuses leaves the others' groups
        _refuse_alone(table, table.of_kind("objectives"))
    if options.normalise.startswith("group"):
        _refuse_alone(table, table.ok & ~table.of_kind("rm"))


def _refuse_alone(table: Table, compared: Bools) -> None:
    if compared.any():
        whole, _ = table.groups
        grouping = Grouping(np.where(compared, whole.codes, -1), whole.count)
        alone = grouping.spread(grouping.sizes.astype(float)) == 1
        if not alone.any():
            return
        table.refuse(
            alone, lambda item: f"alone in group {item.group[:60]!r}: nothing to compare it with"
        )
        del table.groups
