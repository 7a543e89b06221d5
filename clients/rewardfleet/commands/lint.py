"""`rewardfleet lint`: what is wrong with the rows of a data set, before training."""

import asyncio
import contextlib
import dataclasses
import itertools
import json
import tempfile
from collections import Counter
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
from rewardfleet.lint.findings import Finding, FindingId, failures_of, findings_of
from rewardfleet.lint.probes import SERVICES, Planner, service_of
from rewardfleet.services import SERVICES as ALL
from rewardfleet.wire.optional_imports import require
from rewardfleet_command import INTERRUPTED

from .local_service import local_service
from .options import TIMEOUT, grouped, path_option, table
from .score import column
from .score.scoring import Connection, progress_bar

#: Findings that are listed, and that the page shows; `lint.json` has all.
_LISTED, _ON_PAGE = 20, 2000
_PAGE = Path(__file__).parent.parent / "lint" / "page.html"


class _Limit(click.ParamType):
    """A number of findings, or with `%` a share of the rows."""

    name = "limit"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[float, bool]:
        number, is_share = (value[:-1], True) if value.endswith("%") else (value, False)
        if not number.isdecimal() and not (is_share and number.replace(".", "", 1).isdecimal()):
            self.fail(f"give a number of findings, e.g. 0, or a share of rows, e.g. 1%: {value!r}")
        return float(number), is_share


class _Ignored(click.ParamType):
    """A finding of a row that is known, and why it may stay."""

    name = "ignored"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[tuple[str, str], str]:
        name, _, rest = value.partition(":")
        row, _, reason = rest.partition("=")
        if name not in set(FindingId) or not row or not reason.strip():
            known = ", ".join(FindingId)
            self.fail(f"give ID:ROW=REASON, where ID is one of {known}; got {value!r}")
        return (name, row), reason


@dataclass(frozen=True)
class _Options:
    """The options besides those of scoring."""

    output: Path | None
    service: str | None
    fail_above: tuple[float, bool] | None
    ignore: Sequence[tuple[tuple[str, str], str]]


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
    type=_Limit(),
    metavar="LIMIT",
    help="Exit with 1 if there are more findings than this number, or if a larger share of rows "
    "than this has one, e.g. 1%.",
)
@click.option(
    "--ignore",
    multiple=True,
    type=_Ignored(),
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
    lint = _Lint(sources, Planner(service, columns), Connection(url, None, timeout))
    with contextlib.ExitStack() as stack:
        folder = options.output or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        with contextlib.closing(lint.output(folder / "scores")) as scores:
            if not lint.score(scores):
                click.echo("interrupted; the same command goes on from here", err=True)
                return INTERRUPTED
            report = lint.report(scores, dict(options.ignore))
    if options.output is not None:
        write_file(options.output / "lint.json", json.dumps(report, indent=1) + "\n")
        shown = report["findings"][:_ON_PAGE]
        write_file(options.output / "lint.html", page(_PAGE, report=report, shown=shown))
    _print(report)
    above = options.fail_above is not None and _is_above(report, *options.fail_above)
    return int(above or report["not_checked"] > 0)


def _rows(sources: Sequence[Source]) -> Iterator[Row]:
    return itertools.chain.from_iterable(each.rows() for each in sources)


@dataclass(frozen=True)
class _Lint:
    """Rows, what is tried on them, and what scores it."""

    sources: Sequence[Source]
    planner: Planner
    connection: Connection

    def output(self, folder: Path) -> Output:
        """Open the folder with the scores."""
        key = {
            "service": self.planner.service,
            "inputs": [each.stamp() for each in self.sources],
            "columns": dataclasses.asdict(self.planner.columns),
        }
        return Output(folder, columns_of(ALL[self.planner.service].client.score_type), key, "jsonl")

    def score(self, output: Output) -> bool:
        """Score the probes that are not scored yet; return whether all are."""
        service, builder = self.planner.service, self.planner.builder
        probed = (row for _, row in self.planner.plans(_rows(self.sources)))
        urls = contextlib.nullcontext(self.connection.url)
        started = urls if self.connection.url else local_service(service, "")
        count = sum(each.count() for each in self.sources)
        store = Store(output, retry_failed=True)
        with started as found, progress_bar(count) as show:
            fleet, replicas = self.connection.fleet(service, found if found is self.connection.url else [found])
            run = Run(fleet, builder, replicas)
            return asyncio.run(score_items(builder.items(probed), run, store, show))

    def report(self, output: Output, ignored: dict[tuple[str, str], str]) -> dict[str, Any]:
        """Return the findings, and how many there are."""
        records = output.records()
        findings: list[dict[str, Any]] = []
        rows, probes, not_checked, with_finding = 0, 0, 0, set[str]()
        for plan, _ in self.planner.plans(_rows(self.sources)):
            scored = [*itertools.islice(records, len(plan.probes))]
            rows, probes = rows + 1, probes + len(scored)
            if failures_of(scored):
                not_checked += 1
                continue
            for each in findings_of(plan, scored):
                reason = ignored.pop((each.id, each.row), None)
                findings.append({**each.fields(), "ignored": reason})
                if reason is None:
                    with_finding.add(plan.place)
        counts = Counter(each["id"] for each in findings if each["ignored"] is None)
        return {
            "service": self.planner.service,
            "rows": rows,
            "answers": probes,
            "not_checked": not_checked,
            "rows_with_findings": len(with_finding),
            "counts": {each: counts[each] for each in FindingId if counts[each]},
            "ignored_but_not_found": [":".join(each) for each in ignored],
            "findings": findings,
        }


def _is_above(report: dict[str, Any], limit: float, is_share: bool) -> bool:
    if is_share:
        return 100 * report["rows_with_findings"] > limit * report["rows"]
    return sum(report["counts"].values()) > limit


def _print(report: dict[str, Any]) -> None:
    counted = [each for each in report["findings"] if each["ignored"] is None]
    click.echo(
        f"{report['service']}: {report['rows']:,} rows, {report['answers']:,} answers tried; "
        f"{report['rows_with_findings']:,} rows have findings"
    )
    if counted:
        lines = [
            (name, f"{count:,}", ", ".join([e["row"] for e in counted if e["id"] == name][:3]))
            for name, count in report["counts"].items()
        ]
        click.echo(f"\n{table(('finding', 'rows', 'e.g.'), lines)}\n")
        shown = [(each["id"], each["row"], each["detail"]) for each in counted[:_LISTED]]
        click.echo(table(("finding", "row", "what was seen"), shown))
    if len(counted) > _LISTED:
        click.echo(f"{len(counted) - _LISTED:,} more: give -o FOLDER")
    for each in report["ignored_but_not_found"]:
        click.echo(f"--ignore {each}: there is no such finding", err=True)
    if report["not_checked"]:
        click.echo(f"{report['not_checked']:,} rows could not be checked", err=True)
