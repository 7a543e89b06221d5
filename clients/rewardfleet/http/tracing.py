"""OpenTelemetry spans of calls, if the trainer uses OpenTelemetry; else nothing is imported.

A trainer uses it if it has imported `opentelemetry.trace` and set a provider of spans.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rewardfleet.wire.errors import RewardFleetError

from .pending import PendingCall


@contextmanager
def span(name: str, service: str, items: int, call: PendingCall | None = None) -> Iterator[None]:
    """Make a block a span: of a call, or the parent of the spans of several."""
    if "opentelemetry.trace" not in sys.modules:
        yield
        return
    from opentelemetry import trace  # noqa: PLC0415 - optional; imported already

    tracer = trace.get_tracer("rewardfleet")
    started = tracer.start_as_current_span(
        name,
        kind=trace.SpanKind.INTERNAL if call is None else trace.SpanKind.CLIENT,
        attributes={"rewardfleet.service": service, "rewardfleet.items": items},
        # The message of an exception may quote payload.
        record_exception=False,
        set_status_on_exception=False,
    )
    with started as current:
        try:
            yield
        except BaseException as error:
            failure = error.kind if isinstance(error, RewardFleetError) else type(error).__name__
            current.set_attribute("error.type", failure)
            current.set_status(trace.StatusCode.ERROR, failure)
            raise
        finally:
            if call is not None:
                current.set_attribute("rewardfleet.attempts", call.attempts)
                current.set_attribute("rewardfleet.request_id", call.request_id)


def trace_headers() -> dict[str, str]:
    """Return the headers that continue the trace of the current span: `traceparent`."""
    if "opentelemetry.trace" not in sys.modules:
        return {}
    from opentelemetry import propagate  # noqa: PLC0415 - optional

    headers: dict[str, str] = {}
    propagate.inject(headers)
    return headers
