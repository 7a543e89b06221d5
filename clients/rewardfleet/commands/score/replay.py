"""`rewardfleet score replay`: score again what a score log has, and compare."""

import asyncio
import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from rewardfleet.bulk.output import Output
from rewardfleet.bulk.run import Run
from rewardfleet.bulk.store import Store, score_items
from rewardfleet.commands.log import LOGS, cell, filters
from rewardfleet.commands.options import (
    TIMEOUT,
    grouped,
    number,
    output_option,
    set_option,
    table,
)
from rewardfleet.score_log.reading import Filters, open_log
from rewardfleet.score_log.replaying import (
    ReplayBuilder,
    Selected,
    compare,
    replay_episodes,
    select_records,
    take_scores,
)
from rewardfleet.services import SERVICES

from .scoring import START, Connection, Fields, progress_bar

#: How many changes are shown, and what of each, by its title.
_SHOWN = 20
_COLUMNS = {
    **{name: name for name in ("id", "run", "step", "uid")},
    "reward_before": "reward",
    "reward_after": "now",
    "advantage_before": "advantage",
    "advantage_after": "now",
    "problem": "problem",
}


def _share(_: click.Context, parameter: click.Parameter, value: str | None) -> float:
    """Return a share that is given in percent, e.g. `0.5%`; 1 if none is."""
    if value is None:
        return 1.0
    try:
        share = float(value.removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not (value.endswith("%") and 0 <= share <= 1):
        raise click.BadParameter(f"give a share such as 0.5%, not {value!r}", param=parameter)
    return share


@click.command(
    name="replay",
    help="Score again what score logs have, with another judge, checker, rule or version, and "
    "show what changes.",
)
@LOGS
@output_option(
    "Folder for new scores and changes.jsonl; the same command goes on with what is there.",
    required=True,
)
@click.option("--url", multiple=True, metavar="URL", help="Base URL of a fleet or a service.")
@START
@click.option("--judge", metavar="JUDGE", help="Judge of the video service.")
@set_option("A new value of a field of all requests, e.g. `tests.checker=exact`. Can be repeated.")
@number("--threshold", "SCORE", "Least score whose reward is 1, else it is 0.", of=float)
@number(
    "--threshold-before",
    "SCORE",
    "The threshold of the rewards before.  [default: that of --threshold]",
    of=float,
)
@click.option(
    "--fail-if-changed",
    callback=_share,
    metavar="PERCENT",
    help="Return 1 if more rewards than this change, e.g. 0.5%.",
)
@filters
@TIMEOUT
@grouped(used=Connection, changes=Fields, selection=Filters)
def command(
    folders: Sequence[Path],
    output: Path,
    *,
    used: Connection,
    changes: Fields,
    selection: Filters,
    **limits: Any,
) -> int:
    """Score records again.

    Returns:
        0; 1 if too many rewards changed, or a record with a score has none now; 2 if none has one;
        130 if it was interrupted.
    """
    fields = changes.of_requests()
    with open_log(folders) as connection:
        selected = select_records(connection, selection)
        if SERVICES[selected.service].scores == "episode":
            output.mkdir(parents=True, exist_ok=True)
            replay_episodes(connection, fields)
        else:
            builder = ReplayBuilder(selected.service, changes=fields)
            items = builder.recorded_items(connection, selected)
            if not _score(items, builder, selected, used, output):
                click.echo("interrupted; the same command goes on from here", err=True)
                return 130
            take_scores(connection, output)
            if builder.small:
                click.echo(
                    f"{builder.small:,} clips are not in the log: their small frames were scored",
                    err=True,
                )
        before, threshold = limits["threshold_before"], limits["threshold"]
        before = threshold if before is None else before
        lines, totals = compare(connection, before, threshold)
    with (output / "changes.jsonl").open("w") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    rows = [[cell(name, each[name]) for name in _COLUMNS] for each in lines if each["changed"]]
    if rows:
        click.echo(table([*_COLUMNS.values()], rows[:_SHOWN]))
    if len(rows) > _SHOWN:
        click.echo(f"… and {len(rows) - _SHOWN:,} more, in changes.jsonl")
    click.echo(
        "{records:,} records: {changed:,} rewards changed ({share:.2%}), {missing:,} have no score "
        "now; {changed_groups:,} of {groups:,} groups changed".format(**totals)
    )
    if not totals["scored"]:
        return 2
    return int(totals["share"] > limits["fail_if_changed"] or totals["missing"] > 0)


def _score(
    items: Iterator[Any], builder: ReplayBuilder, selected: Selected, used: Connection, output: Path
) -> bool:
    """Score the requests of records with a service; return False if that was interrupted."""
    service = builder.service
    input_key = {"service": service, "fields": builder.changes, "replay": selected.digest}
    with (
        used.fleet(service, "http://127.0.0.1:18000") as (fleet, replicas),
        contextlib.closing(Output(output, input_key, "jsonl")) as kept,
        progress_bar(selected.requests) as show,
    ):
        store = Store(kept, builder, retry_failed=True)
        return asyncio.run(score_items(items, Run(fleet, builder, replicas), store, show))
