"""Figures of a judge: arrays of labels and scores in, numbers out.

`success` is an array of bool `[N]`, `scores` one of floats in [0, 1] `[N]`, `tasks` one of whole
numbers `[N]`, each of a task. A figure that cannot be computed is None. Intervals are of 95%.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Labels: TypeAlias = NDArray[np.bool_]
Scores: TypeAlias = NDArray[np.float64]
Indices: TypeAlias = NDArray[np.int64]
#: A figure of the clips at some indices.
Statistic: TypeAlias = Callable[[Indices], float | None]

_DRAWS = 1000
#: Fewer successes or failures of a task, or fewer tasks, give no interval.
_LEAST = 3
_BINS = 10


def mean(values: NDArray[Any]) -> float | None:
    """Return the mean of some values."""
    return float(values.mean()) if len(values) else None


def auroc(success: Labels, scores: Scores) -> float | None:
    """Return the probability that a success scores above a failure, with ties counted half.

    That is the area under the ROC curve (Hanley and McNeil, Radiology 143, 1982).
    """
    above, below = scores[success], np.sort(scores[~success])
    if not (len(above) and len(below)):
        return None
    wins = sum(np.searchsorted(below, above, side).sum() for side in ("left", "right")) / 2
    return float(wins / (len(above) * len(below)))


def task_aurocs(success: Labels, scores: Scores, tasks: Indices) -> Scores:
    """Return the AUROCs of the tasks that have both labels."""
    values = [auroc(success[tasks == task], scores[tasks == task]) for task in np.unique(tasks)]
    return np.array([each for each in values if each is not None], float)


def mean_over_tasks(values: Scores) -> dict[str, Any]:
    """Return the mean of one value of each task, and its interval by a bootstrap over tasks."""
    draws = draws_of_tasks(np.arange(len(values)))
    return with_interval(lambda at: mean(values[at]), len(values), draws)


def auroc_of_tasks_alone(success: Labels, tasks: Indices) -> float | None:
    """Return the AUROC of a judge that knows the share of successes of each task, and no clip."""
    shares = np.bincount(tasks, success) / np.maximum(1, np.bincount(tasks))
    return auroc(success, shares[tasks])


def share(count: int, of: int) -> dict[str, Any]:
    """Return a share with its interval by Clopper and Pearson."""
    from scipy.stats import binomtest  # noqa: PLC0415 - optional

    if not of:
        return {"count": 0, "of": 0, "value": None, "interval": None}
    low, high = binomtest(count, of).proportion_ci(method="exact")
    return {"count": count, "of": of, "value": count / of, "interval": [float(low), float(high)]}


def share_of(verdicts: Labels, chosen: Labels) -> dict[str, Any]:
    """Return the share of the chosen clips that are called a success."""
    return share(int(verdicts[chosen].sum()), int(chosen.sum()))


def draws_of_clips(success: Labels) -> Iterator[Indices]:
    """Draw clips with replacement, successes and failures apart; none if there are too few."""
    rng, groups = np.random.default_rng(0), (np.flatnonzero(success), np.flatnonzero(~success))
    if min(map(len, groups)) >= _LEAST:
        for _ in range(_DRAWS):
            yield np.concatenate([rng.choice(each, len(each)) for each in groups])


def draws_of_tasks(tasks: Indices) -> Iterator[Indices]:
    """Draw tasks with replacement, each with all of its clips, as clips of a task are alike."""
    rng = np.random.default_rng(0)
    groups = [np.flatnonzero(tasks == task) for task in np.unique(tasks)]
    if len(groups) >= _LEAST:
        for _ in range(_DRAWS):
            chosen = rng.choice(len(groups), len(groups))
            yield np.concatenate([groups[each] for each in chosen])


def with_interval(statistic: Statistic, count: int, draws: Iterable[Indices]) -> dict[str, Any]:
    """Return a figure of `count` clips with its bootstrap interval, by percentiles."""
    drawn = [each for each in map(statistic, draws) if each is not None]
    enough = len(drawn) > _DRAWS / 2
    interval = [float(each) for each in np.percentile(drawn, [2.5, 97.5])] if enough else None
    return {"value": statistic(np.arange(count)), "interval": interval}


def agreement(success: Labels, verdicts: Labels) -> dict[str, Any]:
    """Return the agreement of verdicts with labels beside what chance gives: Cohen's kappa."""
    if not len(success):
        return {"accuracy": None, "base_rate": None, "kappa": None}
    accuracy, base_rate = float((success == verdicts).mean()), float(success.mean())
    chance = base_rate * verdicts.mean() + (1 - base_rate) * (1 - verdicts.mean())
    kappa = float((accuracy - chance) / (1 - chance)) if chance < 1 else None
    return {"accuracy": accuracy, "base_rate": base_rate, "kappa": kappa}


