"""`rewardfleet lint`: what is wrong with the rows of a data set, before training."""

import asyncio
import contextlib
import dataclasses
import itertools
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from rewardfleet.bulk.output import Output
from rewardfleet.bulk.records import columns_of
from rewardfleet.bulk.requests import Columns
from rewardfleet.bulk.rows import Row, Source, open_sources
from rewardfleet.bulk.run import Run
from rewardfleet.bulk.store import Store, score_items
from rewardfleet.evaluation.page import page
from rewardfleet.evaluation.report import write_file
from rewardfleet.lint.findings import FindingId
from rewardfleet.lint.probes import SERVICES, Planner, service_of
from rewardfleet.lint.report import Ignored, Report, report_of
from rewardfleet.services import SERVICES as ALL
from rewardfleet.wire.optional_imports import require
from rewardfleet_command import INTERRUPTED

from .local_service import local_service
from .options import TIMEOUT, grouped, path_option, table
from .score import column
from .score.scoring import Connection, progress_bar

#: Findings that are listed, and that the page shows; `lint.json` has all. Rows that are named.
_LISTED, _ON_PAGE, _NAMED = 20, 2000, 3
_PAGE = Path(__file__).parent.parent / "lint" / "page.html"


def _limit(_context: Any, _option: Any, value: str | None) -> tuple[float, bool] | None:
    """Return a number of findings; or a share of the rows in percent, and True."""
    if value is None:
        return None
    number = value.removesuffix("%")
    is_share = number != value
    if not (number.replace(".", "", 1) if is_share else number).isdecimal():
        accepted = "give a number of findings, such as 0, or a share of rows, such as 1%"
        raise click.BadParameter(f"{accepted}; got {value!r}")
    return float(number), is_share


def _ignored(_context: Any, _option: Any, values: Sequence[str]) -> Ignored:
    """Return known findings, by id and row, and why they may stay."""
    ignored = {}
    for value in values:
        name, _, rest = value.partition(":")
        row, _, reason = rest.partition("=")
        if name not in set(FindingId) or not row or not reason.strip():
            known = ", ".join(FindingId)
            raise click.BadParameter(f"give ID:ROW=REASON, ID one of {known}; got {value!r}")
        ignored[name, row] = reason
    return ignored


@dataclass(frozen=True)
class _Options:
    """The options besides those of scoring."""

    output: Path | None
    service: str | None
    fail_above: tuple[float, bool] | None
    ignore: Ignored


@click.command(
    name="lint",
    help="Find rows of data sets that pay wrong answers, or no answer at all. ROWS are tables as "
    "`rewardfleet score` reads them: files .jsonl, .csv, .parquet and .arrow, and folders of them. "
    "A service scores the row's own solution, programs that solve nothing, and changed solutions. "
    "It is started for this command unless --url is given.",
)
@click.argument("rows", nargs=-1, required=True, metavar="ROWS...")
@path_option(
    "-o",
    "FOLDER",
    "Gets lint.json, lint.html and the scores; the same command goes on with what is there.",
    "--output",
)
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
    help="Of a fleet or of the service; several are replicas.",
)
@column("id", "the name of a row, which findings have")
@column("tests", "the tests, or the ground truth")
@click.option(
    "--fail-above",
    callback=_limit,
    metavar="LIMIT",
    help="Exit with 1 if there are more findings than this number, or if a larger share of rows "
    "than this has one, e.g. 1%.",
)
@click.option(
    "--ignore",
    multiple=True,
    callback=_ignored,
    metavar="ID:ROW=REASON",
    help="Do not count a finding of a row. Can be repeated.",
)
@TIMEOUT
@grouped(columns=Columns, options=_Options)
def command(
    rows: Sequence[str], columns: Columns, options: _Options, url: Sequence[str], timeout: float
) -> int:
    """Lint rows.

    Returns:
        0; 1 if there are more findings than `--fail-above`, or if a row could not be checked; 130
        if it was interrupted.
    """
    if options.output is not None:
        require("eval", "-o", "jinja2")
    sources = open_sources([Path(each) for each in rows])
    service = options.service or service_of(_rows(sources), columns)
    planner = Planner(service, columns)
    with contextlib.ExitStack() as stack:
        folder = options.output or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        scores = stack.enter_context(contextlib.closing(_opened(folder, planner, sources)))
        urls = url or [stack.enter_context(local_service(service, ""))]
        fleet, replicas = Connection(url, None, timeout).fleet(service, urls)
        run = Run(fleet, planner.builder, replicas)
        if not _score(run, planner, sources, scores):
            click.echo("interrupted; the same command goes on from here", err=True)
            return INTERRUPTED
        report = report_of(planner, _rows(sources), scores.records(), options.ignore)
    if options.output is not None:
        text = json.dumps(dataclasses.asdict(report), indent=1)
        write_file(options.output / "lint.json", f"{text}\n")
        shown = report.findings[:_ON_PAGE]
        write_file(options.output / "lint.html", page(_PAGE, report=report, shown=shown))
    _print(report)
    limit = options.fail_above
    is_above = limit is not None and report.is_above(limit[0], is_share=limit[1])
    return int(is_above or report.not_checked > 0)


def _rows(sources: Sequence[Source]) -> Iterator[Row]:
    return itertools.chain.from_iterable(each.rows() for each in sources)


def _opened(folder: Path, planner: Planner, sources: Sequence[Source]) -> Output:
    """Open the folder with the scores."""
    key = {
        "service": planner.service,
        "inputs": [each.stamp() for each in sources],
        "columns": dataclasses.asdict(planner.columns),
    }
    columns = columns_of(ALL[planner.service].client.score_type)
    return Output(folder / "scores", columns, key, "jsonl")


def _score(run: Run, planner: Planner, sources: Sequence[Source], output: Output) -> bool:
    """Score the answers that are not scored yet; return whether all are."""
    probed = (row for _, row in planner.plans(_rows(sources)))
    store = Store(output, retry_failed=True)
    with progress_bar(sum(each.count() for each in sources)) as show:
        return asyncio.run(score_items(planner.builder.items(probed), run, store, show))


def _print(report: Report) -> None:
    """Print the counts, and the first findings."""
    counted = report.counted
    click.echo(
        f"{report.service}: {report.rows:,} rows, {report.answers:,} answers tried; "
        f"{report.rows_with_findings:,} rows have findings"
    )
    if counted:
        lines = []
        for name, count in report.counts.items():
            rows = [each["row"] for each in counted if each["id"] == name]
            lines.append((name, f"{count:,}", ", ".join(rows[:_NAMED])))
        click.echo(f"\n{table(('finding', 'rows', 'first ones'), lines)}\n")
        shown = [(each["id"], each["row"], each["detail"]) for each in counted[:_LISTED]]
        click.echo(table(("finding", "row", "what was seen"), shown))
    if len(counted) > _LISTED:
        click.echo(f"{len(counted) - _LISTED:,} more: lint.json, which -o writes, has all")
    for each in report.ignored_but_not_found:
        click.echo(f"--ignore {each}: there is no such finding", err=True)
    if report.not_checked:
        click.echo(f"{report.not_checked:,} rows could not be checked", err=True)
