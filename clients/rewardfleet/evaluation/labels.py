"""Labels of clips, joined with the scores of a judge."""

import functools
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rewardfleet.bulk.lerobot import successes_of
from rewardfleet.bulk.requests import Columns, clip_name, task_of
from rewardfleet.bulk.rows import Row, Source
from rewardfleet.score_log.record import Record
from rewardfleet.video import DEFAULTS
from rewardfleet.wire.calibration import bound_fields, bound_provenance
from rewardfleet.wire.score import figures_of

_WORDS = {"true": True, "false": False, "1": True, "0": False}


@dataclass(frozen=True)
class LabeledClip:
    """A clip with its label and its score."""

    name: str  #: of its file or episode, as the input has it
    task: str
    success: bool
    near_miss: bool  #: whether it is a failure that looks much like a success
    kind: str  #: of failure; `success` or `failure` if none is named
    camera: str | None
    row: Row
    record: Record
    request: Mapping[str, Any]  #: the options of its request

    @property
    def score(self) -> float | None:
        """The judge's score; None if it has none."""
        score: float | None = self.record["score"]
        return score

    @property
    def raw_score(self) -> float | None:
        """The score before a calibration."""
        raw: float | None = figures_of(self.record).get("raw_score", self.score)
        return raw


@dataclass
class LabeledClips:
    """What can be evaluated, and what cannot."""

    clips: list[LabeledClip] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)  #: where, and what is wrong
    unclear: int = 0  #: rows whose label is null
    backend: str = ""  #: the judge of all scores
    provenance: dict[str, Any] = field(default_factory=dict)  #: its own


def labeled_clips(
    sources: Sequence[Source], records: Mapping[int, Record], options: Mapping[str, Any]
) -> LabeledClips:
    """Join the labels of an input with the scores of its rows.

    Args:
        records: By row.
        options: Of the command: `camera`, `task`, and fields of all requests as `changes`.
    """
    found = LabeledClips()
    for number, (row, label) in enumerate(_labels_of(sources)):
        if isinstance(label, str):
            found.problems.append((row.place, label))
        elif label is None:
            found.unclear += 1
        elif number not in records:
            found.problems.append((row.place, "it was not scored"))
        else:
            record = _with_recorded_score(records[number], row.fields)
            found.clips.append(_clip(row, record, options, success=label))
    _set_aside_contradictions(found)
    _set_aside_other_judges(found)
    return found


def check_labels(sources: Sequence[Source]) -> None:
    """Check that there is something to evaluate, before anything is scored.

    Raises:
        ValueError: No row has a label, or a judge wrote those of a data set.
    """
    labels = list(_labels_of(sources))
    if not any(isinstance(label, bool) for _, label in labels):
        first = next((f"; {row.place}: {why}" for row, why in labels if why), "")
        raise ValueError(f"no row has a label, `success` true or false{first}")


def _labels_of(sources: Sequence[Source]) -> Iterator[tuple[Row, bool | str | None]]:
    """Yield rows, and the label of each or what is wrong with it."""
    rows = [(source, _without_content(row)) for source in sources for row in source.rows()]
    # Of lines that a person labeled.
    ids = [row.fields.get("id") if "label" in row.fields else None for _, row in rows]
    last = {str(each): number for number, each in enumerate(ids)}
    successes = functools.cache(successes_of)  # read once for each data set
    for number, (source, row) in enumerate(rows):
        if source.is_lerobot and not row.error:
            success = successes(row.folder).get(row.fields["episode_index"])
            yield row._replace(fields={**row.fields, "success": success}), success
        elif ids[number] is not None and last[str(ids[number])] != number:
            yield row, "labeled again further below, which counts"
        else:
            yield row, _success_of(row)


def _without_content(row: Row) -> Row:
    """Return a row without the contents of clips, as all rows are kept in memory."""
    fields = {
        name: each
        for name, each in row.fields.items()
        if name not in {"video_base64", "frames_base64"}
        and not isinstance(each, bytes)
        and not (isinstance(each, Mapping) and "bytes" in each)
    }
    return row._replace(fields=fields)


