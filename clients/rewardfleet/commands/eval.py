"""`rewardfleet eval`: how good a judge is, measured on labeled clips."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from rewardfleet.bulk.output import read_records
from rewardfleet.bulk.requests import Columns
from rewardfleet.bulk.rows import open_sources
from rewardfleet.evaluation.labels import check_labels, labeled_clips
from rewardfleet.evaluation.page import render
from rewardfleet.evaluation.report import (
    Report,
    build_report,
    compare,
    read_report,
    repeated,
    write_file,
    write_report,
)
from rewardfleet.http.index import printable
from rewardfleet.score_log.record import Record
from rewardfleet.wire.optional_imports import require
from rewardfleet_command import INTERRUPTED

from . import score
from .groups import CommandGroup
from .options import SHARE, grouped, number, output_option, path_option
from .score.scoring import Connection, Fields, Scoring

#: The options of `rewardfleet score video` that this command has as well.
_SCORING = {"url", "start", "task", "camera", "judge", "by_path", "set_field", "timeout"}


command = CommandGroup("eval", help="Measure how good a judge is.")


@command.command(
    name="video",
    help="Score the labeled clips of MANIFEST, and write how good the judge is as JSON and as one "
    "page. MANIFEST is a table of clips with a column `success`, the labels of `rewardfleet look`, "
    "or a LeRobot data set with `next.success`. The same command goes on after an interruption.",
)
@click.argument("manifest")
@output_option("Folder for report.html, report.json, verdicts.jsonl and the scores.", required=True)
@number(
    "--threshold",
    "SCORE",
    "A score of at least this is a success.  [default: that of the calibration, or 0.5]",
    of=SHARE,
)
@click.option("--repeat", is_flag=True, help="Score each clip twice, and compare the answers.")
@path_option(
    "--compare",
    "FOLDER",
    "The output of an evaluation of another judge on the same clips.",
    "other",
)
@grouped(columns=Columns, connection=Connection, fields=Fields)
def video(
    manifest: str,
    output: Path,
    threshold: float | None,
    repeat: bool,
    other: Path | None,
    **scoring: Any,
) -> int:
    """Evaluate a judge of clips.

    Returns:
        0; 1 if something is not counted, 2 if no clip has a score, 130 if interrupted.
    """
    scores = output / "scores"
    run = Scoring("video", **scoring, output=scores, format="jsonl", retry_failed=True)
    require("eval", "this command", "av", "jinja2", "PIL", "scipy", "sklearn")
    sources = open_sources([Path(manifest)])
    check_labels(sources)
    output.mkdir(parents=True, exist_ok=True)
    is_new = not scores.exists()
    records = _scored(manifest, run)
    if records is None:
        return INTERRUPTED
    fields = run.fields
    known = {"camera": run.columns.camera, "task": fields.task, "changes": fields.of_requests()}
    found = labeled_clips(sources, records, known)
    report = build_report(found, threshold, run.seconds if is_new else None)
    if repeat:
        again = _scored(manifest, replace(run, output=output / "scores-again"))
        if again is None:
            return INTERRUPTED
        report["repeated"] = repeated(found.clips, again, report["threshold"])
    if other is not None:
        try:
            report["comparison"] = compare(report, read_report(other))
        except ValueError as error:
            report["comparison"] = {"error": f"{other}: not compared: {error}"}
    write_report(output, report)
    write_file(output / "report.html", render(report, found.clips))
    return _conclude(report, output)


video.params += [each for each in score.command.commands["video"].params if each.name in _SCORING]


def _scored(manifest: str, run: Scoring) -> dict[int, Record] | None:
    """Score what is not scored yet; return all records by row, None if it was interrupted."""
    if run.run([manifest]) == INTERRUPTED:
        return None
    assert run.output is not None  # noqa: S101 - see `video`
    return {each["row"]: each for each in read_records(run.output)}


def _conclude(report: Report, folder: Path) -> int:
    """Print what matters most; return the exit status."""
    over, pooled = report["over_tasks"], report["pooled"]
    lines = [
        report["cannot_conclude"],
        f"judge {report['judge'] or 'none'}: {report['counts']}",
        f"AUROC within tasks {_shown(over['auroc_within_tasks'])}",
        f"tasks with both labels: {over['tasks_with_both_labels']} of {over['tasks']}",
        f"AUROC pooled {_shown(pooled['auroc'])}",
    ]
    for name in ("near_miss_false_positives", "false_positives", "recall"):
        lines += [f"{name.replace('_', ' ')}: {pooled[name]['count']} of {pooled[name]['of']}"]
    lines += [f"{each['place']}: {each['reason']}" for each in report["problems"]]
    error = report.get("comparison", {}).get("error")
    lines += [error, f"{folder / 'report.html'}, {folder / 'report.json'}"]
    for line in filter(None, lines):
        click.echo(printable(line, 500))
    if all(each["score"] is None for each in report["clips"]):
        return 2
    return int(bool(report["missing"] or report["problems"] or error))


def _shown(figure: Mapping[str, Any]) -> str:
    if figure["value"] is None:
        return "none"
    interval = figure["interval"]
    shown = f"{interval[0]:.2f} to {interval[1]:.2f}" if interval else "too few for an interval"
    return f"{figure['value']:.2f} ({shown})"
