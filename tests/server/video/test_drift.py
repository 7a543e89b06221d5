"""Drift of scores: false alarms without it, also while a policy learns, and how soon it is seen."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy
from prometheus_client.parser import text_string_to_metric_families

from rewardfleet.evaluation.fitting import distribution_of
from rewardfleet.wire.calibration import Distribution, LabelCounts
from rewardfleet_server.testing import FakeJudge
from rewardfleet_server.video.app import create_app
from rewardfleet_server.video.judges.drift import BLOCK, DriftWatch
from rewardfleet_server.video.settings import VideoSettings

from ...conftest import served, table

Rng = np.random.Generator
TASKS = 5
PER_DAY = 1000  #: scores of a task


class Days:
    """A clock that tests set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now * 86_400


def raw_score(rng: Rng, success: bool) -> float:
    return float(rng.beta(6, 2) if success else rng.beta(2, 6))


def labels(rng: Rng, count: int) -> list[dict[str, Any]]:
    """Return labeled clips of each task: `count` failures, and as many successes."""
    return [
        {"success": success, "raw_score": raw_score(rng, success), "task": f"T {task}",
         "status": "ok"}
        for task in range(TASKS) for success in (False, True) for _ in range(count)
    ]  # fmt: skip


def alarms_of(watch: DriftWatch) -> int:
    return sum(task.alarms for task in watch.tasks.values())


def learning(rng: Rng, clock: Days, days: float) -> Iterator[tuple[str, bool]]:
    """Yield tasks, and whether the policy succeeds: at first rarely, in the end almost always."""
    for number in range(int(days * PER_DAY * TASKS)):
        clock.now = number / PER_DAY / TASKS
        yield f"t {rng.integers(TASKS)}", bool(rng.random() < 0.02 + 0.96 * clock.now / days)


def test_a_policy_that_learns_is_no_drift():
    """Ten runs of three days: one alarm is expected at most."""
    alarms = 0
    for seed in range(10):
        rng, clock = np.random.default_rng(seed), Days()
        watch = DriftWatch(distribution_of(labels(rng, 40)), 0.95, clock)
        for task, success in learning(rng, clock, 3):
            watch.add(raw_score(rng, success), task)
        alarms += alarms_of(watch)
    assert alarms <= scipy.stats.poisson.ppf(0.9999, 1)


def test_rollouts_of_a_group_may_be_all_alike():
    """Each twelve minutes, a group of 64 of each task: its failures have one score."""
    alarms, runs, days = 0, 4, 3
    for seed in range(runs):
        rng, clock = np.random.default_rng(seed), Days()
        watch = DriftWatch(distribution_of(labels(rng, 200)), 0.95, clock)
        for clock.now in np.arange(0, days, 1 / 120):
            for task in range(TASKS):
                raw = raw_score(rng, success=False), raw_score(rng, success=True)
                rate = rng.random() * clock.now / days
                for success in (rng.random(64) < rate).tolist():
                    watch.add(raw[success], f"t {task}")
        alarms += alarms_of(watch)
    assert alarms <= scipy.stats.poisson.ppf(0.9999, runs * days / 30)


