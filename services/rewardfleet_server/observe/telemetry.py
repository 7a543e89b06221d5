"""Prometheus metrics, and one log line per request.

Metric labels take their values from short, fixed lists (service, stage, status, kind of error,
loaded backends). A run, task or path never becomes a label.
"""

import logging
import math
import random
import re
import time
import uuid
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import accumulate, count
from typing import TypeVar

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
from rewardfleet_server.admission import Admission

from .tracing import SAMPLE, ItemSpan, Span

log = logging.getLogger("rewardfleet_server.request")

disable_created_metrics()  # type: ignore[no-untyped-call] # upstream; they double the series

MetricT = TypeVar("MetricT", Counter, Histogram)

#: Bucket bounds in seconds, from a cache hit to a long chain of thought. From a second on they are
#: closer, to compare a quantile with a deadline; 90 s is three quarters of the default one.
_SECONDS = (
    *(0.001, 0.003, 0.01, 0.03, 0.1, 0.3),
    *(1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 90.0, 120.0, 300.0, 600.0),
)
_STAGES = ("queue", "decode", "backend", "total")
#: Of the time of a complete batch: finer where training waits.
_BATCH_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
#: The route whose requests are batches.
_BATCH_PATH = "/score/batch"
#: The most samples of a request that have spans at the same time.
_MAX_TRACED = 64
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


@dataclass(slots=True)
class RequestContext:
    """One request: its identity, its deadline, and what its log line reports.

    Attributes:
        path: The route, e.g. `/score` or `/budgets/{run}`; empty if there is none.
        request_id: Given by the caller, or new.
        timeout_s: Seconds from `started` to the deadline; None for no deadline.
        call_timeout_s: Seconds of the caller's complete call, of which this request may be a
            later attempt; None for no limit. What a program may use depends on it.
        started: Time of the event loop's clock at which its headers arrived.
        backends: The backends that scored its items.
        items: How many items have a result.
        cached: How many of them came from the cache.
        failed: How many of them are errors.
        parameters: The parts of its path in braces, e.g. `run` of `/budgets/{run}`.
        stage: What happens to it while it has no samples: `line`, `body` or `response`.
        is_patient: Whether it waits in line rather than being refused.
        samples: Its samples in flight, in order.
        fallback_rewards: How many rewards its client replaced since it last reported them.
        span: Its span; None without traces.
    """

    path: str = ""
    request_id: str = field(default_factory=new_request_id)
    timeout_s: float | None = None
    call_timeout_s: float | None = None
    started: float = field(default_factory=time.monotonic)
    backends: set[str] = field(default_factory=set)
    items: int = 0
    cached: int = 0
    failed: int = 0
    parameters: Mapping[str, str] = field(default_factory=dict)
    stage: str = "body"
    is_patient: bool = False
    samples: dict[ItemSpan, None] = field(default_factory=dict)
    fallback_rewards: int = 0
    span: Span | None = None

    def begin(self, items: int = 1) -> ItemSpan:
        """Add a sample, or several that are scored as a whole, to those in flight.

        What the current task does from now on, and the tasks that it starts, is on its behalf.
        """
        has_span = self.span is not None and len(self.samples) < _MAX_TRACED
        sample = ItemSpan(items, self.span.child("score") if self.span and has_span else None)
        self.samples[sample] = None
        SAMPLE.set(sample)
        return sample

    def end(self, sample: ItemSpan) -> None:
        """Remove a sample from those in flight. If its span has not ended, it was cancelled."""
        del self.samples[sample]
        if sample.root is not None:
            sample.root.end("cancelled")

    @property
    def deadline(self) -> float | None:
        """Time of the event loop's clock by which the request must be answered."""
        return None if self.timeout_s is None else self.started + self.timeout_s

    @property
    def elapsed_ms(self) -> float:
        """Milliseconds since the request's headers arrived."""
        return (time.monotonic() - self.started) * 1000


