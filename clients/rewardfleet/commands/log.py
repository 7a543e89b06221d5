"""`rewardfleet log`: list, count, export and delete what score logs have."""

import base64
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from rewardfleet.score_log.inspect_logs import write_logs
from rewardfleet.score_log.reading import Filters, open_log, query, select
from rewardfleet.score_log.record import decoded
from rewardfleet.score_log.segments import delete_run
from rewardfleet.story.texts import escaped

from .groups import CommandGroup
from .options import AS_JSON, number, path_option, table

T = TypeVar("T")

_SHOWN = ("time", "service", "run", "step", "uid", "backend", "status", "score", "cause", "id")
#: Characters of a cell.
_MAX_CELL = 60

LOGS = click.argument(
    "folders", nargs=-1, required=True, metavar="LOG...", type=click.Path(path_type=Path)
)


def filters(function: Callable[..., T]) -> Callable[..., T]:
    """Add the options that select records, which are the fields of `Filters`."""
    options = [
        click.option("--service", metavar="NAME", help="Take only records of the service NAME."),
        click.option("--run", metavar="NAME", help="Take only records of the training run NAME."),
        click.option(
            "--where",
            metavar="SQL",
            help="Take only records that meet a condition in DuckDB's SQL, e.g. "
            "\"step = 3 AND status = 'error'\".",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


command = CommandGroup("log", help="List, count, export and delete what a score log has.")


@command.command(name="list", help="List records of score logs and outputs, the newest first.")
@LOGS
@filters
@number("--limit", "N", "Show at most N records.", 20, of=click.IntRange(1))
@AS_JSON
def list_records(folders: Sequence[Path], limit: int, as_json: bool, **given: Any) -> int:
    """Print a line for each record; return 1 if there is none."""
    with open_log(folders) as connection:
        records = select(connection, Filters(**given), order="time DESC NULLS LAST", limit=limit)
        if as_json:
            for record in records:
                if (frames := record["frames"]) is not None:
                    record["frames"] = base64.b64encode(frames).decode()
                click.echo(json.dumps(decoded(record)))  # ASCII: control characters are escaped
        else:
            cells = [[cell(name, each[name]) for name in _SHOWN] for each in records]
            click.echo(table(_SHOWN, cells))
    return int(not records)


@command.command(help="Count records of score logs and outputs.")
@LOGS
@filters
@click.option(
    "--by",
    multiple=True,
    default=("service", "run", "status"),
    show_default=True,
    type=click.Choice(["service", "run", "step", "status", "backend", "cause", "error_kind"]),
    help="A column by which to count. Can be repeated.",
)
def count(folders: Sequence[Path], by: Sequence[str], **given: Any) -> None:
    """Print the number of records by columns, and their mean reward."""
    names = ", ".join(by)
    with open_log(folders) as connection:
        condition, values = Filters(**given).sql()
        rows = query(
            connection,
            f"SELECT {names}, count(*), avg(reward), min(sample_rate) FROM scores "  # noqa: S608 - names of columns
            f"WHERE {condition} GROUP BY {names} ORDER BY {names}",
            values,
        )
    head = [*by, "records", "mean reward", "kept"]
    cells = [[cell(name, value) for name, value in zip(head, row, strict=True)] for row in rows]
    click.echo(table(head, cells))


@command.command(help="Export records of score logs and outputs, for other viewers.")
@LOGS
@filters
@number("--limit", "N", "Export the newest N records, all in memory.", 1000, of=click.IntRange(1))
@path_option("--inspect", "FOLDER", "Folder for logs of Inspect.", "out", required=True)
def export(folders: Sequence[Path], out: Path, limit: int, **given: Any) -> int:
    """Write logs of Inspect; return 1 if there is no record."""
    with open_log(folders) as connection:
        records = select(connection, Filters(**given), order="time DESC NULLS LAST", limit=limit)
    logs = write_logs(records[::-1], out)
    click.echo(f"{len(records):,} samples in {logs:,} logs")
    return int(not records)


@command.command(help="Delete records of a score log, also while a service writes it.")
@click.argument("folder", metavar="FOLDER", type=click.Path(path_type=Path))
@click.option("--run", required=True, metavar="NAME", help="The training run whose records go.")
def delete(folder: Path, run: str) -> None:
    """Delete the records of a run."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder")
    if (folder / "input.json").exists():
        raise ValueError(f"{folder} is an output of `rewardfleet score`, which has no runs")
    click.echo(f"{delete_run(folder, run):,} records deleted")


def cell(name: str, value: object) -> str:
    """Return a value of a column as a table shows it; "" for none."""
    if value is None:
        return ""
    if name == "time":
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(str(value))))
    if name == "id":
        return str(value)[:12]
    return escaped(f"{value:.4g}" if isinstance(value, float) else str(value), _MAX_CELL)
