"""`rewardfleet run-state`: delete what services store of a training run."""

import asyncio
from collections.abc import Sequence
from typing import Any

import click

from rewardfleet.client import RewardFleet
from rewardfleet.http.index import services_at
from rewardfleet.service import RunStateClient
from rewardfleet.services import SERVICES
from rewardfleet.wire.urls import redact

from .groups import CommandGroup
from .options import URLS
from .settings import api_key

command = CommandGroup("run-state", help="Delete what services store of a training run.")


@command.command(
    help="Delete the budget, groups, statistics and temperatures of the run NAME. Each URL is that "
    "of a fleet or of a single service.  [env var: REWARDFLEET_URL; default: "
    "http://127.0.0.1:18000]",
)
@click.argument("run", metavar="NAME")
@URLS
def delete(run: str, urls: Sequence[str]) -> int:
    """Print what each service had of a run; return 1 if none had any."""
    return asyncio.run(_delete(run, urls))


async def _delete(run: str, urls: Sequence[str]) -> int:
    had_any = False
    for url in urls:
        for name, service_url in (await services_at(url, api_key())).items():
            if not issubclass(SERVICES[name].client, RunStateClient):
                continue
            fields: Any = {name: service_url}
            async with RewardFleet(**fields, api_key=api_key()) as fleet:
                was_stored = await getattr(fleet, name).delete_run(run)
            had_any |= was_stored
            click.echo(f"{redact(service_url)}: {'deleted' if was_stored else 'had nothing of it'}")
    return int(not had_any)
