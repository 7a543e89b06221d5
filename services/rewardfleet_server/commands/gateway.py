"""`rewardfleet gateway`: one address for services that run elsewhere."""

import logging
import re
from collections.abc import Sequence

import click

from rewardfleet.wire.urls import is_base_url
from rewardfleet_server.http.allowed_hosts import AllowedHosts
from rewardfleet_server.observe.logs import configure_logging
from rewardfleet_server.system.listener import bind
from rewardfleet_server.up.flags import network_flags
from rewardfleet_server.up.gateway import PAGES, run_gateway

_BASE_URL = re.compile(r"http://[^/?#@\s]+/?")


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
    """Run a gateway until SIGTERM or Ctrl-C."""
    urls, host = read_services(services), host or "127.0.0.1"
    configure_logging("info")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    listener = bind(host, 18000 if port is None else port)
    hosts = AllowedHosts(allowed_host, listens_on=host, has_keys=False)
    return run_gateway(listener, hosts, urls)


def read_services(given: Sequence[str]) -> dict[str, list[str]]:
    """Return the base URLs of services by name, of which one may have several.

    Raises:
        ValueError: One is not `NAME=http://HOST:PORT`, or there is none.
    """
    services: dict[str, list[str]] = {}
    for each in given:
        name, _, url = each.partition("=")
        if not (name.isascii() and name.isidentifier()) or name in PAGES:
            raise ValueError(
                f"--service {each}: give NAME=http://HOST:PORT; a name has letters, digits and _, "
                f"and is not {', '.join(PAGES[1:])}"
            )
        if not (_BASE_URL.fullmatch(url) and is_base_url(url)):
            raise ValueError(f"--service {each}: give NAME=http://HOST:PORT")
        services.setdefault(name, []).append(url)
    if not services:
        raise ValueError("give --service NAME=http://HOST:PORT, once or more")
    return services