@pytest.mark.slow
def test_false_alarms_are_as_rare_as_stated_where_nothing_is_to_spare():
    """Limits without a margin, and scores that are at them: 40 times 60 days of one task.

    Half of the scores of a block are alike, as those of a group of rollouts may be.
    """
    shares, days, runs = [0.5, 0.3, 0.2], 60, 40
    many = [round(share * 10**9) for share in (*shares, 0)]
    exact = Distribution(
        edges=[0.3, 0.6], overall=LabelCounts(failures=many, successes=many), tasks={}
    )
    alarms = 0
    for seed in range(runs):
        rng, clock = np.random.default_rng(seed), Days()
        watch = DriftWatch(exact, 0.5, clock)
        blocks = rng.choice([0.1, 0.4, 0.7], (1500, BLOCK), p=shares)
        blocks[:, : BLOCK // 2] = blocks[:, :1]
        for clock.now, block in zip(np.linspace(0, days, 1500), blocks.tolist(), strict=True):
            for raw in block:
                watch.add(raw, "any")
        alarms += alarms_of(watch)
    print(f"{alarms} false alarms in {runs * days} days")
    assert 0 < alarms <= scipy.stats.poisson.ppf(0.9999, runs * days / 30)


@pytest.mark.parametrize(
    ("drifted", "within"),
    [
        pytest.param(lambda raw, _: raw + 0.25, 3000, id="scores are shifted up"),
        pytest.param(lambda raw, _: raw - 0.2, 600, id="scores are shifted down"),
        pytest.param(lambda _, __: 0.5, 600, id="the output is constant"),
        pytest.param(lambda _, __: 0.0, 400, id="the output is constant at an end"),
        pytest.param(lambda raw, _: 0.35 + 0.3 * raw, 700, id="scores collapse in the middle"),
        pytest.param(lambda raw, _: raw**2 / (raw**2 + (1 - raw) ** 2), 700,
                     id="another prompt, whose scores are closer to 0 and 1"),
        pytest.param(lambda raw, rng: None if rng.random() < 0.5 else raw, 600,
                     id="the judge abstains"),
    ],
)  # fmt: skip
def test_drift_is_seen_while_the_policy_learns(
    drifted: Callable[[float, Rng], float | None], within: int, caplog
):
    """After a day without it, within so many scores of a task."""
    rng, clock = np.random.default_rng(0), Days()
    watch = DriftWatch(distribution_of(labels(rng, 40)), 0.95, clock)
    seen = 0
    for task, success in learning(rng, clock, 6):
        raw: float | None = raw_score(rng, success)
        if clock.now >= 1:
            seen += task == "t 0"
            raw = drifted(raw, rng)
        watch.add(raw if raw is None else min(max(raw, 0.0), 1.0), task)
        if alarms_of(watch):
            break
    assert 0 < seen <= within, seen
    assert "of the calibration's failures or successes" in caplog.text


def test_a_drift_of_one_task_is_that_of_the_task_and_ends():
    rng, clock = np.random.default_rng(0), Days()
    watch = DriftWatch(distribution_of(labels(rng, 40)), 0.95, clock)

    def alarms(constant: str, days: float) -> set[str]:
        start, before = clock.now, {task.label: task.alarms for task in watch.tasks.values()}
        for number in range(int(days * 6 * PER_DAY)):
            clock.now = start + number / PER_DAY / 6
            task = ("t 0", "t 1", "t 2", "t 3", "t 4", "new")[number % 6]
            raw = raw_score(rng, bool(rng.random() < 0.5))
            watch.add(0.5 if task == constant else raw, task)
        return {task.label for task in watch.tasks.values() if task.alarms > before[task.label]}

    assert alarms("", 0.5) == set()
    assert alarms("t 1", 0.5) == {"t 1"}
    assert alarms("", 0.5) == set()
    assert alarms("new", 2) == {"other"}


def test_tasks_with_few_labels_and_hostile_names_have_bounded_labels():
    rng = np.random.default_rng(0)
    clips = [each for each in labels(rng, 20) if each["task"] != "T 3"] + labels(rng, 19)
    names = {"T 0": "other", "T 1": 'a"\n} \\ 1', "T 2": "x" * 500}
    named = [{**each, "task": names.get(each["task"], each["task"])} for each in clips]
    watch = DriftWatch(distribution_of(named), 0.95)
    shown = [task.label for task in watch.tasks.values()]
    assert {'a" } \\ 1', "t 4", "other"} < set(shown)
    assert len(set(shown)) == len(shown) == 5 and all(len(each) <= 80 for each in shown)


# The service


def twenty_labels() -> dict[str, Any]:
    return distribution_of(labels(np.random.default_rng(0), 20)).model_dump()


def test_the_service_exports_results_and_drift_by_task(write_calibration, frames_request):
    path = write_calibration(distribution=twenty_labels())
    judge = FakeJudge(0.25, deterministic=False)
    with served(judge, calibration=path) as client:
        for task in ("T  1", "unknown"):
            for _ in range(2 * BLOCK):
                request = {**frames_request, "task_text": task}
                assert client.post("/score", json=request).status_code == 200
        judge.score = None
        client.post("/score", json={**frames_request, "task_text": "t 1"})
        text = client.get("/metrics").text
    families = {each.name: each.samples for each in text_string_to_metric_families(text)}
    results = {
        (each.labels["task"], each.labels["status"]): each.value
        for each in families["rewardfleet_task_results"]
        if each.value
    }
    assert results == {("t 1", "ok"): 32, ("t 1", "abstained"): 1, ("other", "ok"): 32}
    evidence = {e.labels["task"]: e.value for e in families["rewardfleet_drift_evidence"]}
    assert len(evidence) == TASKS + 1 and set(evidence.values()) == {0}  # no block has ended
    assert {each.value for each in families["rewardfleet_drift_alarms"]} == {0}


def test_a_cached_score_counts_once_and_none_without_a_distribution(
    write_calibration, frames_request
):
    paths = write_calibration("1", distribution=twenty_labels()), write_calibration("2")
    for path, counts in zip(paths, (["1.0"], []), strict=True):
        with served(FakeJudge(0.25), calibration=path) as client:
            for _ in range(3):
                answer = client.post("/score", json=frames_request).json()
            text = client.get("/metrics").text
        assert answer["score"] == pytest.approx(0.5)
        assert re.findall(r'status="ok",task="other"} (.*)', text) == counts
        assert ("rewardfleet_drift_evidence{" in text) == bool(counts)
        app = create_app(VideoSettings(calibration=path), {"fake": FakeJudge(0.25)})
        warnings = [each for each in app.service.warnings if f"{path} has no distribution" in each]
        assert len(warnings) == (not counts)


@pytest.mark.parametrize(("change", "words"), table("damaged_distributions"))
def test_a_damaged_distribution_stops_the_service(write_calibration, change, words):
    counts = {"failures": [1, 2, 3], "successes": [1, 2, 3]}
    given = {"edges": [0.5], "overall": counts, "tasks": {}}
    format_ = change.pop("format", "rewardfleet calibration 2")
    path = write_calibration(distribution={**given, **change}, format=format_)
    with pytest.raises(ValueError, match=words), served(FakeJudge(0.25), calibration=path):
        pass
