"""When a call that takes unusually long is sent to a second replica as well."""

import math
from collections import defaultdict, deque

#: How many of 100 requests may be sent a second time.
_PERCENT = 5
#: The most hedges that can be saved up, for a replica that stops answering.
_MAX_SAVED = 32
#: Answers of a kind that must be known before a call of that kind is hedged.
_MIN_ANSWERS = 20
#: No call is hedged before it has waited so many seconds.
_MIN_SECONDS = 0.1
_ANSWERS = 200
#: A call is hedged after this multiple of the time that 99% of its kind take.
_FACTOR = 2.0

#: A route, and the number of items in powers of two.
RequestKind = tuple[str, int]


class Hedging:
    """The budget of hedges, and the times from which their moment is derived."""

    def __init__(self) -> None:
        self.requests = 0  #: requests so far, without hedges
        self.hedges = 0  #: hedges so far; never more than `_PERCENT` of the requests
        self._saved = 0  # in hundredths of a hedge, so that sums are exact
        self._seconds: dict[RequestKind, deque[float]] = defaultdict(lambda: deque(maxlen=_ANSWERS))

    def count_request(self) -> None:
        """Count a request; it earns a share of a hedge."""
        self.requests += 1
        self._saved = min(self._saved + _PERCENT, 100 * _MAX_SAVED)

    def take(self) -> bool:
        """Take a hedge from the budget; return whether there was one."""
        if self._saved < 100:
            return False
        self._saved -= 100
        self.hedges += 1
        return True

    def record(self, kind: RequestKind, seconds: float) -> None:
        """Record the time of an answer."""
        self._seconds[kind].append(seconds)

    def delay(self, kind: RequestKind) -> float | None:
        """Return after how many seconds to hedge a call; None if too few answers are known."""
        seconds = self._seconds.get(kind, ())
        if len(seconds) < _MIN_ANSWERS:
            return None
        p99 = sorted(seconds)[math.ceil(0.99 * len(seconds)) - 1]
        return max(_MIN_SECONDS, _FACTOR * p99)


def kind_of(path: str, item_count: int) -> RequestKind:
    """Return the kind of a request, whose times are comparable."""
    return path, item_count.bit_length()
