"""`rewardfleet doctor`: what works on this machine, and how to fix the rest."""

import asyncio
import platform
import sys
from collections.abc import Iterator

import click
from click.core import ParameterSource

import rewardfleet
from rewardfleet.lazy import Lazy
from rewardfleet.wire.optional_imports import install_command

from .options import URLS, key_hint
from .settings import api_key
from .status import fleet_status

#: The result of a check: `ok`, `extra`, `note` or `failed`, what was checked, and how to fix it. It
#: is what the checks of the server return, see its `system/diagnosis.py`.
Finding = tuple[str, str, str]


@click.command(
    name="doctor",
    help="Report what works on this machine, and how to fix the rest: the services, if the "
    "server's packages are installed, and the fleet at each URL.  [env var: REWARDFLEET_URL]",
)
@URLS
def command(urls: list[str]) -> int:
    """Print what works; return 1 if a service cannot run, or a given fleet is not ready."""
    source = click.get_current_context().get_parameter_source("urls")
    given = [] if source is ParameterSource.DEFAULT else urls
    has_failed = False
    for status, what, fix in (*_client(given, api_key()), *_server()):
        has_failed = has_failed or status == "failed"
        click.echo(f"{status:8}{what}" + (f"\n        fix: {fix}" if fix else ""))
    return int(has_failed)


def _client(urls: list[str], key: str) -> Iterator[Finding]:
    version = platform.python_version()
    yield "ok", f"rewardfleet {rewardfleet.__version__}, Python {version} ({sys.executable})", ""
    for status in asyncio.run(fleet_status(urls, key)):
        what = f"{status.service} at {status.url}: {status.health}"
        if status.health == "ready":
            yield "ok", what, ""
            if status.needs_key:
                kind = "failed" if key else "note"
                yield kind, f"{status.service} at {status.url} {key_hint(key)}", ""
        else:
            fix = "start it, or correct REWARDFLEET_URL"
            yield "failed", f"{what}: {status.reason}" if status.reason else what, fix


def _server() -> Iterator[Finding]:
    try:
        yield from Lazy("rewardfleet_server.commands.doctor:diagnoses")()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("rewardfleet"):
            raise  # an internal error
        what = f"the client only: the server's package {error.name} is not installed"
        yield "extra", what, install_command("server")
