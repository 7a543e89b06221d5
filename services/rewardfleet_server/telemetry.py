"""Prometheus metrics, and one log line per request.

Metric labels take their values from short, fixed lists (service, stage, status, kind of error,
loaded backends). A run, task or path never becomes a label.
"""

import logging
import re
import time
import uuid
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import accumulate, count

import numpy as np
from numpy.typing import NDArray
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from rewardfleet.wire.errors import ErrorKind
from rewardfleet.wire.score import Score, Status, Timing

from .admission import Admission

log = logging.getLogger("rewardfleet_server.request")

disable_created_metrics()  # type: ignore[no-untyped-call] # upstream; they double the series

#: Bucket bounds in seconds, from a cache hit to a long chain of thought.
_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_STAGES = ("queue", "decode", "backend", "total")
_SCORE_BOUNDS = tuple(tenth / 10 for tenth in range(11))

#: Request ids that are taken over from callers; any other is replaced.
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

#: The request being answered, for every log line that is written on its behalf.
REQUEST_ID: ContextVar[str] = ContextVar("request_id")

#: Request ids are unique: a random name for this process, and a number.
_PROCESS_ID = uuid.uuid4().hex[:16]
_NUMBERS = count(1)


def new_request_id(header: str | None = None) -> str:
    """Return the caller's `X-Request-Id` if it is safe to log, else a new id."""
    if header is not None and _REQUEST_ID.fullmatch(header):
        return header
    return f"{_PROCESS_ID}-{next(_NUMBERS)}"


@dataclass
class RequestContext:
    """One request: its identity, its deadline, and what its log line reports.

    Attributes:
        path: The route, e.g. `/score`.
        request_id: Given by the caller, or new.
        timeout_s: Seconds from `started` to the deadline; None for no deadline.
        call_timeout_s: Seconds of the caller's complete call, of which this request may be a
            later attempt; None for no limit. What a program may use depends on it.
        started: Time of the event loop's clock at which its headers arrived.
        backends: The backends that scored its items.
        items: How many items have a result.
        cached: How many of them came from the cache.
        parameters: The parts of its path in braces, e.g. `run` of `/budgets/{run}`.
    """

    path: str = ""
    request_id: str = field(default_factory=new_request_id)
    timeout_s: float | None = None
    call_timeout_s: float | None = None
    started: float = field(default_factory=time.monotonic)
    backends: set[str] = field(default_factory=set)
    items: int = 0
    cached: int = 0
    parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def deadline(self) -> float | None:
        """Time of the event loop's clock by which the request must be answered."""
        return None if self.timeout_s is None else self.started + self.timeout_s

    @property
    def elapsed_ms(self) -> float:
        """Milliseconds since the request's headers arrived."""
        return (time.monotonic() - self.started) * 1000


class ScoreHistogram(Collector):
    """The metric `rewardfleet_score`, which can observe a whole batch at once."""

    name = "rewardfleet_score"
    documentation = "Scores, in tenths from 0 to 1."

    def __init__(self, service: str) -> None:
        self._service = service
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def observe(self, backend: str, score: float) -> None:
        """Count one finite score."""
        self._counts_of(backend)[bisect_left(_SCORE_BOUNDS, score)] += 1
        self._sums[backend] += score

    def observe_all(self, backend: str, scores: NDArray[np.float64]) -> None:
        """Count scores, `[N]`, all finite."""
        counts = self._counts_of(backend)
        places = np.searchsorted(_SCORE_BOUNDS, scores)
        for place, added in enumerate(np.bincount(places, minlength=len(counts)).tolist()):
            counts[place] += added
        self._sums[backend] += float(scores.sum())

    def _counts_of(self, backend: str) -> list[int]:
        self._sums.setdefault(backend, 0.0)
        return self._counts.setdefault(backend, [0] * (len(_SCORE_BOUNDS) + 1))

    def collect(self) -> Iterable[HistogramMetricFamily]:
        labels = ("service", "backend")
        family = HistogramMetricFamily(self.name, self.documentation, labels=labels)
        bounds = [*map(str, _SCORE_BOUNDS), "+Inf"]
        for backend, counts in self._counts.items():
            buckets = list(zip(bounds, accumulate(counts), strict=True))
            family.add_metric([self._service, backend], buckets, self._sums[backend])
        yield family


@dataclass(frozen=True)
class Metric:
    """A metric as the documentation lists it."""

    name: str
    kind: str
    labels: Sequence[str]
    documentation: str


