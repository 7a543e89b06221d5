"""Calibrations of judges from labels: a map of scores, and a threshold with a guarantee.

The labels are split at random into two halves. The map is fitted on one. The other one, which the
map has not seen, sets the threshold: the lowest one that accepts at most `k` of its `n` failures,
where `k` is the largest number for which the bound by Clopper and Pearson is at most the chosen
rate. As `k` follows from `n` before any score is looked at, the threshold is an order statistic,
and the bound holds exactly: whatever the scores' distribution, at most the chosen rate of further
failures is accepted, with the chosen confidence over draws of the labels. Conformal prediction
would need fewer labels, but bounds the rate on average over calibrations only; a training run uses
one of them.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rewardfleet.wire.calibration import (
    MOST_TASKS,
    Binding,
    Calibration,
    Distribution,
    IsotonicMap,
    LabelCounts,
    LogisticMap,
    Threshold,
    bound_provenance,
    logit,
    place_of,
    task_key,
)

from . import metrics
from .report import Report

#: Successes that each half needs.
_LEAST_SUCCESSES = 10
#: The standard deviation of the offsets of tasks, before a clip is seen: it shrinks those of tasks
#: with few clips towards 0.
_OFFSET = 1.0

#: The share of the raw score in an isotonic map.
_OF_RAW = 1e-3
#: Edges of bins of raw scores, the same for all judges, as bounds hold for bins that were chosen
#: before any score was seen. They are closer near 0 and 1, where probabilities of models are.
_EDGES = [0.01, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.99]
#: Failures, and successes, from which on the scores of a task are compared with its own labels.
_LEAST_OF_TASK = 20

_NO_RISE = "the scores do not rise with success in these labels: no map is fitted"

Clip = Mapping[str, Any]


def calibrate(
    report: Report, kind: str, false_positive_rate: float, confidence: float
) -> Calibration:
    """Return a calibration from the clips of a report.

    Args:
        kind: `isotonic`, `platt` or `per-task`.
        false_positive_rate: The share of failures that may be accepted, in (0, 1).
        confidence: That it holds, in (0, 1).

    Raises:
        ValueError: The labels cannot support it, and how many are missing; or the scores do not
            tell successes from failures.
    """
    from scipy.stats import binom  # noqa: PLC0415 - optional

    binding = _binding(report)
    clips = [each for each in report["clips"] if each["raw_score"] is not None]
    _check_labels(clips, false_positive_rate, confidence)
    # Halves at random, successes and failures apart, of which this one has the odd failure.
    order = np.random.default_rng(0).permutation(len(clips))
    ordered = [clips[place] for place in sorted(order, key=lambda place: clips[place]["success"])]
    held_out = ordered[::2]
    mapped = fit_map(kind, ordered[1::2])
    values = np.array([mapped.value(each["raw_score"], each["task"]) for each in held_out], float)
    success = np.array([each["success"] for each in held_out], bool)
    count = int((~success).sum())
    # Of so many failures at most may be accepted for the bound to be at most the rate.
    bounds = binom.cdf(np.arange(count), count, false_positive_rate)
    most = int(np.flatnonzero(bounds <= 1 - confidence)[-1])
    limit = float(np.nextafter(np.sort(values[~success])[-1 - most], 2.0))
    verdicts = values >= limit
    if limit > 1 or not verdicts[success].any():
        raise ValueError(
            f"no threshold finds a success: {most + 1} of {count} failures score as "
            "high as the best success. Improve the judge, or allow more false positives"
        )
    threshold = Threshold(
        value=limit,
        false_positive_rate=false_positive_rate,
        confidence=confidence,
        failures=count,
        accepted=int(verdicts[~success].sum()),
        successes=int(success.sum()),
        found=int(verdicts[success].sum()),
    )
    return Calibration(
        format="rewardfleet calibration 2",
        binding=binding,
        map=mapped,
        threshold=threshold,
        checked=_checked(held_out, success, values, verdicts),
        distribution=distribution_of(report["clips"]),
    )


def _binding(report: Report) -> Binding:
    """Return what the scores of a report come from: one kind of requests, and one camera."""
    if not report["provenance"]:
        raise ValueError("the scores do not say which judge they are of: score the clips again")
    if len(report["requests"]) != 1:
        raise ValueError("the clips were judged with different options: nframes, max_pixels, …")
    if len(report["cameras"]) != 1:
        cameras = ", ".join(each or "one without a name" for each in report["cameras"])
        raise ValueError(f"the clips are of several cameras ({cameras}): calibrate each by itself")
    return Binding(
        backend=report["judge"],
        provenance=bound_provenance(report["provenance"]),
        **report["requests"][0],
        camera=report["cameras"][0] or None,
        frame_sizes=report["frame_sizes"],
    )


def _check_labels(clips: Sequence[Clip], rate: float, confidence: float) -> None:
    failures = sum(not each["success"] for each in clips)
    # So many failures, none of them accepted, bound the rate: 59 for 5% and 95%.
    needed = 2 * math.ceil(math.log(1 - confidence) / math.log(1 - rate))
    missing = [
        f"{least - have} more {name} ({have} of {least})"
        for name, have, least in (
            ("failures", failures, needed),
            ("successes", len(clips) - failures, 2 * _LEAST_SUCCESSES),
        )
        if have < least
    ]
    if missing:
        raise ValueError(
            f"too few labels for at most {rate:.3g} false positives with a confidence of "
            f"{confidence:.3g}: {' and '.join(missing)} are missing, half of which set the "
            f"threshold; {needed // 2} failures there, none of them accepted, are the least"
        )


def fit_map(kind: str, clips: Sequence[Clip]) -> IsotonicMap | LogisticMap:
    """Return the map of some clips.

    Raises:
        ValueError: Their scores do not rise with success.
    """
    success = np.array([each["success"] for each in clips], bool)
    raw = np.array([each["raw_score"] for each in clips], float)
    if kind == "isotonic":
        return _isotonic(success, raw)
    return _logistic(kind, success, raw, [task_key(each["task"]) for each in clips])


def _isotonic(success: NDArray[np.bool_], raw: NDArray[np.float64]) -> IsotonicMap:
    """Fit steps that rise, a little of the raw score added, so that clips of a step keep an order.

    Without it, no threshold could be above a failure on the last step and below its successes.
    """
    from sklearn.isotonic import IsotonicRegression  # noqa: PLC0415 - optional

    fitted = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(raw, success)
    x = np.unique([0.0, *fitted.X_thresholds_, 1.0])
    y = np.maximum.accumulate(fitted.predict(x))
    if not y[-1] > y[0]:
        raise ValueError(_NO_RISE)
    values = np.clip((1 - _OF_RAW) * y + _OF_RAW * x, 0, 1)
    return IsotonicMap(kind="isotonic", scores=x.tolist(), values=values.tolist())


def _logistic(
    kind: Any, success: NDArray[np.bool_], raw: NDArray[np.float64], keys: Sequence[str]
) -> LogisticMap:
    """Fit a logistic function, with an offset for each task that is shrunk towards 0.

    The targets are those of Platt, a little within 0 and 1, so that labels that the scores
    separate have a finite slope. The slope is not negative, so that the map is monotone.
    """
    from scipy.optimize import minimize  # noqa: PLC0415 - optional

    names = sorted(set(keys)) if kind == "per-task" else []
    of_tasks = [[key == name for key in keys] for name in names]
    features = np.array([[1.0] * len(raw), [logit(each) for each in raw], *of_tasks], float).T
    shrinkage = np.array([0, 0, *[1 / _OFFSET**2] * len(names)])
    count = int(success.sum())
    target = np.where(success, (count + 1) / (count + 2), 1 / (len(success) - count + 2))

    def loss(parameters: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        z = features @ parameters
        total = np.logaddexp(0, z).sum() - target @ z + shrinkage @ parameters**2 / 2
        wrong = 1 / (1 + np.exp(-z)) - target
        return float(total), wrong @ features + shrinkage * parameters

    start = np.array([0.0, 1.0, *[0.0] * len(names)])
    bounds = [(None, None), (0, None), *[(None, None)] * len(names)]
    intercept, slope, *offsets = minimize(loss, start, jac=True, bounds=bounds).x.tolist()
    if not slope > 0:
        raise ValueError(_NO_RISE)
    tasks = dict(zip(names, offsets, strict=True))
    return LogisticMap(kind=kind, slope=slope, intercept=intercept, tasks=tasks)


def distribution_of(clips: Iterable[Clip]) -> Distribution:
    """Return the distribution of the raw scores of clips, of those that abstained as well.

    The tasks are those with enough labels, at most `MOST_TASKS`: the ones with the most.
    """
    by_task: dict[str, list[Clip]] = defaultdict(list)
    for each in clips:
        if each["raw_score"] is not None or each["status"] == "abstained":
            by_task[task_key(each["task"])].append(each)
    counts = {task: _counts(own) for task, own in sorted(by_task.items())}
    labels = {task: (sum(each.failures), sum(each.successes)) for task, each in counts.items()}
    known = [task for task, each in labels.items() if min(each) >= _LEAST_OF_TASK]
    known.sort(key=lambda task: sum(labels[task]), reverse=True)
    return Distribution(
        edges=_EDGES,
        overall=_counts([each for own in by_task.values() for each in own]),
        tasks={task: counts[task] for task in known[:MOST_TASKS]},
    )


def _counts(clips: Sequence[Clip]) -> LabelCounts:
    counts = np.zeros((2, len(_EDGES) + 2), int)
    for each in clips:
        counts[int(each["success"]), place_of(each["raw_score"], _EDGES)] += 1
    failures, successes = counts.tolist()
    return LabelCounts(failures=failures, successes=successes)


def _checked(
    clips: Sequence[Clip],
    success: NDArray[np.bool_],
    values: NDArray[np.float64],
    verdicts: NDArray[np.bool_],
) -> dict[str, Any]:
    """Return the figures of the half that the map has not seen."""
    raw = np.array([each["raw_score"] for each in clips], float)
    near = np.array([each["near_miss"] for each in clips], bool)
    accepted = Counter(clips[at]["task"] for at in np.flatnonzero(verdicts & ~success).tolist())
    return {
        **metrics.verdict_figures(success, near, verdicts),
        "auroc": metrics.auroc(success, values),
        "ece": metrics.reliability(success, values)["ece"],
        "ece_of_raw_scores": metrics.reliability(success, raw)["ece"],
        "false_positives_by_task": dict(sorted(accepted.items())),
    }
