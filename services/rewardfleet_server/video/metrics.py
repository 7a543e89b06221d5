"""Metrics of the video service's own: processes of judges that users provide, and drift."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from .custom_judge.process import CustomJudge
from .judges import Judge
from .judges.calibration import JudgeCalibration


@dataclass(eq=False)
class JudgeMetrics(Collector):
    """Restarts and abandoned calls of judges in processes of their own; drift by task."""

    _judges: Mapping[str, Judge]  #: by name
    _calibrations: Mapping[str, JudgeCalibration]  #: of those that have one

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
        results = CounterMetricFamily(
            "rewardfleet_task_results",
            "Scores that were computed by a judge with a calibration, by task and status: ok or "
            "abstained.",
            labels=("backend", "task", "status"),
        )
        evidence = GaugeMetricFamily(
            "rewardfleet_drift_evidence",
            "Evidence that the scores of a task differ from those of the calibration. At 1, an "
            "alarm is raised and the evidence is reset to 0.",
            labels=("backend", "task"),
        )
        alarms = CounterMetricFamily(
            "rewardfleet_drift_alarms",
            "Times that the evidence reached 1. Without drift, this is once in 30 days at most, on "
            "average, over all tasks of a replica.",
            labels=("backend", "task"),
        )
        for name, judge in self._judges.items():
            if isinstance(judge, CustomJudge):
                restarts.add_metric((name,), judge.restarts)
                abandoned.add_metric((name,), judge.abandoned)
        for backend, calibration in self._calibrations.items():
            for task in calibration.drift.tasks.values() if calibration.drift else ():
                evidence.add_metric((backend, task.label), task.evidence)
                alarms.add_metric((backend, task.label), task.alarms)
                for status, count in task.results.items():
                    results.add_metric((backend, task.label, status), count)
        yield from (restarts, abandoned, results, evidence, alarms)