class BulkHistogram(Collector):
    """A histogram that can observe the items of a whole batch at once.

    Args:
        name: Its name.
        documentation: What it counts.
        service: The value of the label `service`.
        label: The other label.
        bounds: Upper bounds of the buckets.
    """

    def __init__(
        self, name: str, documentation: str, service: str, label: str, bounds: Sequence[float]
    ) -> None:
        self.name = name
        self.documentation = documentation
        self._service = service
        self._label = label
        self._bounds = bounds
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def observe(self, label: str, value: float, items: int = 1) -> None:
        """Count a finite value, once for each item that has it."""
        self._counts_of(label)[bisect_left(self._bounds, value)] += items
        self._sums[label] += value * items

    def observe_all(self, label: str, values: NDArray[np.float64]) -> None:
        """Count values, `[N]`, all finite."""
        counts = self._counts_of(label)
        places = np.searchsorted(self._bounds, values)
        for place, added in enumerate(np.bincount(places, minlength=len(counts)).tolist()):
            counts[place] += added
        self._sums[label] += float(values.sum())

    def _counts_of(self, label: str) -> list[int]:
        self._sums.setdefault(label, 0.0)
        return self._counts.setdefault(label, [0] * (len(self._bounds) + 1))

    def collect(self) -> Iterable[HistogramMetricFamily]:
        labels = ("service", self._label)
        family = HistogramMetricFamily(self.name, self.documentation, labels=labels)
        bounds = [*map(str, self._bounds), "+Inf"]
        for label, counts in self._counts.items():
            buckets = list(zip(bounds, accumulate(counts), strict=True))
            family.add_metric([self._service, label], buckets, self._sums[label])
        yield family


