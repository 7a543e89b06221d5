"""The report of an evaluation, as JSON: figures per task first, pooled ones last."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rewardfleet.bulk.files import new_file
from rewardfleet.wire.score import figures_of

from . import metrics
from .labels import LabeledClip, LabeledClips

Report = dict[str, Any]

FORMAT = "rewardfleet eval 1"
FILE = "report.json"
#: Labels below which a report says that they are too few.
_FEW_LABELS = 50
#: How many mistakes are shown, and from which score on a disagreement is a confident one.
_SHOWN, _CONFIDENT = 12, 0.9
_BINS = 20


class _Arrays:
    """The labels and scores of the clips that have a score, as arrays `[N]`."""

    def __init__(self, clips: Sequence[LabeledClip]) -> None:
        self.clips = [each for each in clips if each.score is not None]
        self.success = np.array([each.success for each in self.clips], bool)
        self.near_miss = np.array([each.near_miss for each in self.clips], bool)
        self.scores = np.array([each.score for each in self.clips], float)
        names, self.tasks = np.unique([each.task for each in self.clips], return_inverse=True)
        self.names: list[str] = names.tolist()


def build_report(found: LabeledClips, threshold: float | None, seconds: float | None) -> Report:
    """Return the report of labeled clips.

    Args:
        threshold: A score of at least this is a success; None for that of the calibration, or 0.5.
        seconds: The time in which all of them were scored; None if an earlier command did a part.
    """
    arrays = _Arrays(found.clips)
    calibration = found.provenance.get("calibration") or {}
    limit = calibration.get("threshold", 0.5) if threshold is None else threshold
    verdicts = arrays.scores >= limit
    mistakes = _mistakes(arrays, verdicts)
    # What the judge saw.
    frames = [(each.record["provenance"] or {}).get("frames") or {} for each in found.clips]
    requests = {json.dumps(dict(e.request), sort_keys=True): dict(e.request) for e in found.clips}
    return {
        "format": FORMAT,
        "cannot_conclude": _cannot_conclude(arrays.clips),
        "judge": found.backend,
        "provenance": found.provenance,
        "requests": [requests[text] for text in sorted(requests)],
        "frame_sizes": sorted({(e["height"], e["width"]) for e in frames if "height" in e}),
        "cameras": sorted({each.camera or "" for each in found.clips}),
        "threshold": limit,
        "counts": {
            "labels": len(found.clips),
            "unclear": found.unclear,
            **Counter(each.record["status"] for each in found.clips),
        },
        "tasks": [_of_task(arrays, verdicts, task) for task in range(len(arrays.names))],
        "over_tasks": _over_tasks(arrays),
        "kinds": _kinds(arrays, verdicts),
        "reliability": metrics.reliability(arrays.success, arrays.scores),
        "value_order": _value_order(arrays.clips),
        "time": _time(found.clips, seconds),
        "pooled": _pooled(arrays, verdicts),
        "mistakes": mistakes[:_SHOWN],
        "disagreements": [each for each in mistakes if each["confidence"] >= _CONFIDENT],
        "missing": [_missing(each) for each in found.clips if each.score is None],
        "problems": [{"place": place, "reason": reason} for place, reason in found.problems],
        "clips": [_clip(each) for each in found.clips],
    }


def write_file(path: Path, text: str) -> None:
    """Write a file at once, so that it is complete or not there."""
    with new_file(path) as file:
        file.write(text.encode(errors="replace"))  # lone surrogates


def write_report(folder: Path, report: Report) -> None:
    """Write a report, and the judge's verdicts as a sidecar of the labels."""
    write_file(folder / FILE, json.dumps(report, indent=1, allow_nan=False))
    lines = ""
    for each in report["clips"]:
        line = {name: each[name] for name in ("place", "name", "task", "success", "status")}
        score = each["score"]
        success = None if score is None else score >= report["threshold"]
        line |= {"judge": report["judge"], "judge_score": score, "judge_success": success}
        lines += f"{json.dumps(line)}\n"
    write_file(folder / "verdicts.jsonl", lines)


def read_report(path: Path) -> Report:
    """Read the report of a folder.

    Raises:
        ValueError: There is none, as the evaluation was interrupted, or it is damaged.
    """
    file = path / FILE
    if not file.exists():
        raise ValueError(
            f"{path} has no {FILE}: it is no output of `rewardfleet eval`, or that was "
            "interrupted; the same command goes on"
        )
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is damaged: {error}") from None
    if not isinstance(report, dict) or report.get("format") != FORMAT:
        raise ValueError(f"{file} is no report of `rewardfleet eval` of this version")
    return report


