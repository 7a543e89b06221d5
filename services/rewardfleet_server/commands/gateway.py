"""`rewardfleet gateway`: one address for services that run elsewhere."""

import click

from rewardfleet_server.up.command import read_services, run_gateway
from rewardfleet_server.up.flags import network_flags


@click.command(
    name="gateway",
    help="Run one address for services that run elsewhere, e.g. in containers. The services check "
    "API keys.",
)
@click.option(
    "--service",
    "services",
    multiple=True,
    metavar="NAME=URL",
    help="Service, e.g. code=http://code:8080. Each address of the name is a replica. May be "
    "repeated, also for one service.",
)
@network_flags("the gateway", has_keys=False)
@click.option(
    "--allowed-host",
    multiple=True,
    metavar="NAME",
    help="Name by which callers may address the gateway (`Host`), besides loopback names; may be "
    "repeated, and `*` is any.",
)
def command(
    services: tuple[str, ...], host: str | None, port: int | None, allowed_host: tuple[str, ...]
) -> int:
    """Run a gateway."""
    port = 18000 if port is None else port
    return run_gateway(host or "127.0.0.1", port, allowed_host, read_services(services))
