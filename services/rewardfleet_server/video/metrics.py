"""Metrics of the video service's own: the processes of judges that users provide."""

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from .judges import Judge
from .judges.custom import CustomJudge


class JudgeMetrics(Collector):
    """Restarts and abandoned calls of judges in processes of their own."""

    def __init__(self, judges: Mapping[str, Judge]) -> None:
        self._judges = {
            name: judge for name, judge in judges.items() if isinstance(judge, CustomJudge)
        }

    def collect(self) -> Iterable[Metric]:
        restarts = CounterMetricFamily(
            "rewardfleet_judge_restarts",
            "Processes of your own judge started again because one hung or died.",
            labels=("backend",),
        )
        abandoned = GaugeMetricFamily(
            "rewardfleet_judge_abandoned_calls",
            "Calls that your own judge works on and no caller waits for any more.",
            labels=("backend",),
        )
        for name, judge in self._judges.items():
            restarts.add_metric((name,), judge.restarts)
            abandoned.add_metric((name,), judge.abandoned)
        yield restarts
        yield abandoned
