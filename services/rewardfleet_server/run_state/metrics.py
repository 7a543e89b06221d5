"""Metrics of run state."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from rewardfleet.wire.errors import Unavailable
from rewardfleet_server.system.log_throttle import LogThrottle

#: Seconds by which a wall clock may differ from that of the store before it is reported.
MAX_CLOCK_DIFFERENCE_S = 10.0

log = logging.getLogger(__name__)


class RunStateMetrics(Collector):
    """Counters of a store, exported from the start, so that the first one is an increase."""

    def __init__(self) -> None:
        self._clock_jumps = 0
        self._failures = 0
        self._warning = LogThrottle(log)

    def compare_clocks(self, ahead_s: float) -> None:
        """Count and log a wall clock that differs from the store's.

        Args:
            ahead_s: The seconds by which it is ahead.
        """
        if abs(ahead_s) > MAX_CLOCK_DIFFERENCE_S:
            self._clock_jumps += 1
            self._warning(
                "the wall clock is %+.0f s ahead of that of Redis, or of the last change of the "
                "run-state file; the run state does not depend on it",
                ahead_s,
            )

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
            value=self._clock_jumps,
        )
