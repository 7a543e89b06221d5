"""What can be seen from outside: Prometheus metrics, and one JSON log line a request.

Labels take their values from short fixed lists (service, stage, status, kind of error, loaded
backends). No run, task or path ever becomes one.
"""

import itertools
import logging
import logging.config
import re
import sys
import time
import uuid
from collections import Counter as Counts
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

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
from prometheus_client.registry import Collector
from pythonjsonlogger.core import RESERVED_ATTRS

from rewardfleet.wire.errors import ErrorKind
from rewardfleet.wire.score import Score, Status

from .admission import Admission

log = logging.getLogger("rewardfleet_server.request")

disable_created_metrics()  # type: ignore[no-untyped-call] # upstream; they would double the series, and nobody asks for them

#: Seconds; from a cache hit to a long chain of thought.
_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_SCORES = tuple(tenth / 10 for tenth in range(11))

#: What a caller may choose as request id; anything else is replaced.
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

#: The request that is being answered, for every log line that is written on its behalf.
REQUEST_ID: ContextVar[str] = ContextVar("request_id")

#: Request ids are unique: a random name of this process, and a number.
_PROCESS_ID = uuid.uuid4().hex[:16]
_NUMBERS = itertools.count(1)


@dataclass
class Visit:
    """One request's passage through the house, for its log line."""

    endpoint: str
    request_id: str
    started: float = field(default_factory=time.monotonic)
    backends: set[str] = field(default_factory=set)
    items: int = 0
    cached: int = 0
    together: Counts[Status] = field(default_factory=Counts)  #: results that were made at once

    @property
    def elapsed_ms(self) -> float:
        """Milliseconds since the request's headers came."""
        return (time.monotonic() - self.started) * 1000


def request_id_of(header: str | None) -> str:
    """The caller's `X-Request-Id` where it is harmless, else a new one."""
    if header is not None and _REQUEST_ID.fullmatch(header):
        return header
    return f"{_PROCESS_ID}-{next(_NUMBERS):x}"


class Telemetry:
    """The metrics of one service in one process.

    Args:
        service: The name of the service, e.g. `video`.
        admission: Asked for its numbers whenever metrics are read.
        more: A slice's own metrics.
    """

    def __init__(self, service: str, admission: Admission, more: Sequence[Collector] = ()) -> None:
        self._service = service
        self._registry = CollectorRegistry()
        for collector in more:
            self._registry.register(collector)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        self._requests = Counter(
            "rewardfleet_requests",
            "Requests answered, by HTTP status and kind of error (empty: none).",
            ("service", "status", "kind"),
            registry=self._registry,
        )
        self._results = Counter(
            "rewardfleet_results",
            "Items judged: ok, abstained or error. A single request is one item.",
            ("service", "backend", "status"),
            registry=self._registry,
        )
        self._cache = Counter(
            "rewardfleet_cache",
            "Cache look-ups, by result: hit or miss.",
            ("service", "result"),
            registry=self._registry,
        )
        self._audits = Counter(
            "rewardfleet_cache_audits",
            "Cached answers computed anew, by result: agree or disagree.",
            ("service", "result"),
            registry=self._registry,
        )
        self._stages = Histogram(
            "rewardfleet_stage_seconds",
            "Time of an item by stage: queue, decode, backend, total.",
            ("service", "stage"),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._scores = Histogram(
            "rewardfleet_score",
            "Scores given.",
            ("service", "backend"),
            buckets=_SCORES,
            registry=self._registry,
        )
        self._watch("rewardfleet_in_flight", "Requests in the house.", admission, "admitted")
        self._watch("rewardfleet_waiting", "Waiting for the backend.", admission, "waiting")

    def _watch(self, name: str, about: str, admission: Admission, attribute: str) -> None:
        gauge = Gauge(name, about, ("service",), registry=self._registry)
        gauge.labels(self._service).set_function(lambda: getattr(admission, attribute))

    def cache_looked_up(self, *, hit: bool) -> None:
        self._cache.labels(self._service, "hit" if hit else "miss").inc()

    def cache_audited(self, *, agrees: bool) -> None:
        self._audits.labels(self._service, "agree" if agrees else "disagree").inc()

    def item_failed(self, backend: str) -> None:
        """Count an item that got no answer; `backend` is empty where none was chosen yet."""
        self._results.labels(self._service, backend, Status.ERROR).inc()

    def judged(self, visit: Visit, score: Score) -> None:
        """Count one item's result and its times."""
        visit.items += 1
        visit.cached += score.cached
        visit.backends.add(score.backend)
        self._results.labels(self._service, score.backend, score.status).inc()
        if score.score is not None:
            self._scores.labels(self._service, score.backend).observe(score.score)
        stages = self._stages
        timing = score.timing_ms
        stages.labels(self._service, "total").observe(timing.total / 1000)
        if not score.cached and score.status is not Status.ERROR:
            stages.labels(self._service, "queue").observe(timing.queue / 1000)
            stages.labels(self._service, "decode").observe(timing.decode / 1000)
            stages.labels(self._service, "backend").observe(timing.backend / 1000)

    def judged_together(self, visit: Visit) -> None:
        """Count the results that one backend made of a whole batch, and their time once."""
        visit.items += visit.together.total()
        for backend in visit.backends:
            for status, count in visit.together.items():
                self._results.labels(self._service, backend, status).inc(count)
        self._stages.labels(self._service, "total").observe(visit.elapsed_ms / 1000)

    def answered(self, visit: Visit, status: int, kind: ErrorKind | None, detail: str = "") -> None:
        """Count one request and write its log line."""
        self._requests.labels(self._service, str(status), kind or "").inc()
        log.log(
            logging.INFO if status < 500 else logging.WARNING,
            "request",
            extra={
                "endpoint": visit.endpoint,
                "status": status,
                "kind": kind,
                "detail": detail or None,
                "backends": sorted(visit.backends),
                "items": visit.items,
                "cached": visit.cached,
                "total_ms": round(visit.elapsed_ms, 3),
            },
        )

    def exposition(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return generate_latest(self._registry)


class _RequestFilter(logging.Filter):
    """Put the request's id on the lines that are written on its behalf."""

    def filter(self, record: logging.LogRecord) -> bool:
        request_id = REQUEST_ID.get(None)
        if request_id is not None:
            record.request_id = request_id
        return True


def configure_logging(level: str) -> None:
    """Send every log line, uvicorn's too, to standard error as one JSON object a line."""
    # Not asked of the system for each record, as no line tells them.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {
                "json": {
                    "()": "pythonjsonlogger.orjson.OrjsonFormatter",
                    "format": "{levelname}{name}{message}",
                    "style": "{",
                    "timestamp": "time",
                    "rename_fields": {"levelname": "level", "name": "logger"},
                    "reserved_attrs": [*RESERVED_ATTRS, "color_message"],
                }
            },
            "filters": {"request": {"()": _RequestFilter}},
            "handlers": {
                "stderr": {
                    "class": "logging.StreamHandler",
                    "filters": ["request"],
                    "formatter": "json",
                    "stream": sys.stderr,
                }
            },
            "root": {"level": level.upper(), "handlers": ["stderr"]},
        }
    )
