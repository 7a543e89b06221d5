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

#: Seconds for the last export when the service ends.
_FLUSH_SECONDS = 3.0


class Span:
    """A span of a trace."""

    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        self._tracer = tracer
        self.otel = span  #: OpenTelemetry's own. None of its attributes and events has payload.

    def child(self, name: str) -> "Span":
        """Begin a span below this one."""
        parent = trace.set_span_in_context(self.otel)
        return Span(self._tracer, self._tracer.start_span(name, parent))

    def headers(self) -> dict[str, str]:
        """Return the HTTP headers that continue the trace below this span: `traceparent`."""
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(self.otel))
        return carrier

    def end(self, failure: str | None = None) -> None:
        """End the span, with the kind of its failure if it failed; again has no effect."""
        if not self.otel.is_recording():
            return
        if failure is not None:
            self.otel.set_attribute("error.type", failure)
            self.otel.set_status(trace.StatusCode.ERROR, failure)
        self.otel.end()


class Tracer:
    """The source of the spans of one service. It has a provider of its own, not the global one.

    Its name is `rewardfleet-{service}`, unless `OTEL_SERVICE_NAME` is set.
    """

    def __init__(self, service: str) -> None:
        own = Resource.create({"service.name": f"rewardfleet-{service}"})
        self._provider = TracerProvider(
            resource=own.merge(OTELResourceDetector().detect()),
            shutdown_on_exit=False,  # it could take half a minute
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("rewardfleet", __version__)

    def begin_request(self, name: str, headers: Mapping[str, str]) -> Span:
        """Begin the span of a request, and continue the trace that its headers name.

        Names of headers are in lower case, and that of the span is e.g. `POST /score`.
        """
        parent = propagate.extract(headers)
        span = self._tracer.start_span(name, parent, trace.SpanKind.SERVER)
        return Span(self._tracer, span)

    async def aclose(self) -> None:
        """Export the spans that are left, for a few seconds at most."""
        # A daemon: the interpreter does not wait for it at its end, as for an executor's threads.
        last = threading.Thread(target=self._provider.shutdown, daemon=True)
        last.start()
        await asyncio.to_thread(last.join, _FLUSH_SECONDS)
