"""`rewardfleet score replay`: score again what a score log has, and compare."""

import asyncio
import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from rewardfleet.bulk.output import PART_ROWS, Output
from rewardfleet.bulk.records import columns_of
from rewardfleet.bulk.run import Run
from rewardfleet.bulk.store import folder_store, score_items
from rewardfleet.commands.local_service import local_service
from rewardfleet.commands.log import LOGS, filters
from rewardfleet.commands.options import TIMEOUT, escaped, grouped, number, path_option, table
from rewardfleet.score_log.reading import Filters, open_log
from rewardfleet.score_log.replaying import (
    Comparison,
    ReplayBuilder,
    Selected,
    compare,
    replay_episodes,
    select_records,
)
from rewardfleet.services import SERVICES

from .scoring import START, Connection, Fields, progress_bar

#: How many changes are shown, and in how many characters a reason.
_SHOWN, _SHOWN_CHARACTERS = 20, 60
_COLUMNS = ("id", "run", "step", "uid", "reward", "now", "advantage", "now ", "problem")


def _share(_: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Return a share that is given in percent, e.g. `0.5%`."""
    if value is None:
        return None
    try:
        share = float(value.removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not (value.endswith("%") and 0 <= share <= 1):
        raise click.BadParameter(f"give a share such as 0.5%, not {value!r}", param=parameter)
    return share


@dataclass(frozen=True)
class Limits:
    """The least scores of a reward of 1, and the share of rewards that may change."""

    threshold_before: float | None
    threshold: float | None
    fail_if_changed: float | None


@click.command(
    name="replay",
    help="Score again what score logs have, with another judge, checker, rule or version, and "
    "show what changes.",
)
@LOGS
@path_option(
    "-o",
    "FOLDER",
    "Gets the new scores, and changes.jsonl; the same command goes on with what is there.",
    "--output",
    required=True,
)
@click.option("--url", multiple=True, metavar="URL", help="Of a fleet or of the service.")
@START
@click.option("--judge", metavar="JUDGE", help="Judge of the video service.")
@click.option(
    "--set",
    "set_field",
    multiple=True,
    metavar="FIELD=JSON",
    help="A new value of a field of all requests, e.g. `tests.checker=exact`. Can be repeated.",
)
@number("--threshold", "SCORE", "Rewards are 1 from this score on, else 0.", of=float)
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
@grouped(used=Connection, changes=Fields, limits=Limits, selection=Filters)
def command(
    folders: Sequence[Path],
    output: Path,
    *,
    used: Connection,
    changes: Fields,
    limits: Limits,
    selection: Filters,
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
            replay_episodes(connection, selected, fields)
        else:
            builder = ReplayBuilder(selected.service, changes=fields)
            items = builder.recorded_items(connection, selected)
            if not _score(items, builder, selected, used, output):
                click.echo("interrupted; the same command goes on from here", err=True)
                return 130
            if builder.small:
                click.echo(
                    f"{builder.small:,} clips are not in the log: their small frames were scored",
                    err=True,
                )
    before = limits.threshold if limits.threshold_before is None else limits.threshold_before
    found = compare(selected.records, before, limits.threshold)
    with (output / "changes.jsonl").open("w") as file:
        file.writelines(json.dumps(line) + "\n" for line in found.lines)
    _show(found)
    if all(each.after is None for each in selected.records):
        return 2
    most = 1.0 if limits.fail_if_changed is None else limits.fail_if_changed
    return int(found.share > most or found.missing > 0)


def _score(
    items: Iterator[Any], builder: ReplayBuilder, selected: Selected, used: Connection, output: Path
) -> bool:
    """Score the requests of records with a service; return False if that was interrupted."""
    output_of: dict[str, Any] = {
        "columns": columns_of(builder.declared.client.score_type),
        "input_key": {
            "service": builder.service,
            "replay": selected.digest,
            "fields": builder.changes,
        },
        "kind": "jsonl",
        "part_rows": PART_ROWS,
    }
    requests = len({each.key for each in selected.records})
    with contextlib.ExitStack() as stack:
        urls = used.url or ["http://127.0.0.1:18000"]
        if used.start is not None:
            urls = [stack.enter_context(local_service(builder.service, used.start))]
        fleet, replicas = used.fleet(builder.service, urls)
        show = stack.enter_context(progress_bar(requests))
        opening = folder_store({**output_of, "folder": str(output), "retry_failed": True}, show)
        run = Run(fleet, builder, replicas)
        is_complete, _ = asyncio.run(score_items(items, run, opening))
    if is_complete:
        with Output(output, **output_of) as kept:
            _take(selected, kept)
    return is_complete


def _take(selected: Selected, kept: Output) -> None:
    """Give records their new scores."""
    new = {each["uid"]: each for each in kept.records()}
    for record in selected.records:
        found = new[record.key]
        record.after = found["score"]
        record.problem = found["error_detail"]
        if record.price and record.after is not None:
            # The run's budget is not asked: the price is the one that the record had.
            record.after = found["details"]["task"] - record.price * found["details"]["cost"]


def _show(found: Comparison) -> None:
    rows = [
        [
            each["id"][:12],
            *(escaped(str(each[name] or ""), _SHOWN_CHARACTERS) for name in ("run", "step", "uid")),
            *(
                "none" if each[name] is None else f"{each[name]:.4g}"
                for name in ("reward_before", "reward_after", "advantage_before", "advantage_after")
            ),
            escaped(each["problem"] or "", _SHOWN_CHARACTERS),
        ]
        for each in found.lines
        if each["changed"]
    ]
    if rows:
        click.echo(table(_COLUMNS, rows[:_SHOWN]))
    if len(rows) > _SHOWN:
        click.echo(f"… and {len(rows) - _SHOWN:,} more, in changes.jsonl")
    groups, changed = found.groups
    click.echo(
        f"{found.records:,} records: {found.changed:,} rewards changed ({found.share:.2%}), "
        f"{found.missing:,} have no score now; {changed:,} of {groups:,} groups changed"
    )