def compare(report: Report, other: Report) -> Report:
    """Return the comparison of two judges on the clips that both have a score of.

    Raises:
        ValueError: There are none.
    """
    first, second = (
        {(each["name"], each["task"]): each for each in one["clips"] if each["score"] is not None}
        for one in (report, other)
    )
    common = [key for key in first if key in second]
    same = [key for key in common if first[key]["success"] == second[key]["success"]]
    if not same:
        raise ValueError("no clip has a score and the same label in both reports")
    clips = [first[key] for key in same]
    tasks = np.unique([each["task"] for each in clips], return_inverse=True)[1]
    scores = [np.array([one[key]["score"] for key in same], float) for one in (first, second)]
    return {
        "judges": [report["judge"], other["judge"]],
        "provenance": [report["provenance"], other["provenance"]],
        "thresholds": [report["threshold"], other["threshold"]],
        "clips": len(same),
        "only_in_one": len(first) + len(second) - 2 * len(common),
        "labels_differ": [first[key]["place"] for key in common if key not in set(same)],
        "figures": metrics.comparison(
            np.array([each["success"] for each in clips], bool),
            np.array([each["near_miss"] for each in clips], bool),
            np.asarray(tasks, np.int64).reshape(-1),
            (scores[0], scores[1]),
            (report["threshold"], other["threshold"]),
        ),
    }


def repeated(
    clips: Sequence[LabeledClip], again: Mapping[int, Mapping[str, Any]], threshold: float
) -> Report:
    """Return how far a second answer to each request agrees with the first.

    Args:
        again: The second answers, by row.
    """
    pairs = [(each.score, again.get(each.record["row"], {})) for each in clips]
    scored = [(s, r["score"]) for s, r in pairs if s is not None and r.get("score") is not None]
    one, two = np.array(scored, float).reshape(-1, 2).T
    agreed = metrics.agreement(one >= threshold, two >= threshold)
    return {
        "clips": len(scored),
        "from_cache": sum(bool(record.get("cached")) for _, record in pairs),
        "same_verdict": agreed["accuracy"],
        "kappa": agreed["kappa"],
        "mean_difference": float(np.abs(one - two).mean()) if scored else None,
        "largest_difference": float(np.abs(one - two).max()) if scored else None,
    }


def _cannot_conclude(clips: Sequence[LabeledClip]) -> str:
    """Return what the labels cannot support, as one sentence; "" if there is nothing."""
    if not clips:
        return "Nothing can be concluded: no labeled clip has a score."
    reasons = []
    labels = {each.success for each in clips}
    if len(labels) == 1:
        only = "successes" if True in labels else "failures"
        reasons.append(f"whether the judge tells successes from failures, as all clips are {only}")
    if len(clips) < _FEW_LABELS:
        reasons.append(
            f"how good the judge is beyond the wide intervals below, as {len(clips)} labeled clips "
            f"have a score; {_FEW_LABELS} are the least"
        )
    camera, *others = {each.camera for each in clips}
    if not others:
        named = "of no named camera" if camera is None else f"of one camera ({camera})"
        reasons.append(f"how good it is with another camera, as all clips are {named}")
    return f"What cannot be concluded: {'; '.join(reasons)}." if reasons else ""


def _of_task(arrays: _Arrays, verdicts: metrics.Labels, task: int) -> Report:
    at = np.flatnonzero(arrays.tasks == task)
    draws = metrics.draws_of_clips(arrays.success[at])
    return {"task": arrays.names[task], **_figures(arrays, verdicts, at, list(draws))}


def _over_tasks(arrays: _Arrays) -> Report:
    """Return what does not profit from recognizing a task."""
    success, scores, tasks = arrays.success, arrays.scores, arrays.tasks
    aurocs = metrics.task_aurocs(success, scores, tasks)
    left_out, known = metrics.verdicts_leaving_a_task_out(success, scores, tasks)
    kept = np.flatnonzero(known)
    figures = _figures(arrays, left_out, kept, list(metrics.draws_of_tasks(tasks[kept])))
    within = metrics.mean_over_tasks(aurocs)
    return {
        "tasks": len(arrays.names),
        "tasks_with_both_labels": len(aurocs),
        "auroc_within_tasks": within,
        "auroc_of_tasks_alone": metrics.auroc_of_tasks_alone(success, tasks),
        "leaving_one_task_out": {**figures, "auroc": within},
    }


