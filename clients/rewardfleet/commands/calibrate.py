"""`rewardfleet calibrate`: a map of a judge's scores, and a threshold with a guarantee."""

from pathlib import Path

import click

from rewardfleet.evaluation.fitting import calibrate
from rewardfleet.evaluation.report import read_report, write_file
from rewardfleet.wire.optional_imports import require

from .options import number, path_option

_SHARE = click.FloatRange(0.001, 0.5)


@click.command(
    name="calibrate",
    help="Fit a map of a judge's scores to the labels of FOLDER, the output of `rewardfleet eval`, "
    "and find a threshold with at most the given share of false positives. `rewardfleet serve "
    "video --calibration FILE` applies it.",
)
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@path_option("-o", "FILE", "File for the calibration, as JSON.", "--output", required=True)
@click.option(
    "--map",
    "kind",
    type=click.Choice(["platt", "isotonic", "per-task"]),
    default="platt",
    show_default=True,
    help="Map of scores: platt, a logistic function; per-task, one with an offset for each task, "
    "shrunk towards 0; isotonic, any function that rises, for hundreds of labels.",
)
@number("--false-positives", "SHARE", "Largest share of accepted failures.", 0.05, of=_SHARE)
@number("--confidence", "SHARE", "Level of confidence.", 0.95, of=click.FloatRange(0.5, 0.999))
def command(
    folder: Path, output: Path, kind: str, false_positives: float, confidence: float
) -> None:
    """Write the calibration, and print what was measured on the half that the map did not see."""
    require("eval", "this command", "scipy", "sklearn")
    found = calibrate(read_report(folder), kind, false_positives, confidence)
    write_file(output, found.model_dump_json(indent=1) + "\n")
    threshold, checked = found.threshold, found.checked
    click.echo(
        f"threshold {threshold.value:.6g}: at most {false_positives:.3g} of failures are accepted, "
        f"with a confidence of {confidence:.3g} (Clopper-Pearson)\n"
        f"in the half that the map was not fitted to: {threshold.accepted} of "
        f"{threshold.failures} failures accepted, {threshold.found} of {threshold.successes} "
        f"successes found\n"
        f"calibration error {checked['ece']:.3f}, of the raw scores "
        f"{checked['ece_of_raw_scores']:.3f}\n"
        f"serve it: rewardfleet serve video --calibration {output}"
    )
