"""`rewardfleet lint`: what is wrong with the rows of a data set, before training."""

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from rewardfleet.bulk.requests import Columns
from rewardfleet.evaluation.page import page
from rewardfleet.evaluation.report import write_file
from rewardfleet.lint.findings import FINDINGS
from rewardfleet.lint.rows import SERVICES, Lint
from rewardfleet.wire.optional_imports import require
from rewardfleet_command import INTERRUPTED

from .options import TIMEOUT, grouped, number, output_option, table
from .score import column
from .score.scoring import Connection, Fields, Scoring

#: Findings that are listed, and that the page shows; `lint.json` has all.
_LISTED, _ON_PAGE = 20, 2000
_PAGE = Path(__file__).parent.parent / "lint" / "page.html"


def _ignored(_context: Any, _option: Any, values: Sequence[str]) -> dict[tuple[str, str], str]:
    """Return why findings are not counted, by id and row."""
    ignored = {}
    for value in values:
        found = re.fullmatch(r"(.+?):(.+?)=\s*(\S.*)", value)
        if found is None or found[1] not in FINDINGS:
            known = ", ".join(FINDINGS)
            raise click.BadParameter(f"give ID:ROW=REASON, ID one of {known}; got {value!r}")
        ignored[found[1], found[2]] = found[3]
    return ignored


@click.command(name="lint")
@click.argument("rows", nargs=-1, required=True, metavar="ROWS...")
@output_option("Folder for lint.json, lint.html and the scores; the same command goes on with it.")
@click.option(
    "--service",
    type=click.Choice(SERVICES),
    help="The service that scores the rows.  [default: the one that can read them]",
)
@click.option(
    "--url",
    multiple=True,
    envvar="REWARDFLEET_URL",
    show_envvar=True,
    metavar="URL",
    help="Base URL of a fleet or of the service; may be repeated for replicas.",
)
@column("id", "the name of a row, which findings have")
@column("tests", "the tests, or the ground truth")
@number(
    "--fail-above",
    "LIMIT",
    "Exit with 1 if there are more findings than this number; or, "
    "below 1, if a larger share of rows has one.",
    of=click.FloatRange(0),
)
@click.option(
    "--ignore",
    multiple=True,
    callback=_ignored,
    metavar="ID:ROW=REASON",
    help="Do not count a finding of a row. Can be repeated.",
)
@TIMEOUT
@grouped(columns=Columns, connection=Connection)
def command(
    rows: Sequence[str],
    columns: Columns,
    output: Path | None,
    service: str | None,
    connection: Connection,
    **accepted: Any,
) -> int:
    """Find rows of data sets that pay wrong answers, or no answer at all.

    ROWS are tables as `rewardfleet score` reads them: files .jsonl, .csv, .parquet and .arrow, and
    folders of them. A service scores the row's own solution, programs that solve nothing, and
    changed solutions. It is started for this command unless --url is given.
    """
    if output is not None:
        require("eval", "-o", "jinja2")
    lint = Lint([Path(each) for each in rows], columns, service)
    fields = Fields(["mode=all_pass"] if lint.service == "code" else [])
    connection = replace(connection, start=None if connection.url else "")
    with tempfile.TemporaryDirectory() as folder:
        scores = (output or Path(folder)) / "scores"
        scoring = Scoring(lint.service, lint.scored, connection, fields, scores, "jsonl",
                          retry_failed=True, change=lint.with_answers)  # fmt: skip
        if scoring.run(rows) == INTERRUPTED:
            return INTERRUPTED
        report = lint.report(scores, accepted["ignore"])
    if output is not None:
        write_file(output / "lint.json", f"{json.dumps(report, indent=1)}\n")
        shown = report["findings"][:_ON_PAGE]
        write_file(output / "lint.html", page(_PAGE, report=report, shown=shown))
    _print(report)
    fail_above = accepted["fail_above"]
    is_share = fail_above is not None and 0 < fail_above < 1
    found = report["rows_with_findings"] / report["rows"] if is_share else report["counted"]
    return int((fail_above is not None and found > fail_above) or report["not_checked"] > 0)


def _print(report: Mapping[str, Any]) -> None:
    """Print the counts, and the first findings that are counted."""
    counted = [each for each in report["findings"] if each["ignored"] is None]
    counts = ", ".join(f"{name} {count:,}" for name, count in report["counts"].items())
    click.echo(
        f"{report['service']}: {report['rows']:,} rows, {report['answers']:,} answers tried; "
        f"{report['rows_with_findings']:,} rows have findings: {counts or 'none'}\n"
    )
    shown = [(each["id"], each["row"], each["detail"]) for each in counted[:_LISTED]]
    click.echo(table(("finding", "row", "what was seen"), shown))
    if len(counted) > _LISTED:
        click.echo(f"{len(counted) - _LISTED:,} more: lint.json, which -o writes, has all")
    for each in report["ignored_but_not_found"]:
        click.echo(f"--ignore {each}: there is no such finding", err=True)
    if report["not_checked"]:
        click.echo(f"{report['not_checked']:,} rows could not be checked", err=True)
