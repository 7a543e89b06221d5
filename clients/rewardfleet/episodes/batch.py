"""The episodes of a batch: access to their fields, without any rules.

In shapes, N is the number of episodes.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any, get_args

import numpy as np

from rewardfleet.wire.episode import RewardKind
from rewardfleet.wire.errors import InvalidRequest, RewardFleetError
from rewardfleet.wire.score import Score

from .arrays import Bools, Floats
from .groups import Grouping
from .motion import commanded_path

#: Scalar fields.
NUMBERS = ("success", "steps", "max_steps", "episode_reward", "reward_model_score", "temperature")

_KIND_CODES = {kind: code for code, kind in enumerate(get_args(RewardKind))}


class Batch:
    """The episodes of a batch: their fields as arrays, each made when it is first used.

    `validate_batch` says which are valid. Nothing changes after that.

    Args:
        items: N objects with the attributes of `EpisodeRequest`; their lists may be arrays.
        invalid: By index: why an item is already known to be invalid.
    """

    grouping: Grouping  #: groups of the valid episodes
    group_names: list[str]  #: [G]

    def __init__(self, items: Sequence[Any], invalid: Mapping[int, RewardFleetError]) -> None:
        self.items = items
        self.ok: Bools = np.ones(len(items), bool)  #: [N], whether an episode is valid
        #: By index: why an episode has no score; None if the judge of its video abstained, it is
        #: masked, or no other of its group has a score to compare it with.
        self.reasons: dict[int, RewardFleetError | None] = dict(invalid)
        self.ok[list(self.reasons)] = False
        #: Groups with a member that is valid, and has no score.
        self.unscored_groups: set[str | None] = set()
        self._kinds = np.array([_KIND_CODES[item.kind] for item in items], np.int8)
        self._numbers: dict[str, Floats] = {}
        self._arrays: dict[tuple[str, int], Floats] = {}

    def __len__(self) -> int:
        return len(self.items)

    def refuse_all(self, mask: Bools, reason: str) -> None:
        """Refuse the episodes in `mask`, [N], that are valid so far."""
        for index in np.flatnonzero(mask & self.ok).tolist():
            self.refuse(index, reason)

    def refuse(self, index: int, reason: str) -> None:
        """Refuse an episode."""
        name = str(self.items[index].uid)[:60]
        self.reasons[index] = InvalidRequest(f"item {index} (uid {name!r}): {reason}")
        self.ok[index] = False

    def leave_out(self, index: int, error: RewardFleetError | None) -> None:
        """Leave out an episode that is valid, and has no score."""
        self.reasons[index] = error
        self.ok[index] = False
        self.unscored_groups.add(self.items[index].group)

    def group(self) -> None:
        """Group the valid episodes."""
        items = enumerate(self.items)
        names = [None if index in self.reasons else item.group for index, item in items]
        self.grouping, self.group_names = Grouping.by_name(names)

    @property
    def kinds(self) -> list[RewardKind]:
        """The kinds that occur."""
        present = set(self._kinds.tolist())
        return [kind for kind, code in _KIND_CODES.items() if code in present]

    def is_kind(self, kind: str) -> Bools:
        """Return whether an episode is of a kind of `RewardKind`, [N]."""
        same: Bools = self._kinds == _KIND_CODES[kind]
        return same

    def number(self, name: str) -> Floats:
        """Return a scalar field, or the number of `visual_success`, [N]; NaN if it is missing."""
        if name not in self._numbers:
            get = visual_score if name == "visual_success" else attrgetter(name)
            self._numbers[name] = np.array(list(map(get, self.items)), float)
        return self._numbers[name]

    def has(self, name: str) -> Bools:
        """Return whether a field is given, [N]."""
        if name in NUMBERS:
            return np.asarray(~np.isnan(self.number(name)))
        return np.array([value is not None for value in map(attrgetter(name), self.items)], bool)

    def array(self, index: int, name: str) -> Floats:
        """Return a list field of one episode.

        Raises:
            ValueError: Its rows differ in length.
        """
        if (name, index) not in self._arrays:
            self._arrays[name, index] = np.asarray(getattr(self.items[index], name), float)
        return self._arrays[name, index]

    def trajectory(self, index: int, source: str) -> Floats:
        """Return the `actions` of one episode, [T, A], or its `path`, [T, D].

        An episode without a measured path has the one that its actions command.
        """
        if source == "path" and self.items[index].path is None:
            return commanded_path(self.array(index, "actions"))
        return self.array(index, source)

    @cached_property
    def step_fraction(self) -> Floats:
        """steps/max_steps, [N]; NaN if one is missing."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.number("steps") / self.number("max_steps")

    @cached_property
    def is_normalizable(self) -> Bools:
        """Valid episodes except those of the kind `reward_model`, which are not normalized, [N]."""
        return self.ok & ~self.is_kind("reward_model")


def visual_score(item: Any) -> float | None:
    """Return the number of an item's `visual_success`, which may be a video service's response."""
    value = item.visual_success
    if isinstance(value, dict):
        value = value.get("score")
    elif isinstance(value, Score):
        value = value.score
    return value if isinstance(value, int | float) else None
