"""What the page shows of one record besides its story, from its request and its score."""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rewardfleet.wire.score import figures_of

#: Width and height of the drawing of a curve, in units of its SVG.
CURVE_WIDTH, CURVE_HEIGHT = 640, 120


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
    return {
        "figures": figures_of({**details, "components": record["components"]}),
        "references": details.get("references", ()),
        "curve": points,
        "lines": _lines(points),
        "texts": {
            name: json.dumps(part, indent=1, ensure_ascii=False)
            for name, part in parts.items()
            if part
        },
    }


def _lines(points: Sequence[tuple[int, float | None]]) -> list[str]:
    last = max((frame for frame, _ in points), default=0) or 1
    return [
        " ".join(
            f"{frame / last * CURVE_WIDTH:.1f},{(1 - value) * CURVE_HEIGHT:.1f}"
            for frame, value in part
            if value is not None
        )
        for is_known, part in itertools.groupby(points, lambda each: each[1] is not None)
        if is_known
    ]
