"""`rewardfleet references`: the library of the judge `reference`."""

from pathlib import Path

import click

from rewardfleet.commands.groups import CommandGroup
from rewardfleet.commands.options import table
from rewardfleet_server.video.references.library import SHIPPED, add_reference, count_references


@click.group(cls=CommandGroup, name="references", help="The library of the judge `reference`.")
def command() -> None:
    """Group the commands of libraries."""


@command.command(name="list", help="List the tasks of the folder LIBRARY, or of the shipped one.")
@click.argument("library", type=click.Path(path_type=Path), default=SHIPPED, metavar="[LIBRARY]")
def list_tasks(library: Path) -> None:
    """Print the tasks of a library, and how many references each has."""
    try:
        counts = count_references(library)
    except ValueError as error:
        raise ValueError(f"library {library}: {error}") from None
    rows = [(task, str(ended[True]), str(ended[False])) for task, ended in counts.items()]
    print(table(("task", "successes", "failures"), rows))


@command.command(name="add", help="Add the labeled video file CLIP to the folder LIBRARY.")
@click.argument("library", type=click.Path(path_type=Path))
@click.argument("clip", type=click.Path(path_type=Path))
@click.argument("task")
@click.option(
    "--success/--failure", default=None, help="Whether the task was done at the end; required."
)
@click.option("--success-frame", type=int, metavar="N", help="First frame that shows the success.")
def add(
    library: Path, clip: Path, task: str, success: bool | None, success_frame: int | None
) -> None:
    """Add a clip to a library."""
    if success is None:
        raise click.UsageError("give --success or --failure")

    file = add_reference(library, clip, task, success=success, success_frame=success_frame).file
    print(f"{library}: added {file} as a {'success' if success else 'failure'}")
