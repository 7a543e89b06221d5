"""The group of an episode: the advantages of its members, and which of them are trained on."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rewardfleet.wire.score import figures_of

#: Why a filter drops an episode, by its `drop_reason`; see `FilterOptions`.
_RULES = {
    "all_equal": "all rewards of the group are equal: nothing can be learned from it",
    "alone": "no other member of the group has a score",
    "accuracy": "the success rate of the group is outside of `accuracy_bounds` {accuracy_bounds}",
    "not_selected": "`select: {select}` keeps {select_count} members of a group",
}


@dataclass(frozen=True)
class Member:
    """An episode of a group."""

    row: Mapping[str, Any]  #: as `Records.group` returns it
    success: Any
    steps: Any
    max_steps: Any
    reward: float | None  #: before normalization
    is_kept: bool
    reason: str  #: why it is not trained on


@dataclass(frozen=True)
class Group:
    """The members of a group that the log has."""

    name: str
    normalize: str  #: how rewards became scores
    members: Sequence[Member]
    mean: float | None  #: of the rewards
    std: float | None  #: of a sample, likewise

    @property
    def kept(self) -> int:
        """How many members are trained on."""
        return sum(each.is_kept for each in self.members)


def group_of(rows: Iterable[Mapping[str, Any]]) -> Group | None:
    """Return the group that records of episodes are; None if there are none."""
    members, name, normalize = [], "", "none"
    for row in rows:
        request = json.loads(row["request"] or "{}")
        options = request.get("options") or {}
        name, normalize = row["episodes"], options.get("normalize", "none")
        members.append(_member(row, request, options.get("filter") or {}))
    if not members:
        return None
    rewards = [each.reward for each in members if each.reward is not None]
    return Group(
        name,
        normalize,
        members,
        statistics.fmean(rewards) if rewards else None,
        statistics.stdev(rewards) if len(rewards) > 1 else None,
    )


def _member(row: Mapping[str, Any], request: Mapping[str, Any], rules: Mapping[str, Any]) -> Member:
    details = json.loads(row["details"] or "{}")
    reason = details.get("drop_reason")
    if reason in _RULES:
        given = {"accuracy_bounds": "", "select": "", "select_count": 4, **rules}
        reason = _RULES[reason].format(**given)
    elif row["status"] != "ok":
        reason = "the rollout has no valid outcome" if request.get("masked") else "it has no score"
    return Member(
        row,
        request.get("success"),
        request.get("steps"),
        request.get("max_steps"),
        figures_of({**details, "components": row["components"]}).get("reward", row["score"]),
        row["status"] == "ok" and details.get("keep", True),
        reason or "",
    )