def _success_of(row: Row) -> bool | str | None:
    fields = row.fields
    if row.error:
        return row.error
    if "label" in fields and fields.get("service", "video") != "video":
        return f"a label of the service {fields['service']!r:.60}, not of video"
    if "success" not in fields:
        return "no column `success`"
    given = fields["success"]
    if given is None or isinstance(given, bool):
        return given
    return _WORDS.get(str(given).strip().lower(), f"success is {given!r:.60}: give true or false")


def _with_recorded_score(record: Record, fields: Mapping[str, Any]) -> Record:
    """Return a record with the score of a label file's line if it names no video that is there."""
    score, clip = fields.get("score"), fields.get("clip")
    is_there = fields.get("video_path") is not None or (clip is not None and Path(clip).exists())
    is_recorded = "label" in fields and not is_there
    if not is_recorded or not isinstance(score, int | float) or not 0 <= score <= 1:
        return record
    known = {"status": "ok", "score": float(score), "backend": fields.get("judge") or ""}
    return {**record, **known, "error_kind": None, "error_detail": None, "provenance": {}}


def _clip(row: Row, record: Record, options: Mapping[str, Any], success: bool) -> LabeledClip:
    fields = row.fields
    kind = "success" if success else str(fields.get("failure_kind") or "failure")
    near = fields.get("near_miss")
    is_near = kind.startswith("near_miss") if near is None else str(near).lower() in {"true", "1"}
    clips = fields.get("clips")
    only = next(iter(clips)) if isinstance(clips, Mapping) and len(clips) == 1 else None
    camera = fields.get("camera") or options.get("camera") or only
    request = {name: fields.get(name) or each for name, each in DEFAULTS.items()}
    request |= options.get("changes", {})
    if not isinstance(request["backend_kwargs"], Mapping):
        request["backend_kwargs"] = {}
    return LabeledClip(
        name=clip_name(row),
        task=str(task_of(row, Columns(), options.get("task")) or ""),
        success=success,
        near_miss=not success and is_near,
        kind=kind,
        camera=None if camera is None else str(camera),
        row=row,
        record=record,
        request=bound_fields(request),
    )


def _set_aside_contradictions(found: LabeledClips) -> None:
    """Leave out clips that have both labels, and those that occur again."""
    by_request: dict[str, list[LabeledClip]] = defaultdict(list)
    for each in found.clips:
        by_request[each.record["id"]].append(each)
    found.clips = []
    for same in by_request.values():
        places = [each.row.place for each in same]
        reason = f"the same clip and task as {places[0]}: counted once"
        if len({each.success for each in same}) == 1:
            found.clips.append(same[0])
            del places[0]
        else:
            named = ", ".join(places)
            reason = f"contradictory labels, none of which counts: same clip and task at {named}"
        found.problems += [(place, reason) for place in places]


def _set_aside_other_judges(found: LabeledClips) -> None:
    """Take scores for errors that are not of the judge of most, as after a change of the service.

    Scores of label files without a video have no provenance, so their judge's name counts.
    """
    judged = [each for each in found.clips if each.score is not None]
    scored = [each for each in judged if each.record["provenance"]]
    keys = Counter(map(_judge_key, scored or judged))
    if not keys:
        return
    (most, _), *_ = keys.most_common(1)
    first = next(each for each in scored or judged if _judge_key(each) == most)
    found.backend = first.record["backend"]
    found.provenance = {k: v for k, v in first.record["provenance"].items() if k != "frames"}

    def of_this_judge(clip: LabeledClip) -> LabeledClip:
        record = clip.record
        is_unknown = not record["provenance"] and record["backend"] == found.backend
        if clip.score is None or is_unknown or _judge_key(clip) == most:
            return clip
        own, other = _judge_of(record), _judge_of(first.record)
        names = sorted(name for name in {*own, *other} if own.get(name) != other.get(name))
        detail = f"scored by another judge than most clips ({', '.join(names)})"
        error = {"error_kind": "another_judge", "error_detail": detail}
        return replace(clip, record={**record, "status": "error", "score": None, **error})

    found.clips = list(map(of_this_judge, found.clips))


def _judge_key(clip: LabeledClip) -> str:
    return json.dumps(_judge_of(clip.record), sort_keys=True)


def _judge_of(record: Record) -> dict[str, Any]:
    provenance = record["provenance"]
    bound = bound_provenance(provenance)
    return {"backend": record["backend"], **bound, "calibration": provenance.get("calibration")}
