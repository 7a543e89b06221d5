"""`rewardfleet packages`: packages that scored programs can import."""

import click

from rewardfleet.commands.groups import CommandGroup
from rewardfleet_server.code.running.packages import environment_of
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.flags import read_settings


@click.group(cls=CommandGroup, name="packages", help="Packages that scored programs can import.")
def command() -> None:
    """Group the commands that install packages for programs."""


@command.command(
    name="build", help="Install them once; `serve code` with the same flags uses them."
)
@click.option(
    "--packages",
    multiple=True,
    metavar="PACKAGES",
    help="Packages, as `serve code` takes them.  [default: numpy,pytest,sortedcontainers]",
)
@click.option(
    "--python", metavar="FILE", help="Interpreter that runs programs, as `serve code` has it."
)
def build(packages: tuple[str, ...], python: str | None) -> None:
    """Build the environment that `serve code` uses with the same flags."""
    flags = {"packages": packages, "python": python}
    given = {name: value for name, value in flags.items() if value}
    environment = environment_of(read_settings(CodeSettings, given))
    environment.build()
    print(f"{environment.folder}: {', '.join(environment.requirements)}")
