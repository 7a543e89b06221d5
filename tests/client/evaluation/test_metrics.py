"""Figures of judges, against values computed by hand and by scikit-learn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardfleet.evaluation import metrics


def arrays(*columns):
    return [*map(np.array, columns, (bool, float, np.int64))]


def test_auroc_is_the_share_of_pairs_in_order():
    success, scores = arrays([1, 1, 0, 0], [0.9, 0.4, 0.6, 0.1])
    assert metrics.auroc(success, scores) == 3 / 4
    assert metrics.auroc(success, np.array([0.5, 0.5, 0.5, 0.1])) == 3 / 4  # two ties
    assert metrics.auroc(success[:2], scores[:2]) is None


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 8)), min_size=2, max_size=60))
def test_auroc_is_that_of_scikit_learn_also_with_ties(rows):
    from sklearn.metrics import roc_auc_score  # noqa: PLC0415 - slow to import

    success, scores = arrays(*zip(*rows, strict=True))
    if len(set(success.tolist())) == 2:
        assert metrics.auroc(success, scores) == pytest.approx(roc_auc_score(success, scores))


def test_a_judge_that_only_recognizes_tasks_is_found_out():
    """Pooled, it looks good; within tasks it is a coin."""
    of_tasks = [0] * 4 + [1] * 4
    success, scores, tasks = arrays([1, 1, 1, 0, 1, 0, 0, 0], [0.9] * 4 + [0.1] * 4, of_tasks)
    assert metrics.auroc(success, scores) == pytest.approx(0.75)
    within = metrics.mean_over_tasks(metrics.task_aurocs(success, scores, tasks))
    assert within == {"value": 0.5, "interval": None}
    assert metrics.auroc_of_tasks_alone(success, tasks) == pytest.approx(0.75)


def test_a_threshold_is_that_of_the_other_tasks():
    """Task 1 scores lower: the threshold of tasks 0 and 2 misses its success."""
    scores = [0.9, 0.5, 0.4, 0.1, 0.8, 0.6]
    success, scores, tasks = arrays([1, 0] * 3, scores, [0, 0, 1, 1, 2, 2])
    verdicts, known = metrics.verdicts_leaving_a_task_out(success, scores, tasks)
    assert known.all()
    # Left out: 0 -> at least 0.8 or 0.4 of the others; 1 -> at least 0.8; 2 -> at least 0.9 or 0.4.
    assert verdicts[2:4].tolist() == [False, False]
    _, known = metrics.verdicts_leaving_a_task_out(success, scores, np.zeros(6, np.int64))
    assert not known.any()


def test_near_misses_are_counted_apart_and_shares_have_exact_intervals():
    success = np.array([1, 1, 0, 0, 0, 0], bool)
    near = np.array([0, 0, 1, 1, 0, 0], bool)
    verdicts = np.array([1, 0, 1, 1, 0, 1], bool)
    found = metrics.verdict_figures(success, near, verdicts)
    shares = ("near_miss_false_positives", "other_false_positives", "recall")
    assert [(found[n]["count"], found[n]["of"]) for n in shares] == [(2, 2), (1, 2), (1, 2)]
    assert found["false_positives"]["value"] == 3 / 4
    assert found["accuracy"] == 2 / 6 and found["base_rate"] == 2 / 6
    # Agreement 1/3; by chance 1/3 * 2/3 + 2/3 * 1/3 = 4/9.
    assert found["kappa"] == pytest.approx((1 / 3 - 4 / 9) / (1 - 4 / 9))
    low, high = metrics.share(0, 59)["interval"]
    assert low == 0 and high == pytest.approx(1 - 0.025 ** (1 / 59))
    assert metrics.share(0, 0)["value"] is None


def test_the_calibration_error_weighs_bins_by_their_clips():
    success, scores = arrays([1, 0, 1, 1], [0.05, 0.05, 0.95, 1.0])
    found = metrics.reliability(success, scores)
    assert found["ece"] == pytest.approx(2 / 4 * (0.5 - 0.05) + 2 / 4 * (1 - 0.975))
    assert [each["clips"] for each in found["bins"]] == [2, 2]


def test_intervals_need_three_of_each_and_cover_the_value():
    few = metrics.with_interval(lambda _: 1.0, 3, metrics.draws_of_clips(np.array([1, 0, 0], bool)))
    assert few == {"value": 1.0, "interval": None}
    rng = np.random.default_rng(1)
    success = np.arange(60) % 2 == 0
    scores = np.clip(success * 0.3 + rng.random(60) * 0.7, 0, 1)
    draws = metrics.draws_of_clips(success)
    found = metrics.with_interval(lambda at: metrics.auroc(success[at], scores[at]), 60, draws)
    low, high = found["interval"]
    assert 0.5 < low < found["value"] < high < 1


def test_a_comparison_is_paired():
    """Scores that differ by a tiny constant order give a narrow interval; equal ones give 0."""
    from sklearn.metrics import roc_auc_score  # noqa: PLC0415 - slow to import

    success, bad = np.arange(80) % 2 == 0, np.random.default_rng(2).random(80)
    good, tasks = np.clip(success * 0.5 + bad * 0.5, 0, 1), np.arange(80) % 8 // 2
    same = metrics.comparison(success, ~success, tasks, (good, good), (0.5, 0.5))
    assert all(each["difference"] == {"value": 0.0, "interval": [0, 0]} for each in same.values())
    found = metrics.comparison(success, ~success, tasks, (good, bad), (0.5, 0.5))
    assert found["auroc_pooled"]["values"][1] == pytest.approx(roc_auc_score(success, bad))
    assert found["auroc_pooled"]["difference"]["interval"][0] > 0
    assert found["auroc_within_tasks"]["difference"]["interval"][0] > 0
    assert found["recall"]["difference"]["value"] == 1 - (bad[success] >= 0.5).mean()