def _pooled(arrays: _Arrays, verdicts: metrics.Labels) -> Report:
    success = arrays.success
    draws = list(metrics.draws_of_tasks(arrays.tasks)) or list(metrics.draws_of_clips(success))
    return {
        # As a judge that answers 0 or 1, e.g. for RLinf's training on a world model.
        "auroc_of_verdicts": metrics.auroc(success, verdicts.astype(float)),
        **_figures(arrays, verdicts, np.arange(len(success)), draws),
    }


def _figures(
    arrays: _Arrays, verdicts: metrics.Labels, at: metrics.Indices, draws: list[metrics.Indices]
) -> Report:
    """Return the figures of the clips at some indices, of which each draw has places."""
    success, scores, said = arrays.success[at], arrays.scores[at], verdicts[at]
    right = success == said
    auroc = metrics.with_interval(
        lambda places: metrics.auroc(success[places], scores[places]), len(at), draws
    )
    accuracy = metrics.with_interval(lambda places: metrics.mean(right[places]), len(at), draws)
    return {
        "auroc": auroc,
        "accuracy_interval": accuracy["interval"],
        **metrics.verdict_figures(success, arrays.near_miss[at], said),
    }


def _kinds(arrays: _Arrays, verdicts: metrics.Labels) -> list[Report]:
    """Return by kind of failure the histogram of scores, and how many are called a success."""
    kinds = np.array([each.kind for each in arrays.clips])
    names = sorted({*kinds.tolist()}, key=lambda kind: (kind != "success", kind))
    return [
        {
            "kind": kind,
            "near_miss": bool(arrays.near_miss[kinds == kind].any()),
            "called_success": metrics.share_of(verdicts, kinds == kind),
            "histogram": np.histogram(arrays.scores[kinds == kind], _BINS, (0, 1))[0].tolist(),
        }
        for kind in names
    ]


def _value_order(clips: Sequence[LabeledClip]) -> Report:
    """Return the mean correlation of values with time, of successes and of failures."""
    values: dict[bool, list[float]] = {True: [], False: []}
    for each in clips:
        if (value := figures_of(each.record).get("value_order_correlation")) is not None:
            values[each.success].append(value)
    named = {"successes": np.array(values[True]), "failures": np.array(values[False])}
    return {name: {"clips": len(v), "mean": metrics.mean(v)} for name, v in named.items()}


def _time(clips: Sequence[LabeledClip], seconds: float | None) -> Report:
    """Return the time of clips that were computed, in milliseconds, and the rate."""
    records = (each.record for each in clips if each.score is not None)
    computed = [each for each in records if not each["cached"] and each["timing_ms_total"]]
    stages = {}
    for name in ("decode", "backend", "total"):
        times = [each[f"timing_ms_{name}"] for each in computed]
        middle, late = np.percentile(times, [50, 95]).round(3).tolist() if times else (None, None)
        stages[name] = {"median": middle, "p95": late}
    per_clip = round(seconds / len(clips), 6) if seconds is not None and clips else None
    return {"computed": len(computed), "ms": stages, "seconds_per_clip": per_clip}


def _mistakes(arrays: _Arrays, verdicts: metrics.Labels) -> list[Report]:
    """Return the wrong verdicts, the most confident first."""
    gaps = np.abs(arrays.scores - arrays.success)
    wrong = np.flatnonzero(verdicts != arrays.success)
    return [
        {
            **_clip(arrays.clips[at]),
            "confidence": float(gaps[at]),
            "words": str(arrays.clips[at].record.get("model_output") or ""),
        }
        for at in wrong[np.argsort(-gaps[wrong], kind="stable")]
    ]


def _clip(clip: LabeledClip) -> Report:
    names = ("name", "task", "success", "near_miss", "kind", "camera", "score", "raw_score")
    given = {name: getattr(clip, name) for name in names}
    return {"place": clip.row.place, **{n: clip.record[n] for n in ("row", "status")}, **given}


def _missing(clip: LabeledClip) -> Report:
    record = clip.record
    words = record.get("error_detail") or record.get("model_output") or ""
    return {**_clip(clip), "error": record.get("error_kind"), "reason": str(words)}
