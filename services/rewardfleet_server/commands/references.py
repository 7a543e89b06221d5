"""`rewardfleet references`: the library of the judge `reference`."""

from pathlib import Path

import click

from rewardfleet.commands.options import CommandGroup
from rewardfleet_server.video.references.library import add_reference


@click.group(cls=CommandGroup, name="references", help="The library of the judge `reference`.")
def command() -> None:
    """Group the commands that change a library."""


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
