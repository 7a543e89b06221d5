"""The stages of scoring: their times, which sample is in which, and their trace spans.

Spans exist only if traces are configured: see `open_tracer`, and `otel.py`, which nothing imports
otherwise.
"""

import asyncio
import logging
import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from rewardfleet.wire.errors import RewardFleetError
from rewardfleet.wire.optional_imports import install_command
from rewardfleet.wire.score import Timing
from rewardfleet_server.settings import traces_configured

if TYPE_CHECKING:
    from .otel import Span, Tracer

log = logging.getLogger(__name__)


def open_tracer(service: str) -> "Tracer | None":
    """Return the tracer of a service, or None if traces are not configured.

    They are if `OTEL_EXPORTER_OTLP_ENDPOINT` is set. Without the packages of the extra `otel`, a
    warning is logged instead: in a cluster, the variable may be set for all containers.
    """
    if not traces_configured():
        return None
    try:
        from .otel import Tracer  # noqa: PLC0415 - optional packages
    except ModuleNotFoundError as error:
        log.warning("no traces: %s is not installed: %s", error.name, install_command("otel"))
        return None
    return Tracer(service)


@dataclass(slots=True, eq=False)
class ItemSpan:
    """What happens to an item in flight, or to several that are scored as a whole."""

    items: int = 1  #: how many items it stands for
    #: The span of the whole item; None without traces.
    root: "Span | None" = None
    backend: str = ""  #: what scores it; empty if that is not known yet
    stage: str = "prepare"  #: what happens to it, e.g. `queue`
    #: Time of `time.monotonic` at which the stage began.
    since: float = field(default_factory=time.monotonic)
    span: "Span | None" = field(init=False)  #: the innermost span that has not ended
    #: The item whose computation it shares; None if it has its own.
    leader: "ItemSpan | None" = None

    def __post_init__(self) -> None:
        self.span = self.root


#: The sample on whose behalf code runs. A shared computation runs on behalf of its first sample.
SAMPLE: ContextVar[ItemSpan | None] = ContextVar("sample", default=None)


def trace_headers() -> dict[str, str]:
    """Return the HTTP headers that pass the trace on to a backend; empty without traces."""
    sample = SAMPLE.get()
    return {} if sample is None or sample.span is None else sample.span.headers()


class stage:  # noqa: N801 - a context manager, named like those of contextlib
    """Mark a `with` block as a stage of the current sample, until its end or `stop`.

    Its milliseconds are added to the field `name` of a timing, if there is one.
    """

    def __init__(self, timing: Timing | None, name: str) -> None:
        self._timing = timing
        self._name = name
        self._started: float | None = None
        self._sample: ItemSpan | None = None
        self._span: Span | None = None

    def __enter__(self) -> Self:
        self._started = now = time.monotonic()
        self._sample = sample = SAMPLE.get()
        if sample is not None:
            self._outer = sample.stage, sample.since, sample.span
            sample.stage, sample.since = self._name, now
            if sample.span is not None:
                sample.span = self._span = sample.span.child(self._name)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.stop(error)

    def stop(self, error: BaseException | None = None) -> None:
        """End the stage early, e.g. as it failed; from any thread. Its end then adds nothing."""
        started, self._started = self._started, None
        if started is None:
            return
        if self._timing is not None:
            elapsed_ms = (time.monotonic() - started) * 1000
            total = getattr(self._timing, self._name) + elapsed_ms
            setattr(self._timing, self._name, round(total, 3))
        if self._sample is not None:
            self._sample.stage, self._sample.since, self._sample.span = self._outer
        if self._span is not None:
            failure: str | None = None
            match error:  # without its message, which may quote payload
                case RewardFleetError():
                    failure = error.kind
                case asyncio.CancelledError():
                    failure = "cancelled"
                case BaseException():
                    failure = type(error).__name__
            self._span.end(failure)
