"""Metrics of run state."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from rewardfleet.wire.errors import Unavailable


class RunStateMetrics(Collector):
    """Counters of a store. They are exported from the start, so that the first one is an increase.

    Attributes:
        clock_jumps: How often a wall clock was found to differ from the store's.
    """

    def __init__(self) -> None:
        self.clock_jumps = 0
        self._failures = 0

    @contextmanager
    def counting_failures(self) -> Iterator[None]:
        """Count `Unavailable`, and raise it again."""
        try:
            yield
        except Unavailable:
            self._failures += 1
            raise

    def collect(self) -> Iterable[Metric]:
        yield CounterMetricFamily(
            "rewardfleet_run_state_failures",
            "Uses of run state that failed: the store refuses, does not answer, or is damaged.",
            value=self._failures,
        )
        yield CounterMetricFamily(
            "rewardfleet_clock_jumps",
            "Times that the wall clock of this process differed by more than 10 s from that of the "
            "run-state store. The state does not depend on it.",
            value=self.clock_jumps,
        )
