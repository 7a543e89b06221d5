"""How often run state could not be used."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from rewardfleet.wire.errors import Unavailable


class RunStateFailures(Collector):
    """The metric `rewardfleet_run_state_failures_total` of a store."""

    def __init__(self) -> None:
        self._count = 0  # it is exported from the start, so that the first one is an increase

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count `Unavailable`, and raise it again."""
        try:
            yield
        except Unavailable:
            self._count += 1
            raise

    def collect(self) -> Iterable[Metric]:
        yield CounterMetricFamily(
            "rewardfleet_run_state_failures",
            "Uses of run state that failed: the store refuses, does not answer, or is damaged.",
            value=self._count,
        )
