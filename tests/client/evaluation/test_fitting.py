"""Calibrations: what the labels must have, what the maps are, and that the guarantee holds."""

from bisect import bisect_left
from typing import Any

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from rewardfleet.evaluation.fitting import calibrate, distribution_of, fit_map
from rewardfleet.wire.calibration import Calibration, IsotonicMap, LogisticMap, logit

KINDS = ("platt", "isotonic", "per-task")


def clip(success: bool, raw: float, task: str = "a") -> dict[str, Any]:
    return {"success": success, "raw_score": raw, "task": task, "near_miss": False}


def report(clips: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    options = {"nframes": 16, "max_pixels": 200_704, "backend_kwargs": {}}
    given = {
        "judge": "fake", "provenance": {"judge": "fake"}, "requests": [options],
        "cameras": ["front"], "frame_sizes": [[48, 64]], "clips": clips,
    }  # fmt: skip
    return {**given, **changes}


def drawn(seed: int, failures: int, successes: int, tasks: str = "a") -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    bad, good = rng.beta(2, 5, failures), rng.beta(5, 2, successes)
    clips = [clip(False, float(each)) for each in bad] + [clip(True, float(each)) for each in good]
    return [{**each, "task": tasks[n % len(tasks)]} for n, each in enumerate(clips)]


def test_what_cannot_support_a_calibration_is_refused():
    few, enough = drawn(0, 117, 20), drawn(0, 118, 20)
    calibrate(report(enough), "platt", 0.05, 0.95)
    alike = [clip(n % 2 == 0, 1.0) for n in range(400)] + [clip(False, 0.0)] * 100
    for clips, rate, change, words in (
        (drawn(0, 40, 8), 0.05, {}, r"78 more failures \(40 of 118\) and 12 more successes"),
        (few, 0.05, {}, "1 more failures"),
        (few, 0.01, {}, "of 598"),
        (alike, 0.05, {}, "no threshold finds a success"),
        (enough, 0.05, {"cameras": ["front", ""]}, "several cameras"),
        (enough, 0.05, {"requests": [{}, {}]}, "different options"),
        (enough, 0.05, {"provenance": {}}, "which judge"),
    ):
        with pytest.raises(ValueError, match=words):
            calibrate(report(clips, **change), "platt", rate, 0.95)
    inverted = [clip(n % 2 == 0, (n % 2 + n / 400) / 2) for n in range(400)]
    for kind in KINDS:
        with pytest.raises(ValueError, match="do not rise"):
            calibrate(report(inverted), kind, 0.05, 0.95)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_guarantee_holds_over_draws_of_the_labels(kind: str):
    """At most a tenth of the thresholds accept more than a tenth of all failures."""
    failures = scipy.stats.beta(2, 5).sf
    draws, exceeded, grid = 100, 0, np.linspace(0, 1, 4097).tolist()
    for seed in range(draws):
        found = calibrate(report(drawn(seed, 60, 40, "ab")), kind, 0.1, 0.9)
        firsts = [
            bisect_left(grid, found.threshold.value, key=lambda raw: found.map.value(raw, task))
            for task in "ab"
        ]
        exceeded += np.mean(failures([[*grid, 1.0][first] for first in firsts])) > 0.1
        assert found.threshold.accepted <= 0.1 * found.threshold.failures
    assert exceeded <= scipy.stats.binom.ppf(0.9999, draws, 0.1)


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1), st.sampled_from("ab")), min_size=4))
def test_every_map_rises_and_stays_within_0_and_1(rows):
    clips = [clip(*row) for row in rows] + [clip(True, 1.0), clip(False, 0.0)]
    for kind in KINDS:
        try:
            mapped = fit_map(kind, clips)
        except ValueError:
            continue
        for task in ("a", "unknown"):
            values = [mapped.value(raw, task) for raw in np.linspace(0, 1, 21)]
            assert all(0 <= a <= b <= 1 for a, b in zip(values, [*values[1:], 1], strict=True))


