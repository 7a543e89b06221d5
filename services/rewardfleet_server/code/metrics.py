"""Metrics of the code service's own: how programs are isolated."""

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from .sandboxes import Sandbox


class SandboxMetrics(Collector):
    """The isolation level of programs, and restarts of their jails.

    Args:
        sandbox: Where programs run.
        requested: `--isolation`; `fusion` for a SandboxFusion server.
    """

    def __init__(self, sandbox: Sandbox, requested: str) -> None:
        self._sandbox = sandbox
        self._requested = requested

    def collect(self) -> Iterable[Metric]:
        isolation = GaugeMetricFamily(
            "rewardfleet_isolation",
            "1 for the isolation level of programs. --isolation auto requests bubblewrap.",
            labels=("level", "requested"),
        )
        level = str(self._sandbox.provenance["isolation"])
        isolation.add_metric((level, self._requested), 1)
        yield isolation
        yield CounterMetricFamily(
            "rewardfleet_jail_restarts",
            "Jails started again because one died or could not be cleaned.",
            self._sandbox.restarts,
        )