class Telemetry:
    """The metrics of one service. Each instance has a registry of its own.

    Args:
        service: The value of the label `service`.
        admission: Its counts are read whenever metrics are scraped.
        collectors: Metrics of the service itself.

    Attributes:
        metrics: All metrics of this class, for the documentation.
    """

    def __init__(
        self, service: str, admission: Admission, collectors: Sequence[Collector] = ()
    ) -> None:
        self._service = service
        self.metrics: list[Metric] = []
        self._registry = CollectorRegistry()
        for collector in collectors:
            self._registry.register(collector)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        self._requests = self._counter(
            "rewardfleet_requests_total",
            "Requests answered, by HTTP status and kind of error (empty: none).",
            "status",
            "kind",
        )
        self._results = self._counter(
            "rewardfleet_results_total",
            "Items with a result: ok, abstained or error. A single request is one item.",
            "backend",
            "status",
        )
        self._scores = ScoreHistogram(service)
        self._registry.register(self._scores)
        self._describe(self._scores.name, "histogram", ["backend"], self._scores.documentation)
        self._stages = Histogram(
            name := "rewardfleet_stage_duration_seconds",
            about := "Time of an item by stage: queue, decode, backend, total.",
            ("service", "stage"),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._describe(name, "histogram", ["stage"], about)
        self._lookups = self._counter(
            "rewardfleet_cache_lookups_total", "Cache lookups, by result: hit or miss.", "result"
        )
        self._audits = self._counter(
            "rewardfleet_cache_audits_total",
            "Cached scores that were computed again, by result: agree or disagree.",
            "result",
        )
        gauges = {
            "rewardfleet_admitted_requests": "Requests admitted and not answered yet.",
            "rewardfleet_in_flight_items": "Items at the backend; --max-in-flight is the limit.",
            "rewardfleet_queue_depth": "Items that wait for the backend; --max-queue-depth.",
        }
        for (gauge, text), attribute in zip(
            gauges.items(), ("admitted", "in_flight", "queue_depth"), strict=True
        ):
            self._gauge(gauge, text, admission, attribute)

    def _counter(self, name: str, documentation: str, *labels: str) -> Counter:
        self._describe(name, "counter", labels, documentation)
        return Counter(name, documentation, ("service", *labels), registry=self._registry)

    def _gauge(self, name: str, documentation: str, source: object, attribute: str) -> None:
        self._describe(name, "gauge", (), documentation)
        gauge = Gauge(name, documentation, ("service",), registry=self._registry)
        gauge.labels(self._service).set_function(lambda: getattr(source, attribute))

    def _describe(self, name: str, kind: str, labels: Sequence[str], documentation: str) -> None:
        self.metrics.append(Metric(name, kind, ("service", *labels), documentation))

    def record_lookup(self, *, hit: bool) -> None:
        """Count one cache lookup."""
        self._lookups.labels(self._service, "hit" if hit else "miss").inc()

    def record_audit(self, *, agrees: bool) -> None:
        """Count one audit."""
        self._audits.labels(self._service, "agree" if agrees else "disagree").inc()

    def record_score(self, context: RequestContext, score: Score) -> None:
        """Count the result of one item, and the time of its stages."""
        context.items += 1
        context.cached += score.cached
        if score.backend:
            context.backends.add(score.backend)
        self._results.labels(self._service, score.backend, score.status).inc()
        if score.score is not None:
            self._scores.observe(score.backend, score.score)
        is_computed = not score.cached and score.status is not Status.ERROR
        self._observe_stages(score.timing_ms, _STAGES if is_computed else ("total",))

    def record_failure(self, context: RequestContext, backend: str = "") -> None:
        """Count one item, or a batch that is scored as a whole, that failed.

        Args:
            context: The request.
            backend: Which backend failed; empty if none was chosen yet.
        """
        context.items += 1
        self._results.labels(self._service, backend, Status.ERROR).inc()
        self._observe_stages(Timing(total=context.elapsed_ms), ("total",))

    def _observe_stages(self, timing: Timing, names: Sequence[str]) -> None:
        for name in names:
            self._stages.labels(self._service, name).observe(getattr(timing, name) / 1000)

    def record_batch(
        self,
        context: RequestContext,
        backend: str,
        statuses: Mapping[Status, int],
        scores: NDArray[np.float64],
        timing: Timing,
    ) -> None:
        """Count the items of a batch that was scored as a whole, and its stages once.

        Args:
            context: The request.
            backend: Which backend scored it.
            statuses: How many items have each status.
            scores: The scores of those that are `ok`, `[N]`.
            timing: The stages of the batch.
        """
        context.items += sum(statuses.values())
        context.backends.add(backend)
        for status, items in statuses.items():
            self._results.labels(self._service, backend, status).inc(items)
        self._scores.observe_all(backend, scores)
        self._observe_stages(timing, _STAGES)

    def record_response(
        self, context: RequestContext, status: int, kind: ErrorKind | None, detail: str = ""
    ) -> None:
        """Count one request and write its log line."""
        self._requests.labels(self._service, str(status), kind or "").inc()
        log.log(
            logging.INFO if status < 500 else logging.WARNING,
            "request",
            extra={
                "path": context.path,
                "status": status,
                "kind": kind,
                "detail": detail or None,
                "backends": sorted(context.backends),
                "items": context.items,
                "cached": context.cached,
                "total_ms": round(context.elapsed_ms, 3),
            },
        )

    def exposition(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self._registry)
