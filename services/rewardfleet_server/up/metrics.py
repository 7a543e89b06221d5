"""Metrics of a gateway."""

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    ProcessCollector,
    generate_latest,
)

from rewardfleet.wire.errors import RewardFleetError
from rewardfleet.wire.headers import GATEWAY

#: The media type of the metrics.
METRICS_TYPE = CONTENT_TYPE_LATEST.encode()


class GatewayMetrics:
    """Counts requests by service, as the services do by route, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._requests = Counter(
            "rewardfleet_requests_total",
            "Requests by service, and the status and kind of failures of the gateway itself.",
            ("service", "route", "status", "kind"),
            registry=self._registry,
        )

    def count(self, service: str, error: RewardFleetError | None = None) -> None:
        """Count a request.

        Args:
            service: The service that it names; empty for none.
            error: Why the gateway has refused it; None if it has answered it, or passed the answer
                of a replica on.
        """
        status, kind = ("", "") if error is None else (str(error.status), error.kind)
        self._requests.labels(GATEWAY, f"/{service}", status, kind).inc()

    def exposition(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self._registry)
