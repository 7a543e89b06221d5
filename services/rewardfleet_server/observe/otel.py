"""OpenTelemetry spans, exported by OTLP over HTTP. Imported only if traces are configured.

The SDK reads its own variables: `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME`,
`OTEL_TRACES_SAMPLER`, and so on. Spans are exported by a thread in the background; if the receiver
fails or is slow, spans are dropped, and requests do not notice.
"""

import asyncio
import threading
from collections.abc import Mapping

from opentelemetry import propagate, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from rewardfleet import __version__

from .tracing import Attribute

#: Seconds for the last export when the service ends.
_FLUSH_SECONDS = 3.0


class OtelSpan:
    """A span; see `Span`."""

    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        self._tracer = tracer
        self._span = span

    def child(self, name: str) -> "OtelSpan":
        parent = trace.set_span_in_context(self._span)
        return OtelSpan(self._tracer, self._tracer.start_span(name, parent))

    def set(self, attributes: Mapping[str, Attribute]) -> None:
        self._span.set_attributes(dict(attributes))

    def add_event(self, name: str, attributes: Mapping[str, Attribute]) -> None:
        self._span.add_event(name, dict(attributes))

    def headers(self) -> dict[str, str]:
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(self._span))
        return carrier

    def end(self, failure: str | None = None) -> None:
        if not self._span.is_recording():
            return
        if failure is not None:
            self._span.set_attribute("error.type", failure)
            self._span.set_status(trace.StatusCode.ERROR, failure)
        self._span.end()


class OtelTracer:
    """The spans of one service; see `Tracer`. It has a provider of its own, not the global one.

    Args:
        service: Names it `rewardfleet-{service}`, unless `OTEL_SERVICE_NAME` is set.
    """

    def __init__(self, service: str) -> None:
        own = Resource.create({"service.name": f"rewardfleet-{service}"})
        self._provider = TracerProvider(
            resource=own.merge(OTELResourceDetector().detect()),
            shutdown_on_exit=False,  # it could take half a minute
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("rewardfleet", __version__)

    def begin_request(self, name: str, headers: Mapping[str, str]) -> OtelSpan:
        parent = propagate.extract(headers)
        span = self._tracer.start_span(name, parent, trace.SpanKind.SERVER)
        return OtelSpan(self._tracer, span)

    async def aclose(self) -> None:
        # A daemon: the interpreter does not wait for it at its end, as for an executor's threads.
        last = threading.Thread(target=self._provider.shutdown, daemon=True)
        last.start()
        await asyncio.to_thread(last.join, _FLUSH_SECONDS)
