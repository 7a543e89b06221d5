"""`rewardfleet score`: score a clip, or whole data sets."""

from collections.abc import Callable, Sequence
from typing import Any

import click

from rewardfleet.bulk.requests import Columns
from rewardfleet.commands.groups import CommandGroup
from rewardfleet.commands.options import TIMEOUT, grouped, number, output_option, set_option
from rewardfleet.services import SERVICES

from . import replay
from .scoring import START, Connection, Fields, Scoring, default_url

command = CommandGroup("score", help="Score clips, programs, answers or episodes of data sets.")


def column(name: str, what: str) -> Callable[[Any], Any]:
    """Return the option with the name of a column."""
    return click.option(f"--{name}-column", metavar="NAME", help=f"The column with {what}.")


#: Options of all services.
_COMMON: list[Callable[[Any], Any]] = [
    click.argument("inputs", nargs=-1, required=True, metavar="INPUT..."),
    output_option(
        "Where the scores are kept; the same command goes on with what is there.  [default: JSON "
        "lines to standard output]"
    ),
    click.option(
        "--format",
        type=click.Choice(["parquet", "jsonl"]),
        default="parquet",
        show_default=True,
        help="Format of the scores in FOLDER. Parquet needs pyarrow.",
    ),
    START,
    column("id", "the id of a row, which the scores have as `uid`"),
    set_option("A field of all requests, e.g. `mode=all_pass` or `nframes=32`. Can be repeated."),
    number("--limit", "N", "Score only the first N rows.", of=click.IntRange(1)),
    number("--sample", "N", "Score N rows drawn at random, the same ones each time.",
           of=click.IntRange(1)),
    click.option("--retry-failed", is_flag=True, help="Score again what failed in FOLDER."),
    click.option("--dry-run", is_flag=True, help="Show the first requests and send nothing."),
    TIMEOUT,
]  # fmt: skip
#: Further ones, by what the service scores.
_OWN = {
    "clip": [
        column("clip", "the path or the content of a clip"),
        column("task", "the task of a clip"),
        click.option("--task", metavar="TEXT", help="The task of clips without one."),
        click.option("--camera", metavar="NAME", help="Camera of a LeRobot data set."),
        click.option(
            "--judge", "--backend", metavar="JUDGE", help="Judge to ask.  [default: the service's]"
        ),
        click.option(
            "--by-path",
            is_flag=True,
            help="Send paths instead of contents: the service reads clips under its --video-root.",
        ),
    ],
    "text": [
        column("completion", "what the policy wrote: a text, messages, or a list of these"),
        column("tests", "the tests, or the ground truth.  [default: for code also the whole row]"),
    ],
    "episode": [],
}


def _command_of(service: str) -> click.Command:
    variables = ["REWARDFLEET_URL", f"REWARDFLEET_{service.upper()}_URL"]
    urls = click.option(
        "--url",
        multiple=True,
        envvar=variables,
        metavar="URL",
        help="Base URL of a fleet or of the service; may be repeated for replicas.  [env var: "
        f"{', '.join(variables)}; default: {default_url(service)}]",
    )

    @grouped(columns=Columns, connection=Connection, fields=Fields)
    def run(inputs: Sequence[str], **options: Any) -> int:
        return Scoring(service, **options).run(inputs)

    for option in reversed([*_COMMON, urls, *_OWN[SERVICES[service].scores]]):
        run = option(run)
    help_text = (
        f"Score INPUT: {SERVICES[service].inputs}. Tables are files .jsonl, .csv, .parquet and "
        ".arrow, and folders of them."
    )
    return click.command(name=service, help=help_text)(run)


for _service in SERVICES:
    command.add_command(_command_of(_service))
command.add_command(replay.command)
