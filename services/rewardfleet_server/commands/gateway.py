"""`rewardfleet gateway`: one address for services that run elsewhere."""

import click

from rewardfleet_server.up.command import GatewayConfig, read_services, run_gateway
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
def command(
    services: tuple[str, ...], host: str | None, port: int | None, allowed_host: list[str] | None
) -> int:
    """Run a gateway."""
    port = 18000 if port is None else port
    names = read_services(services)
    return run_gateway(GatewayConfig(host or "127.0.0.1", port, allowed_host or [], names))
