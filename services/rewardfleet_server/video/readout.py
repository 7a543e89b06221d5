"""placeholder"""

from dataclasses import dataclass
from typing import Literal

ScoreMode = Literal["auto", "percentage", "unit"]


@dataclass(frozen=True)
class Reading:
    score: float | None
    reason: str


def read_score(text: str, *, mode: ScoreMode = "auto", truncated: bool = False) -> Reading:
    try:
        v = float(text.strip("%"))
    except ValueError:
        return Reading(None, "no number")
    if truncated:
        return Reading(None, "cut")
    s = v / 100 if mode != "unit" else v
    return Reading(s, "") if 0 <= s <= 1 else Reading(None, "range")