def test_maps_are_those_of_scikit_learn():
    from sklearn.isotonic import IsotonicRegression  # noqa: PLC0415 - slow to import
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415

    clips = drawn(3, 200, 150)
    raw, success = np.array([[each["raw_score"], each["success"]] for each in clips]).T
    grid = np.linspace(0, 1, 101)
    isotonic = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(raw, success)
    mapped = fit_map("isotonic", clips)
    found = [mapped.value(float(each), "") for each in grid]
    assert found == pytest.approx(isotonic.predict(grid).tolist(), abs=1e-3)
    # Platt's targets, 151/152 and 1/202, as weights of both labels.
    weights = np.where(success, 151 / 152, 1 / 202)
    x, labels = [[logit(each)] for each in raw] * 2, np.repeat([1, 0], len(raw))
    model = LogisticRegression(C=1e9, tol=1e-8, max_iter=1000)
    fitted = model.fit(x, labels, np.concatenate([weights, 1 - weights]))
    platt = fit_map("platt", clips)
    assert isinstance(platt, LogisticMap)
    assert platt.slope == pytest.approx(fitted.coef_[0, 0], rel=1e-3)
    assert platt.intercept == pytest.approx(fitted.intercept_[0], rel=1e-2)


def test_the_offset_of_a_task_with_few_clips_is_shrunk():
    """Tasks `few` and `many` succeed more often than their scores say, the others less."""
    rng = np.random.default_rng(0)
    clips = [clip(bool(rng.random() < 0.3), 0.5, "others") for _ in range(400)]
    clips += [clip(n < 2, 0.5, "few") for n in range(2)]
    clips += [clip(n % 10 > 0, 0.5, "Many  ") for n in range(200)]
    clips += [clip(True, 0.9, "others")] * 20 + [clip(False, 0.1, "others")] * 20
    mapped = fit_map("per-task", clips)
    assert isinstance(mapped, LogisticMap)
    assert 0 < mapped.tasks["few"] < mapped.tasks["many"]
    assert mapped.value(0.5, "many") > mapped.value(0.5, "few") > mapped.value(0.5, "unknown")
    assert mapped.value(0.5, "MANY") == mapped.value(0.5, "many")


def test_a_calibration_survives_its_file_and_a_damaged_one_is_refused():
    found = calibrate(report(drawn(0, 118, 20)), "isotonic", 0.05, 0.95)
    assert found.distribution is not None
    again = Calibration.model_validate_json(found.model_dump_json())
    assert again == found
    with pytest.raises(ValueError, match="below"):
        IsotonicMap(kind="isotonic", scores=[0, 1], values=[1, 0])
    with pytest.raises(ValueError, match="increasing"):
        IsotonicMap(kind="isotonic", scores=[0.5, 0.5], values=[0, 1])


def test_the_distribution_counts_raw_scores_and_abstentions_of_tasks_with_enough_labels():
    clips = [clip(n % 2 == 0, n / 40, "Fold  it" if n < 20 else "fold it") for n in range(40)]
    clips += [{**clip(True, 0.0, "fold it"), "raw_score": None, "status": "abstained"}]
    clips += [{**clip(True, 0.0, "fold it"), "raw_score": None, "status": "error"}]
    clips += [clip(n < 19, 1.0, "push it") for n in range(60)]
    found = distribution_of(clips)
    assert found.tasks.keys() == {"fold it"}
    own = found.tasks["fold it"]
    assert (sum(own.failures), sum(own.successes)) == (20, 21)
    assert (own.failures[-1], own.successes[-1]) == (0, 1)
    assert sum(found.overall.failures) == 20 + 41 and sum(found.overall.successes) == 21 + 19
    # 1.0 is in the last bin, 0.05 in the one that it begins.
    assert [found.place(raw) for raw in (0.0, 0.05, 1.0, None)] == [0, 2, 11, 12]
    assert found.overall.failures[found.place(1.0)] == 41