def verdict_figures(success: Labels, near_miss: Labels, verdicts: Labels) -> dict[str, Any]:
    """Return the counts and shares of verdicts: false positives, near misses apart, and recall."""
    return {
        "clips": len(success),
        "successes": int(success.sum()),
        "failures": int((~success).sum()),
        "false_positives": share_of(verdicts, ~success),
        "near_miss_false_positives": share_of(verdicts, ~success & near_miss),
        "other_false_positives": share_of(verdicts, ~success & ~near_miss),
        "recall": share_of(verdicts, success),
        **agreement(success, verdicts),
    }


def reliability(success: Labels, scores: Scores) -> dict[str, Any]:
    """Return the expected calibration error, and by tenth of the scores what they came to."""
    places = np.minimum((scores * _BINS).astype(int), _BINS - 1)
    bins = [
        {
            "clips": int((places == place).sum()),
            "mean_score": float(scores[places == place].mean()),
            "successes": float(success[places == place].mean()),
        }
        for place in np.unique(places)
    ]
    gaps = [each["clips"] * abs(each["mean_score"] - each["successes"]) for each in bins]
    return {"ece": sum(gaps) / len(scores) if len(scores) else None, "bins": bins}


def verdicts_leaving_a_task_out(
    success: Labels, scores: Scores, tasks: Indices
) -> tuple[Labels, Labels]:
    """Return verdicts by thresholds that are chosen on the other tasks, and where there are any.

    A threshold has the highest mean of recall and of failures below it.
    """
    from sklearn.metrics import roc_curve  # noqa: PLC0415 - optional

    verdicts, known = np.zeros(len(success), bool), np.zeros(len(success), bool)
    for task in np.unique(tasks):
        others = tasks != task
        if len(set(success[others].tolist())) == 2:
            wrong, right, thresholds = roc_curve(success[others], scores[others])
            verdicts[~others] = scores[~others] >= thresholds[np.argmax(right - wrong)]
            known[~others] = True
    return verdicts, known


def comparison(
    success: Labels, near_miss: Labels, tasks: Indices, scores: tuple[Scores, Scores],
    thresholds: tuple[float, float],
) -> dict[str, Any]:  # fmt: skip
    """Return by figure the values of two judges, and their difference by a paired bootstrap.

    Both judges are compared on the same draws, of tasks for the AUROC within tasks, else of clips.
    """
    accepted = [values >= limit for values, limit in zip(scores, thresholds, strict=True)]
    draws = list(draws_of_clips(success))

    def compared(value: Callable[[int, Indices], float | None]) -> dict[str, Any]:
        """Compare a figure of the clips at some indices, of judge 0 and of judge 1."""

        def difference(at: Indices) -> float | None:
            one, two = value(0, at), value(1, at)
            return None if one is None or two is None else one - two

        everything = np.arange(len(success))
        return {
            "values": [value(judge, everything) for judge in (0, 1)],
            "difference": with_interval(difference, len(success), draws),
        }

    def accepted_of(chosen: Labels) -> dict[str, Any]:
        return compared(lambda judge, at: mean(accepted[judge][at[chosen[at]]]))

    by_task = [task_aurocs(success, each, tasks) for each in scores]
    return {
        "auroc_within_tasks": {
            "values": [mean_over_tasks(each)["value"] for each in by_task],
            "difference": mean_over_tasks(by_task[0] - by_task[1]),
        },
        "false_positives": accepted_of(~success),
        "near_miss_false_positives": accepted_of(~success & near_miss),
        "recall": accepted_of(success),
        "accuracy": compared(lambda judge, at: mean(accepted[judge][at] == success[at])),
        "auroc_pooled": compared(lambda judge, at: auroc(success[at], scores[judge][at])),
    }