class _Series(dict[tuple[str, ...], MetricT]):
    """The series of a metric by their labels. The metric's own `labels` is slow.

    Args:
        metric: Its first label is `service`.
        service: The value of that label.
    """

    def __init__(self, metric: MetricT, service: str) -> None:
        super().__init__()
        self._metric: MetricT = metric
        self._service = service

    def __missing__(self, labels: tuple[str, ...]) -> MetricT:
        series: MetricT = self._metric.labels(self._service, *labels)
        self[labels] = series
        return series


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
        deadline_s: Seconds for a request, `--deadline-s`.
        log_sample_rate: Share of the requests without a failure that are logged, 0 to 1.

    Attributes:
        service: The name of the service.
        metrics: All metrics of this class, for the documentation.
        deadline_s: Seconds for a request.
    """

    def __init__(
        self,
        service: str,
        admission: Admission,
        collectors: Sequence[Collector] = (),
        *,
        deadline_s: float = math.inf,
        log_sample_rate: float = 1.0,
    ) -> None:
        self._log_sample_rate = log_sample_rate
        self.service = service
        self.deadline_s = deadline_s
        self.metrics: list[Metric] = []
        self._registry = CollectorRegistry()
        for collector in collectors:
            self._registry.register(collector)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        requests = self._counter(
            "rewardfleet_requests_total",
            "Requests answered, by route, HTTP status and kind of error (empty: none).",
            "route",
            "status",
            "kind",
        )
        self._requests = _Series(requests, service)
        results = self._counter(
            "rewardfleet_results_total",
            "Items with a result: ok, abstained or error. A single request is one item.",
            "backend",
            "status",
        )
        self._results = _Series(results, service)
        self._scores = self._histogram(
            "rewardfleet_score", "Scores, in tenths from 0 to 1.", "backend", _SCORE_BOUNDS
        )
        self._stages = self._histogram(
            "rewardfleet_stage_duration_seconds",
            "Time of an item by stage: queue, decode, backend, total.",
            "stage",
            _SECONDS,
        )
        self._batches = Histogram(
            name := "rewardfleet_batch_duration_seconds",
            about := "Time from a batch's headers to its complete result, one per /score/batch.",
            ("service",),
            buckets=_BATCH_SECONDS,
            registry=self._registry,
        )
        self._describe(name, "histogram", (), about)
        self._fallbacks = self._counter(
            "rewardfleet_fallback_rewards_total",
            "Rewards that clients replaced by on_failure, reported by their next request.",
        )
        self._fallbacks.labels(service)  # 0 from the start, so that the first one is an increase
        lookups = self._counter(
            "rewardfleet_cache_lookups_total", "Cache lookups, by result: hit or miss.", "result"
        )
        self._lookups = _Series(lookups, service)
        self._audits = self._counter(
            "rewardfleet_cache_audits_total",
            "Cached scores that were computed again, by result: agree or disagree.",
            "result",
        )
        for result in ("agree", "disagree"):  # few are audited: the series are there before
            self._audits.labels(service, result)
        self._damaged_entries = self._counter(
            "rewardfleet_cache_damaged_entries_total",
            "Entries of the cache that were damaged, not signed with the key, or no score of their "
            "item. Their scores are computed again.",
        )
        gauges = {
            "rewardfleet_admitted_requests": "Requests admitted and not answered yet.",
            "rewardfleet_in_flight_items": "Items at the backend; --max-in-flight is the limit.",
            "rewardfleet_queue_depth": "Items that wait for the backend; --max-queue-depth.",
            "rewardfleet_waiting_requests": "Requests that wait in line.",
            "rewardfleet_max_in_flight_items": "The limit on items at the backend, as configured.",
            "rewardfleet_max_queue_depth": "The limit on items that wait, as configured.",
            "rewardfleet_max_waiting_requests": "The limit on requests in line, as configured.",
            "rewardfleet_oldest_request_seconds": "Age of the oldest request without an answer.",
        }
        attributes = (
            *("admitted", "in_flight", "queue_depth", "waiting"),
            *("max_in_flight", "max_queue_depth", "max_waiting", "oldest_seconds"),
        )
        for (gauge, text), attribute in zip(gauges.items(), attributes, strict=True):
            self._gauge(gauge, text, admission, attribute)
        self._gauge(
            "rewardfleet_deadline_seconds", "--deadline-s, as configured.", self, "deadline_s"
        )

    def _counter(self, name: str, documentation: str, *labels: str) -> Counter:
        self._describe(name, "counter", labels, documentation)
        return Counter(name, documentation, ("service", *labels), registry=self._registry)

    def _histogram(
        self, name: str, documentation: str, label: str, bounds: Sequence[float]
    ) -> BulkHistogram:
        self._describe(name, "histogram", (label,), documentation)
        histogram = BulkHistogram(name, documentation, self.service, label, bounds)
        self._registry.register(histogram)
        return histogram

    def _gauge(self, name: str, documentation: str, source: object, attribute: str) -> None:
        self._describe(name, "gauge", (), documentation)
        gauge = Gauge(name, documentation, ("service",), registry=self._registry)
        gauge.labels(self.service).set_function(lambda: getattr(source, attribute))

    def _describe(self, name: str, kind: str, labels: Sequence[str], documentation: str) -> None:
        self.metrics.append(Metric(name, kind, ("service", *labels), documentation))

    def record_lookup(self, *, hit: bool) -> None:
        """Count one cache lookup."""
        self._lookups["hit" if hit else "miss",].inc()

    def record_damaged_entry(self) -> None:
        """Count an entry of the cache that cannot be used."""
        self._damaged_entries.labels(self.service).inc()

    def record_audit(self, *, agrees: bool) -> None:
        """Count one audit."""
        self._audits.labels(self.service, "agree" if agrees else "disagree").inc()

    def record_score(self, context: RequestContext, score: Score, span: Span | None = None) -> None:
        """Count the result of one item and the time of its stages, and end its span."""
        context.items += 1
        context.cached += score.cached
        context.failed += score.status is Status.ERROR
        if score.backend:
            context.backends.add(score.backend)
        self._results[score.backend, score.status].inc()
        if score.score is not None:
            self._scores.observe(score.backend, score.score)
        is_computed = not score.cached and score.status is not Status.ERROR
        self._observe_stages(score.timing_ms, _STAGES if is_computed else ("total",))
        if span is not None:
            self._end_sample_span(span, score)

    def _end_sample_span(self, span: Span, score: Score) -> None:
        span.set(
            {
                "rewardfleet.backend": score.backend,
                "rewardfleet.status": score.status.value,
                "rewardfleet.cached": score.cached,
            }
        )
        if score.error is None:
            value = {} if score.score is None else {"gen_ai.evaluation.score.value": score.score}
            label = {"gen_ai.evaluation.score.label": score.status.value}
            name = {"gen_ai.evaluation.name": score.backend}
            span.add_event("gen_ai.evaluation.result", {**name, **label, **value})
        span.end(None if score.error is None else score.error.kind)

    def record_failure(self, context: RequestContext, backend: str = "") -> None:
        """Count one item, or a batch that is scored as a whole, that failed.

        Args:
            context: The request.
            backend: Which backend failed; empty if none was chosen yet.
        """
        context.items += 1
        context.failed += 1
        self._results[backend, Status.ERROR].inc()
        self._observe_stages(Timing(total=context.elapsed_ms), ("total",))

    def _observe_stages(self, timing: Timing, names: Sequence[str]) -> None:
        for name in names:
            self._stages.observe(name, getattr(timing, name) / 1000)

    def record_batch(
        self,
        context: RequestContext,
        backend: str,
        statuses: Mapping[Status, int],
        scores: NDArray[np.float64],
        timing: Timing,
    ) -> None:
        """Count the items of a batch that was scored in one computation, and their stages.

        Each item has waited and taken as long in total as the batch, and has an equal share of its
        time in the other stages.

        Args:
            context: The request.
            backend: Which backend scored it.
            statuses: How many items have each status.
            scores: The scores of those that are `ok`, `[N]`.
            timing: The stages of the batch.
        """
        items = sum(statuses.values())
        failed = statuses.get(Status.ERROR, 0)
        computed = items - failed
        context.items += items
        context.failed += failed
        context.backends.add(backend)
        for status, count_of in statuses.items():
            self._results[backend, status].inc(count_of)
        self._scores.observe_all(backend, scores)
        if items:
            self._stages.observe("total", timing.total / 1000, items)
        if computed:
            self._stages.observe("queue", timing.queue / 1000, computed)
            for name in ("decode", "backend"):
                self._stages.observe(name, getattr(timing, name) / 1000 / computed, computed)

    def record_response(
        self, context: RequestContext, status: int, kind: ErrorKind | None, detail: str = ""
    ) -> None:
        """Count one request, write its log line and end its span."""
        self._requests[context.path, str(status), kind or ""].inc()
        if status == 200:
            if context.path == _BATCH_PATH:
                self._batches.labels(self.service).observe(context.elapsed_ms / 1000)
            if context.fallback_rewards:
                self._fallbacks.labels(self.service).inc(context.fallback_rewards)
        if context.span is not None:
            self._end_span(context, context.span, status, kind)
        has_failed = status != 200 or context.failed > 0
        if not has_failed and random.random() >= self._log_sample_rate:  # noqa: S311 - no secret
            return
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
                "failed": context.failed,
                "total_ms": round(context.elapsed_ms, 3),
            },
        )

    def _end_span(
        self, context: RequestContext, span: Span, status: int, kind: ErrorKind | None
    ) -> None:
        span.set(
            {
                "http.response.status_code": status,
                "rewardfleet.service": self.service,
                "rewardfleet.request_id": context.request_id,
                "rewardfleet.items": context.items,
                "rewardfleet.cached": context.cached,
            }
        )
        span.end(kind or (None if status == 200 else "disconnected"))

    def exposition(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self._registry)
