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
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import accumulate, count
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import prometheus_client as prometheus
from numpy.typing import NDArray
from prometheus_client import Counter, Gauge
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from rewardfleet.services import SERVICES
from rewardfleet.wire.errors import ErrorKind
from rewardfleet.wire.score import Score, Status, Timing
from rewardfleet_server.admission import Admission

from .tracing import SAMPLE, ItemSpan

if TYPE_CHECKING:
    from .otel import Span

log = logging.getLogger("rewardfleet_server.request")

prometheus.disable_created_metrics()  # type: ignore[no-untyped-call] # twice the series

#: Bucket bounds in seconds, from a cache hit to a long chain of thought. From a second on they are
#: closer, to compare a quantile with a deadline; 90 s is three quarters of the default one.
_SECONDS = (
    *(0.001, 0.003, 0.01, 0.03, 0.1, 0.3),
    *(1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 90.0, 120.0, 300.0, 600.0),
)
_STAGES = ("queue", "decode", "backend", "total")
#: Bucket bounds for the time of a complete batch in seconds: closer where training waits.
_BATCH_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
#: The most samples of a request that have spans.
_MAX_TRACED = 64

#: The kinds of failures that another replica may not have.
_FAILED_HERE = (ErrorKind.UNAVAILABLE, ErrorKind.BACKEND_FAILED, ErrorKind.INTERNAL)

#: Request ids that are taken over from callers; any other is replaced.
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

#: Request ids are unique: a random name for this process, and a number.
_PROCESS_ID = uuid.uuid4().hex[:16]
_NUMBERS = count(1)


def new_request_id(header: str | None = None) -> str:
    """Return the caller's `X-Request-Id` if it is safe to log, else a new id."""
    if header is not None and _REQUEST_ID.fullmatch(header):
        return header
    return f"{_PROCESS_ID}-{next(_NUMBERS)}"


@dataclass(slots=True, eq=False)
class RequestContext:
    """One request: its identity, its deadline, and what its log line reports."""

    path: str = ""  #: the route, e.g. `/score` or `/budgets/{run}`; empty if there is none
    request_id: str = field(default_factory=new_request_id)  #: given by the caller, or new
    #: Seconds from `started` to the deadline; None for no deadline.
    timeout_s: float | None = None
    #: Seconds of the caller's complete call, of which this request may be a later attempt; None for
    #: no limit. What a program may use depends on it.
    call_timeout_s: float | None = None
    #: Time of the event loop's clock at which its headers arrived.
    started: float = field(default_factory=time.monotonic)
    backends: set[str] = field(default_factory=set)  #: the backends that scored its items
    items: int = 0  #: how many items have a result
    cached: int = 0  #: how many of them came from the cache
    failed: int = 0  #: how many of them are errors
    failed_here: int = 0  #: how many of them failed for a reason of this process
    #: The parts of its path in braces, e.g. `run` of `/budgets/{run}`.
    parameters: Mapping[str, str] = field(default_factory=dict)
    stage: str = "body"  #: what happens to it while it has no samples: `line`, `body` or `response`
    is_patient: bool = False  #: whether it waits in line rather than being refused
    samples: dict[ItemSpan, None] = field(default_factory=dict)  #: its samples in flight, in order
    begun: int = 0  #: how many samples have begun
    body_bytes: int = 0  #: the bytes of its body
    #: The step of a run from which it has discarded all, as it began a new attempt.
    discarded_from: int | None = None
    draw: float | None = None  #: what decides, in [0, 1), whether its items are in a sample
    fallback_rewards: int = 0  #: how many rewards its client replaced since it last reported them
    #: Its span; None without traces.
    span: "Span | None" = None

    def begin(self, items: int = 1) -> ItemSpan:
        """Add a sample, or several that are scored as a whole, to those in flight.

        What the current task does from now on, and the tasks that it starts, is on its behalf.
        """
        has_span = self.span is not None and self.begun < _MAX_TRACED
        self.begun += 1
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


#: The request being answered: whose log lines these are, and whose turn it is.
REQUEST: ContextVar[RequestContext] = ContextVar("request")


class Metric(NamedTuple):
    """A metric as the documentation lists it."""

    name: str
    kind: str
    labels: Sequence[str]
    documentation: str


class BulkHistogram(Collector):
    """A histogram that can observe the items of a whole batch at once.

    The first label of its metric is `service`, and there may be another one.
    """

    def __init__(self, metric: Metric, service: str, bounds: Sequence[float]) -> None:
        self._metric, self._service, self._bounds = metric, service, bounds
        self._counts = defaultdict[tuple[str, ...], list[int]](lambda: [0] * (len(bounds) + 1))
        self._sums = defaultdict[tuple[str, ...], float](float)

    def observe(self, value: float, *labels: str, items: int = 1) -> None:
        """Count a finite value, once for each item that has it."""
        self._counts[labels][bisect_left(self._bounds, value)] += items
        self._sums[labels] += value * items

    def observe_all(self, values: NDArray[np.float64], *labels: str) -> None:
        """Count values, `[N]`, all finite."""
        counts = self._counts[labels]
        places = np.searchsorted(self._bounds, values)
        for place, added in enumerate(np.bincount(places, minlength=len(counts)).tolist()):
            counts[place] += added
        self._sums[labels] += float(values.sum())

    def collect(self) -> Iterable[HistogramMetricFamily]:
        name, _, labels, documentation = self._metric
        family = HistogramMetricFamily(name, documentation, labels=labels)
        bounds = [*map(str, self._bounds), "+Inf"]
        for own, counts in self._counts.items():
            buckets = list(zip(bounds, accumulate(counts), strict=True))
            family.add_metric([self._service, *own], buckets, self._sums[own])
        yield family


