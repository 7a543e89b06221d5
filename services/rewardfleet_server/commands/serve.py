"""`rewardfleet serve`: run one service. Its modules are imported when it is named."""

import gc
from functools import partial

import click

from rewardfleet.commands.groups import LazyGroup
from rewardfleet_server.registry import SERVICES, ServiceEntry


def _command_of(name: str, entry: ServiceEntry) -> click.Command:
    gc.disable()  # until the service runs: hardly anything of its start is garbage
    from rewardfleet_server.flags import ServiceCommand  # noqa: PLC0415 - needs the server's packages
    from rewardfleet_server.serve import serve  # noqa: PLC0415 - needs the server's packages

    return ServiceCommand(name, entry.description, entry.settings.load(), partial(serve, entry))


@click.group(
    cls=LazyGroup,
    what="Services",
    commands_by_name={
        name: (partial(_command_of, name, entry), entry.description)
        for name, entry in SERVICES.items()
    },
    name="serve",
    help="Run a service; `serve video --help` lists flags.",
)
def command() -> None:
    """Group the services."""
