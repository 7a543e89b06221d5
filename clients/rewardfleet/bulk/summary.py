"""What was scored, in few words: counts, quantiles, the slowest items, and suspicions."""

import heapq
import json
import math
from array import array
from collections import Counter
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np

from rewardfleet.score_log.record import Record
from rewardfleet.story import cause_of
from rewardfleet.wire.score import reward_of

#: How many items are named.
_NAMED = 5
_QUANTILES = (0, 10, 25, 50, 75, 90, 100)


@dataclass
class Summary:
    """Counts of records. It keeps eight bytes for each."""

    rows: int = 0  #: of the input
    statuses: Counter[str] = field(default_factory=Counter)
    #: Items without a score, by status and cause, or kind of error.
    causes: Counter[str] = field(default_factory=Counter)
    rewards: "array[float]" = field(default_factory=lambda: array("d"))
    cached: int = 0
    suspicious: int = 0
    #: The items with suspicions that came first, and what is suspicious.
    suspicions: list[tuple[str, str]] = field(default_factory=list)
    #: The first reasons of each cause, with the row and the place of an item.
    _reasons: dict[str, dict[str, tuple[float, str]]] = field(default_factory=dict)
    _fixes: dict[str, str] = field(default_factory=dict)  #: by cause
    _slowest: list[tuple[float, int, str]] = field(default_factory=list)

    def add(self, record: Record) -> None:
        """Count a record."""
        self.rows += not record["completion"]
        self.statuses[record["status"]] += 1
        self.cached += bool(record["cached"])
        # Parsing takes longer than the rest.
        has_more = '"suspicions"' in record["details"] or record["service"] == "episode"
        details = json.loads(record["details"]) if has_more else {}
        score = {**details, "score": record["score"]}
        if (reward := reward_of(record["service"], score)) is not None:
            self.rewards.append(reward)
        else:
            self._add_missing(record)
        if found := details.get("suspicions"):
            self.suspicious += 1
            if len(self.suspicions) < _NAMED:
                self.suspicions.append((record["place"], "; ".join(found)))
        slow = record["timing_ms_total"] or 0.0, -record["row"], record["place"]
        heapq.heappush(self._slowest, slow)
        if len(self._slowest) > _NAMED:
            heapq.heappop(self._slowest)

    def _add_missing(self, record: Record) -> None:
        """Count a record without a score, and keep why it has none."""
        name = record["error_kind"] or record["cause"]
        meaning, fix = cause_of(record["service"], {"cause": name})
        if record["status"] == "error":
            reason = record["error_detail"]
            fix = "-o FOLDER --retry-failed scores these again" if record["error_retryable"] else ""
        else:
            reason = json.loads(record["details"]).get("model_output") or meaning
        cause = f"{record['status']}, {name}"
        self.causes[cause] += 1
        self._fixes[cause] = fix
        first = self._reasons.setdefault(cause, {})
        first[reason] = min((record["row"], record["place"]), first.get(reason, (math.inf, "")))
        if len(first) > _NAMED:
            del first[max(first, key=first.__getitem__)]

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
        """The mean of the rewards; None if there are none."""
        return float(np.mean(self.rewards)) if self.rewards else None

    def lines(self) -> list[str]:
        """Return the summary as lines of text."""
        counts = ", ".join(f"{name} {count:,}" for name, count in sorted(self.statuses.items()))
        lines = [f"{self.items:,} items: {counts or 'none'}; from the cache {self.cached:,}"]
        if self.rewards:
            values = zip(_QUANTILES, np.percentile(self.rewards, _QUANTILES), strict=True)
            shown = "  ".join(f"p{at} {value:.4g}" for at, value in values)
            lines += [f"rewards: mean {self.mean:.4g}  {shown}"]
        for cause, count in self.causes.most_common():
            lines += [f"{cause}: {count:,}"]
            first = sorted(self._reasons[cause].items(), key=itemgetter(1))
            lines += [f"  {place}: {reason}" for reason, (_, place) in first]
            lines += [f"  fix: {self._fixes[cause]}"] if self._fixes[cause] else []
        slowest = [each for each in sorted(self._slowest, reverse=True) if each[0] > 0]
        lines += [f"slow: {time:,.0f} ms  {place}" for time, _, place in slowest]
        if self.suspicious:
            lines += [f"suspicions: {self.suspicious:,} items"]
            lines += [f"  {place}: {text}" for place, text in self.suspicions]
        return lines