#: The gauges of `Admission`: an attribute, the name of the metric, and what it is.
_GAUGES = (
    ("admitted", "admitted_requests", "Requests admitted and not answered yet."),
    ("in_flight", "in_flight_items", "Items at the backend; max_in_flight is the limit."),
    ("queue_depth", "queue_depth", "Items that wait for the backend; max_queue_depth."),
    ("waiting", "waiting_requests", "Requests that wait in line."),
    ("max_in_flight", "max_in_flight_items", "The limit on items at the backend, as configured."),
    ("max_queue_depth", "max_queue_depth", "The limit on items that wait, as configured."),
    ("max_waiting", "max_waiting_requests", "The limit on requests in line."),
    ("oldest_seconds", "oldest_request_seconds", "Age of the oldest request without an answer."),
)


class Telemetry:
    """The metrics of one service. Each instance has a registry of its own.

    Args:
        admission: Its counts are read whenever metrics are scraped.
        collectors: Metrics of the service itself.
        log_sample_rate: Share of the requests without a failure that are logged, 0 to 1.
    """

    def __init__(
        self,
        service: str,
        admission: Admission,
        collectors: Sequence[Collector] = (),
        *,
        deadline_s: float = math.inf,
        log_sample_rate: float = 1.0,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self.service, self.deadline_s, self._log_sample_rate = service, deadline_s, log_sample_rate
        self.metrics: list[Metric] = []  #: all metrics of this class, for the documentation
        self._registry = prometheus.CollectorRegistry()
        for collector in collectors:
            self._registry.register(collector)
        prometheus.ProcessCollector(registry=self._registry)
        prometheus.PlatformCollector(registry=self._registry)
        self._requests = self._counter(
            "requests_total",
            "Requests answered, by route, HTTP status and kind of error (empty: none).",
            *("route", "status", "kind"),
        )
        self._results = self._counter(
            "results_total",
            "Items with a result: ok, abstained or error. A single request is one item.",
            *("backend", "status"),
        )
        self._causes = self._counter(
            "causes_total",
            "Items whose score is below its maximum or missing, by cause; of an error, its kind.",
            *("backend", "cause"),
        )
        self._scores = self._histogram(
            "score",
            "Scores, of episodes before normalization, in parts of the service's range.",
            SERVICES[service].score_bounds,
            "backend",
        )
        self._stages = self._histogram(
            "stage_duration_seconds",
            "Time of an item by stage: queue, decode, backend, total.",
            _SECONDS,
            "stage",
        )
        self._batches = self._histogram(
            "batch_duration_seconds",
            "Time from a batch's headers to its complete result, one per /score/batch.",
            _BATCH_SECONDS,
        )
        self._fallbacks = self._counter(
            "fallback_rewards_total",
            "Rewards that clients replaced by on_failure, reported by their next request.",
        )
        self.lookups = self._counter(
            "cache_lookups_total", "Cache lookups, by result: hit or miss.", "result"
        )
        self.audits = self._counter(
            "cache_audits_total",
            "Cached scores that were computed again, by result: agree or disagree.",
            "result",
        )
        self.damaged_entries = self._counter(
            "cache_damaged_entries_total",
            "Entries of the cache that were damaged, not signed with the key, or no score of their "
            "item. Their scores are computed again.",
        )
        # 0 from the start, so that the first one is an increase.
        for series in (self._fallbacks(), self.audits("agree"), self.audits("disagree")):
            series.inc(0)
        for attribute, name, documentation in _GAUGES:
            self._gauge(name, documentation, partial(getattr, admission, attribute))
        self._gauge("ready", "1 if the service can score now, as /readyz says, else 0.", ready)
        self._gauge("deadline_seconds", "deadline_s, as configured.", lambda: deadline_s)

    def _counter(self, name: str, documentation: str, *labels: str) -> Callable[..., Counter]:
        """Return what returns the series of a counter by their labels besides `service`."""
        metric = self._metric(name, "counter", documentation, *labels)
        counter = Counter(metric.name, documentation, metric.labels, registry=self._registry)
        return cache(partial(counter.labels, self.service))  # its own `labels` is slow

    def _histogram(
        self, name: str, documentation: str, bounds: Sequence[float], *labels: str
    ) -> BulkHistogram:
        metric = self._metric(name, "histogram", documentation, *labels)
        histogram = BulkHistogram(metric, self.service, bounds)
        self._registry.register(histogram)
        return histogram

    def _gauge(self, name: str, documentation: str, value: Callable[[], float]) -> None:
        metric = self._metric(name, "gauge", documentation)
        gauge = Gauge(metric.name, documentation, metric.labels, registry=self._registry)
        gauge.labels(self.service).set_function(value)

    def _metric(self, name: str, kind: str, documentation: str, *labels: str) -> Metric:
        metric = Metric(f"rewardfleet_{name}", kind, ("service", *labels), documentation)
        self.metrics.append(metric)
        return metric

    def record_score(
        self, context: RequestContext, score: Score, span: "Span | None" = None
    ) -> None:
        """Count the result of one item and the time of its stages, and end its span."""
        context.items += 1
        context.cached += score.cached
        context.failed += score.status is Status.ERROR
        context.failed_here += score.cause in _FAILED_HERE
        if score.backend:
            context.backends.add(score.backend)
        self._results(score.backend, score.status).inc()
        if score.cause is not None:
            self._causes(score.backend, score.cause).inc()
        if score.score is not None:
            self._scores.observe(score.score, score.backend)
        is_computed = not score.cached and score.status is not Status.ERROR
        for stage in _STAGES if is_computed else ("total",):
            self._stages.observe(getattr(score.timing_ms, stage) / 1000, stage)
        if span is None:
            return
        backend, status = score.backend, score.status.value
        own: dict[str, str | bool]
        own = {"backend": backend, "status": status, "cached": score.cached}
        span.otel.set_attributes({f"rewardfleet.{name}": value for name, value in own.items()})
        if score.error is None:
            value = {} if score.score is None else {"gen_ai.evaluation.score.value": score.score}
            label = {"gen_ai.evaluation.score.label": status}
            name = {"gen_ai.evaluation.name": backend}
            span.otel.add_event("gen_ai.evaluation.result", {**name, **label, **value})
        span.end(None if score.error is None else score.error.kind)

    def record_failure(self, context: RequestContext, kind: ErrorKind, backend: str = "") -> None:
        """Count one item that failed, or a batch that is scored as a whole."""
        timing, failed = Timing(total=context.elapsed_ms), {Status.ERROR: 1}
        self.record_batch(context, backend, failed, np.empty(0), causes={kind: 1}, timing=timing)

    def record_batch(
        self,
        context: RequestContext,
        backend: str,
        statuses: Mapping[Status, int],
        rewards: NDArray[np.float64],
        *,
        causes: Mapping[str, int],
        timing: Timing,
    ) -> None:
        """Count the items of a batch that was scored in one computation, and their stages.

        Each item has waited and taken as long in total as the batch, and has an equal share of its
        time in the other stages. See `ScoredBatch` for its parts.
        """
        items = sum(statuses.values())
        failed = statuses.get(Status.ERROR, 0)
        computed = items - failed
        context.items += items
        context.failed += failed
        context.failed_here += sum(causes.get(kind, 0) for kind in _FAILED_HERE)
        if backend:
            context.backends.add(backend)
        for status, count_of in statuses.items():
            self._results(backend, status).inc(count_of)
        for cause, count_of in causes.items():
            self._causes(backend, cause).inc(count_of)
        if rewards.size:
            self._scores.observe_all(rewards, backend)
        if items:
            self._stages.observe(timing.total / 1000, "total", items=items)
        if computed:
            self._stages.observe(timing.queue / 1000, "queue", items=computed)
            for name in ("decode", "backend"):
                self._stages.observe(getattr(timing, name) / 1000 / computed, name, items=computed)

    def record_response(
        self, context: RequestContext, status: int, kind: ErrorKind | None, detail: str = ""
    ) -> None:
        """Count one request, write its log line and end its span."""
        self._requests(context.path, str(status), kind or "").inc()
        if status == 200:
            if context.path == "/score/batch":
                self._batches.observe(context.elapsed_ms / 1000)
            if context.fallback_rewards:
                self._fallbacks().inc(context.fallback_rewards)
        if context.span is not None:
            attributes: dict[str, str | int] = {
                "http.response.status_code": status,
                "rewardfleet.service": self.service,
                "rewardfleet.request_id": context.request_id,
                "rewardfleet.items": context.items,
                "rewardfleet.cached": context.cached,
            }
            context.span.otel.set_attributes(attributes)
            context.span.end(kind or (None if status == 200 else "disconnected"))
        has_failed = status != 200 or context.failed > 0
        if not has_failed and random.random() >= self._log_sample_rate:  # noqa: S311 - no secret
            return
        line = {
            "path": context.path,
            "status": status,
            "kind": kind,
            "detail": detail or None,
            "backends": sorted(context.backends),
            "items": context.items,
            "cached": context.cached,
            "failed": context.failed,
            "total_ms": round(context.elapsed_ms, 3),
        }
        log.log(logging.INFO if status < 500 else logging.WARNING, "request", extra=line)

    def exposition(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return prometheus.generate_latest(self._registry)
