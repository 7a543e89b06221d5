"""What the page shows of one record besides its story: its details, and the group of an episode."""

import itertools
import json
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from rewardfleet.wire.score import figures_of

#: Width and height of the drawing of a curve, in units of its SVG.
CURVE_WIDTH, CURVE_HEIGHT = 640, 120
#: Why a filter drops an episode, by its `drop_reason`; see `FilterOptions`.
_RULES = {
    "all_equal": "all rewards of the group are equal: nothing can be learned from it",
    "alone": "no other member of the group has a score",
    "accuracy": "the success rate of the group is outside of `accuracy_bounds` {accuracy_bounds}",
    "not_selected": "`select: {select}` keeps {select_count} members of a group",
}


def details_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is shown of a record, as `Records.record` returns it.

    `curve` has the last frame of each prefix and its value; `lines` has it as points of SVG
    polylines, interrupted where it is null. `references` are each a `NearestReference`.
    """
    parts = {
        name: json.loads(record[name] or "{}") for name in ("request", "details", "provenance")
    }
    details = parts["details"]
    curve = details.get("curve") or {}
    points = list(zip(curve.get("frames", ()), curve.get("values", ()), strict=False))
    last = max((frame for frame, _ in points), default=0) or 1
    lines = [
        " ".join(
            f"{frame / last * CURVE_WIDTH:.1f},{(1 - value) * CURVE_HEIGHT:.1f}"
            for frame, value in part
        )
        for is_known, part in itertools.groupby(points, lambda each: each[1] is not None)
        if is_known
    ]
    shown = {name: part for name, part in parts.items() if part}
    return {
        "figures": figures_of({**details, "components": record["components"]}),
        "references": details.get("references", ()),
        "curve": points,
        "lines": lines,
        "texts": {n: json.dumps(part, indent=1, ensure_ascii=False) for n, part in shown.items()},
    }


def group_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the group that records of episodes are; None if there are none.

    It has its `name`, how rewards became scores (`normalize`), its `members`, how many of them are
    `kept` for training, and `mean` and `std` (of a sample) of the rewards, None if there are none.
    """
    members, name, normalize = [], "", "none"
    for row in rows:
        request = json.loads(row["request"] or "{}")
        options = request.get("options") or {}
        name, normalize = row["episodes"], options.get("normalize", "none")
        members.append(_member(row, request, options.get("filter") or {}))
    if not members:
        return None
    rewards = [each["reward"] for each in members if each["reward"] is not None]
    return {
        "name": name,
        "normalize": normalize,
        "members": members,
        "kept": sum(each["is_kept"] for each in members),
        "mean": statistics.fmean(rewards) if rewards else None,
        "std": statistics.stdev(rewards) if len(rewards) > 1 else None,
    }


def _member(
    row: Mapping[str, Any], request: Mapping[str, Any], rules: Mapping[str, Any]
) -> dict[str, Any]:
    """Return an episode: its reward before normalization, and why it is not trained on, if so."""
    details = json.loads(row["details"] or "{}")
    reason = details.get("drop_reason")
    if reason in _RULES:
        given = {"accuracy_bounds": "", "select": "", "select_count": 4, **rules}
        reason = _RULES[reason].format(**given)
    elif row["status"] != "ok":
        reason = "the rollout has no valid outcome" if request.get("masked") else "it has no score"
    return {
        "row": row,
        **{name: request.get(name) for name in ("success", "steps", "max_steps")},
        "reward": figures_of({**details, "components": row["components"]}).get(
            "reward", row["score"]
        ),
        "is_kept": row["status"] == "ok" and details.get("keep", True),
        "reason": reason,
    }
