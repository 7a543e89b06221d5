"""What became of the requests, in constant memory."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from .latency import Latencies
from .requests import LoadRequest

#: The most spans of time that results are counted in.
_MAX_WINDOWS = 120
_MAX_SHOWN = 200

#: Failures of requests without an answer of a service. All other kinds are those of services.
TIMEOUT, UNREACHABLE, DISCONNECTED = "no answer in time", "cannot be reached", "disconnected"
NOT_SENT, UNFINISHED = "not sent: too many in flight", "unfinished"
WRONG_SCORE = "wrong score"
#: Kinds beyond these are counted together: a broken server may answer with any.
_MAX_KINDS, OTHER = 50, "other kinds"


class _Problem(msgspec.Struct):
    kind: str
    detail: str = ""


class _Answer(msgspec.Struct):
    """The fields of a score, a batch or a problem that matter here."""

    status: str | int | None = None
    score: float | None = None
    cached: bool = False
    error: _Problem | None = None
    results: list["_Answer"] | None = None
    kind: str | None = None
    detail: str = ""


#: A request that got no answer in time has taken at least as long as it was waited for. Without it,
#: latencies would be better the more requests time out.
_WITH_LATENCY = {None, TIMEOUT, WRONG_SCORE}

_DECODER = msgspec.json.Decoder(_Answer)


@dataclass(frozen=True)
class Outcome:
    """What became of a request.

    Attributes:
        error: The kind of its failure; None if it has a score, or all of its items have.
        detail: The message of the failure.
        cached: Whether the score came from a cache.
        abstained: Whether the judge answered without a score.
    """

    error: str | None = None
    detail: str = ""
    cached: bool = False
    abstained: bool = False


def outcome_of(request: LoadRequest, status: int, body: bytes) -> Outcome:
    """Return what an answer means."""
    try:
        answer = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):  # of a proxy
        return Outcome(f"HTTP {status}", "not an answer of rewardfleet")
    if status != 200:
        return Outcome(answer.kind or f"HTTP {status}", answer.detail)
    return _outcome(request, [answer] if answer.results is None else answer.results)


def _outcome(request: LoadRequest, scores: Sequence[_Answer]) -> Outcome:
    if not scores:
        return Outcome("invalid answer", "there is no score")
    for score in scores:
        if score.error is not None:
            return Outcome(score.error.kind, score.error.detail)
        if score.status == "abstained":
            return Outcome(abstained=True)
        if score.score is None:
            return Outcome("invalid answer", "there is no score")
        if request.score is not None and abs(score.score - request.score) > 1e-6:
            return Outcome(WRONG_SCORE, f"{score.score:g} instead of {request.score:g}")
    return Outcome(cached=all(score.cached for score in scores))


@dataclass
class Tally:
    """The requests of a service.

    Attributes:
        due: Requests that were due.
        scored: Requests that got a score, or a score for each item.
        cached: Those of them that came from a cache.
        abstained: Requests that were answered without a score.
        errors: Requests without a score, by kind.
        examples: The message of the first failure of each kind.
        latencies: Seconds from when a request was due until it was answered, or until it was given
            up because there was no answer in time. Other failures are left out.
    """

    due: int = 0
    scored: int = 0
    cached: int = 0
    abstained: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    latencies: Latencies = field(default_factory=Latencies)

    def add(self, outcome: Outcome, seconds: float) -> None:
        """Count a request that has ended."""
        if outcome.abstained:
            self.abstained += 1
        elif outcome.error is None:
            self.scored += 1
            self.cached += outcome.cached
        else:
            kind = "".join(each for each in outcome.error[:_MAX_SHOWN] if each.isprintable())
            if kind not in self.errors and len(self.errors) >= _MAX_KINDS:
                kind = OTHER
            self.errors[kind] += 1
            self.examples.setdefault(kind, " ".join(outcome.detail.split())[:_MAX_SHOWN])
        if outcome.error in _WITH_LATENCY:
            self.latencies.add(seconds)

    def merge(self, other: "Tally") -> None:
        """Add all requests of another one."""
        self.due += other.due
        self.scored += other.scored
        self.cached += other.cached
        self.abstained += other.abstained
        self.errors += other.errors
        self.examples = {**other.examples, **self.examples}
        self.latencies.merge(other.latencies)


@dataclass
class Window:
    """The requests that were due in a span of time."""

    latencies: Latencies = field(default_factory=Latencies)
    due: int = 0
    errors: int = 0


class Results:
    """The requests of a run.

    Args:
        duration_s: How long requests are sent.

    Attributes:
        services: By service.
        windows: In spans of `window_s`, in order of the time at which requests were due.
        window_s: Seconds.
        lateness: Seconds from when a request was due until the generator began to send it, which
            are part of its latency.
        sending_s: How long requests were sent.
        most_in_flight: The most requests that were sent and not answered yet.
        interrupted: Whether the run was ended early.
    """

    def __init__(self, duration_s: float) -> None:
        self.services: dict[str, Tally] = {}
        self.window_s = max(duration_s / _MAX_WINDOWS, 1.0)
        self.windows: list[Window] = []
        self.lateness = Latencies()
        self.sending_s = 0.0
        self.most_in_flight = 0
        self.interrupted = False

    def add_due(self, service: str, due_s: float) -> None:
        """Count a request that is due, `due_s` after the start."""
        self.services.setdefault(service, Tally()).due += 1
        self._window(due_s).due += 1

    def add(self, service: str, due_s: float, outcome: Outcome, seconds: float) -> None:
        """Count the outcome of a request, `seconds` after it was due."""
        self.services[service].add(outcome, seconds)
        window = self._window(due_s)
        if outcome.error in _WITH_LATENCY:
            window.latencies.add(seconds)
        window.errors += outcome.error is not None

    def _window(self, due_s: float) -> Window:
        place = int(due_s / self.window_s)
        while len(self.windows) <= place:
            self.windows.append(Window())
        return self.windows[place]

    @property
    def total(self) -> Tally:
        """The requests of all services."""
        total = Tally()
        for tally in self.services.values():
            total.merge(tally)
        return total
