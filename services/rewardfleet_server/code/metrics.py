"""Metrics of the code service's own: how programs are isolated, and what disturbs them."""

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from .sandboxes import Sandbox

#: Metrics that count verdicts.
VERDICT_COUNTS = {
    "missing_modules": "Programs that failed a test because they import a module that is not "
    "installed.",
    "program_decisions": "Tests that passed, and that the program could have decided: verdicts by "
    "`jail`.",
}


class SandboxMetrics(Collector):
    """The isolation level of programs, restarts of their jails, kills, waits, missing modules.

    Args:
        sandbox: Where programs run.
        requested: `--isolation`; `fusion` for a SandboxFusion server.
        verdicts: Counts of verdicts, by the names in `VERDICT_COUNTS`.
    """

    def __init__(self, sandbox: Sandbox, requested: str, verdicts: Mapping[str, int]) -> None:
        self._sandbox = sandbox
        self._requested = requested
        self._verdicts = verdicts

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
        for name, description in VERDICT_COUNTS.items():
            yield CounterMetricFamily(f"rewardfleet_{name}", description, self._verdicts[name])
        yield CounterMetricFamily(
            "rewardfleet_program_kills",
            "Runs that SIGKILL ended, e.g. for lack of memory. They are repeated once.",
            self._sandbox.kills,
        )
        yield CounterMetricFamily(
            "rewardfleet_memory_waits",
            "Submissions that waited for the memory of others.",
            self._sandbox.memory_waits,
        )
