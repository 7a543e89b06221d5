"""OpenTelemetry spans of calls, if the trainer uses OpenTelemetry; else nothing is imported.

A trainer uses it if it has imported `opentelemetry.trace` and set a provider of spans.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rewardfleet.wire.errors import RewardFleetError


@contextmanager
def span(name: str, service: str, items: int, *, is_request: bool) -> Iterator[Any | None]:
    """Make a block a span, and the parent of the spans in it.

    Args:
        is_request: Whether it is one call of the service, and not several.

    Yields:
        The span; None if the trainer does not use OpenTelemetry.
    """
    if "opentelemetry.trace" not in sys.modules:
        yield None
        return
    from opentelemetry import trace  # noqa: PLC0415 - optional; imported already

    tracer = trace.get_tracer("rewardfleet")
    kind = trace.SpanKind.CLIENT if is_request else trace.SpanKind.INTERNAL
    attributes: dict[str, str | int] = {"rewardfleet.service": service, "rewardfleet.items": items}
    started = tracer.start_as_current_span(
        name,
        kind=kind,
        attributes=attributes,
        # The message of an exception may quote payload.
        record_exception=False,
        set_status_on_exception=False,
    )
    with started as current:
        try:
            yield current
        except BaseException as error:
            failure = error.kind if isinstance(error, RewardFleetError) else type(error).__name__
            current.set_attribute("error.type", failure)
            current.set_status(trace.StatusCode.ERROR, failure)
            raise


def trace_headers() -> dict[str, str]:
    """Return the headers that continue the trace of the current span: `traceparent`."""
    if "opentelemetry.trace" not in sys.modules:
        return {}
    from opentelemetry import propagate  # noqa: PLC0415 - optional

    headers: dict[str, str] = {}
    propagate.inject(headers)
    return headers
