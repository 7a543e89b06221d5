"""What became of the requests."""

from array import array
from collections import Counter, defaultdict
from typing import Any

import numpy as np
from pydantic import BaseModel, ValidationError

from rewardfleet.commands.index import printable
from rewardfleet.wire.errors import ErrorKind

from .requests import LoadRequest

#: What became of requests that were answered. All other kinds are failures.
SCORED, CACHED, ABSTAINED = ANSWERED = ("scored", "cached", "abstained")
#: A request that got no answer in time has taken at least as long as it was waited for. Without it,
#: latencies would be better the more requests time out. Other failures are not part of them.
TIMEOUT, WRONG_SCORE = "no answer in time", "wrong score"
_WITH_LATENCY = {*ANSWERED, TIMEOUT, WRONG_SCORE}
#: All services together.
ALL = "all"
#: The quantiles that are reported, by name.
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}


class _LoadAnswer(BaseModel):
    """The fields of a score, a batch or a problem that matter here."""

    status: str | int | None = None
    score: float | None = None
    cached: bool = False
    error: "_LoadAnswer | None" = None
    results: "list[_LoadAnswer] | None" = None
    kind: str = ""
    detail: str = ""


def outcome_of(request: LoadRequest, status: int, body: bytes) -> tuple[str, str]:
    """Return what an answer means: one of `ANSWERED` or a kind of failure, and a message."""
    try:
        answer = _LoadAnswer.model_validate_json(body)
    except ValidationError:  # of a proxy
        return f"HTTP {status}", "not an answer of rewardfleet"
    if status != 200:
        return answer.kind if answer.kind in set(ErrorKind) else f"HTTP {status}", answer.detail
    scores = [answer] if answer.results is None else answer.results
    for each in scores:
        if each.error is not None:
            return each.error.kind, each.error.detail
        if each.status == "abstained":
            return ABSTAINED, ""
        if each.score is None:
            return "invalid answer", "there is no score"
        if request.score is not None and abs(each.score - request.score) > 1e-6:
            return WRONG_SCORE, f"{each.score:g} instead of {request.score:g}"
    if not scores:
        return "invalid answer", "there is no score"
    return CACHED if all(each.cached for each in scores) else SCORED, ""


class LoadResults:
    """What became of the requests of a run.

    Attributes:
        kinds: How many requests there are of each kind, by service, and of `ALL`.
        examples: The first message of each kind of failure, by service and kind.
        latencies: By service, seconds from when a request was due until it was answered, or until
            it was given up because there was no answer in time.
        lateness: Seconds from when a request was due until it was sent, part of its latency.
        sending_s: How long requests were sent.
        most_in_flight: The most requests that were sent and not answered yet.
        interrupted: Whether the run was ended early.
    """

    def __init__(self) -> None:
        self.kinds: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.examples: dict[tuple[str, str], str] = {}
        self.latencies: defaultdict[str, array[float]] = defaultdict(lambda: array("d"))
        self.lateness = array("d")
        self.sending_s = 0.0
        self.most_in_flight = 0
        self.interrupted = False

    def add(self, service: str, kind: str, detail: str, seconds: float) -> None:
        """Count a request that has ended, `seconds` after it was due."""
        for name in (service, ALL):
            self.kinds[name][kind] += 1
            if kind not in ANSWERED:
                self.examples.setdefault((name, kind), printable(detail))
            if kind in _WITH_LATENCY:
                self.latencies[name].append(seconds)

    def of_service(self, name: str) -> dict[str, Any]:
        """Return the part of the report about one service; times are in seconds."""
        kinds = self.kinds[name]
        errors = {kind: count for kind, count in kinds.most_common() if kind not in ANSWERED}
        return {
            "due": sum(kinds.values()),
            "scored": kinds[SCORED] + kinds[CACHED],
            "cached": kinds[CACHED],
            "abstained": kinds[ABSTAINED],
            "errors": errors,
            "examples": {kind: self.examples[name, kind] for kind in errors},
            "latency_s": quantiles(self.latencies[name]),
        }


def quantiles(seconds: "array[float]") -> dict[str, float | None]:
    """Return the quantiles of durations; each is one of them, or None if there are none."""
    if not seconds:
        return dict.fromkeys(QUANTILES)
    found = np.quantile(seconds, list(QUANTILES.values()), method="inverted_cdf")
    return dict(zip(QUANTILES, map(float, found), strict=True))
