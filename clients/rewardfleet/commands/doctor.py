"""`rewardfleet doctor`: what works on this machine, and how to fix the rest."""

import platform
import sys
from collections.abc import Iterator

import click

import rewardfleet
from rewardfleet.lazy import Lazy
from rewardfleet.wire.optional_imports import install_command


@click.command(
    name="doctor",
    help="Report what works on this machine, and how to fix the rest: the services, if the "
    "server's packages are installed. `rewardfleet status` reports on a fleet that runs.",
)
def command() -> int:
    """Print what works; return 1 if a service cannot run."""
    has_failed = False
    for status, what, fix in _findings():
        has_failed = has_failed or status == "failed"
        click.echo(f"{status:8}{what}" + (f"\n        fix: {fix}" if fix else ""))
    return int(has_failed)


def _findings() -> Iterator[tuple[str, str, str]]:
    """Yield `ok`, `extra`, `note` or `failed`, what was checked, and how to fix it."""
    version = platform.python_version()
    yield "ok", f"rewardfleet {rewardfleet.__version__}, Python {version} ({sys.executable})", ""
    try:
        yield from Lazy("rewardfleet_server.commands.doctor:diagnoses")()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("rewardfleet"):
            raise  # an internal error
        what = f"the client only: the server's package {error.name} is not installed"
        yield "extra", what, install_command("server")
