"""What was scored, in few words: counts, quantiles, the slowest items, and suspicions."""

import heapq
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .records import Record

#: How many items are named.
_NAMED = 5
_QUANTILES = (0, 10, 25, 50, 75, 90, 100)


@dataclass
class Summary:
    """Counts of records. It keeps eight bytes for each."""

    rows: int = 0  #: of the input
    statuses: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    scores: "array[float]" = field(default_factory=lambda: array("d"))
    total: float = 0.0  #: of the scores
    cached: int = 0
    suspicious: int = 0
    #: The items with suspicions that came first, and what is suspicious.
    suspicions: list[tuple[str, str]] = field(default_factory=list)
    #: The first failures of each kind: the row, negative, the place, and the reason.
    failures: dict[str, list[tuple[int, str, str]]] = field(default_factory=dict)
    _slowest: list[tuple[float, int, str]] = field(default_factory=list)

    def add(self, record: Record) -> None:
        """Count a record."""
        self.rows += not record["completion"]
        self.statuses[record["status"]] += 1
        self.cached += bool(record["cached"])
        if (score := record["score"]) is not None:
            self.scores.append(score)
            self.total += score
        if (kind := record["error_kind"]) is not None:
            self.errors[kind] += 1
            failure = -record["row"], record["place"], record["error_detail"]
            _keep_largest(self.failures.setdefault(kind, []), failure)
        if found := record.get("suspicions"):
            self.suspicious += 1
            if len(self.suspicions) < _NAMED:
                self.suspicions.append((record["place"], "; ".join(found)))
        slow = record["timing_ms_total"] or 0.0, -record["row"], record["place"]
        _keep_largest(self._slowest, slow)

    @property
    def items(self) -> int:
        """How many records there are."""
        return sum(self.statuses.values())

    @property
    def missing(self) -> int:
        """How many of them have no score."""
        return self.items - self.statuses["ok"]

    @property
    def mean(self) -> float | None:
        """The mean of the scores; None if there are none."""
        return self.total / len(self.scores) if self.scores else None

    def lines(self) -> list[str]:
        """Return the summary as lines of text."""
        counts = ", ".join(f"{name} {count:,}" for name, count in sorted(self.statuses.items()))
        lines = [f"{self.items:,} items: {counts or 'none'}; from the cache {self.cached:,}"]
        if self.scores:
            values = np.percentile(self.scores, _QUANTILES)
            shown = "  ".join(
                f"p{at} {value:.4g}" for at, value in zip(_QUANTILES, values, strict=True)
            )
            lines += [f"scores: mean {self.mean:.4g}  {shown}"]
        for kind, count in self.errors.most_common():
            lines += [f"{kind}: {count:,}"]
            first = sorted(self.failures[kind], reverse=True)
            lines += [f"  {place}: {reason}" for _, place, reason in first]
        slowest = [each for each in sorted(self._slowest, reverse=True) if each[0] > 0]
        lines += [f"slow: {time:,.0f} ms  {place}" for time, _, place in slowest]
        if self.suspicious:
            lines += [f"suspicions: {self.suspicious:,} items"]
            lines += [f"  {place}: {text}" for place, text in self.suspicions]
        return lines


def _keep_largest(heap: list[Any], item: Any) -> None:
    heapq.heappush(heap, item)
    if len(heap) > _NAMED:
        heapq.heappop(heap)
