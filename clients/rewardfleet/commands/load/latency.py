"""Durations in constant memory."""

import math

#: The first bucket ends here, in seconds, and each bucket ends 2 % after the one before.
_FIRST, _GROWTH = 1e-4, 1.02
#: So many buckets reach to more than an hour.
_BUCKETS = math.ceil(math.log(4000 / _FIRST) / math.log(_GROWTH)) + 1


class Latencies:
    """Durations, counted in buckets, so that quantiles are exact to 1 %.

    Attributes:
        counts: Durations in each bucket.
        count: The number of durations.
        longest: The longest one in seconds, exactly.
    """

    def __init__(self) -> None:
        self.counts = [0] * _BUCKETS
        self.count = 0
        self.longest = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration."""
        place = math.ceil(math.log(seconds / _FIRST) / math.log(_GROWTH)) if seconds > _FIRST else 0
        self.counts[min(place, _BUCKETS - 1)] += 1
        self.count += 1
        self.longest = max(self.longest, seconds)

    def merge(self, other: "Latencies") -> None:
        """Add all durations of another one."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.count += other.count
        self.longest = max(self.longest, other.longest)

    def quantile(self, q: float) -> float | None:
        """Return the duration in seconds that a share `q` of all does not exceed; None if empty."""
        rank, seen = max(math.ceil(q * self.count), 1), 0
        for place, count in enumerate(self.counts):
            seen += count
            if seen >= rank:
                middle: float = _FIRST * _GROWTH ** (place - 0.5)
                return min(middle, self.longest)
        return None

    def histogram(self, width: int) -> list[tuple[float, float, int]]:
        """Return (start, end, count) in seconds, with `width` buckets joined into each.

        The empty ones at both ends are left out.
        """
        joined = [
            (place, sum(self.counts[place : place + width])) for place in range(0, _BUCKETS, width)
        ]
        filled = [index for index, (_, count) in enumerate(joined) if count]
        if not filled:
            return []
        return [
            (_FIRST * _GROWTH ** (place - 1), _FIRST * _GROWTH ** (place - 1 + width), count)
            for place, count in joined[filled[0] : filled[-1] + 1]
        ]
