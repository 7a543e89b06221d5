"""`rewardfleet look`: a page that shows what was scored."""

import asyncio
import logging
import signal
from pathlib import Path

import click

from rewardfleet_command import INTERRUPTED
from rewardfleet_server.http.allowed_hosts import AllowedHosts
from rewardfleet_server.http.auth import ApiKeys
from rewardfleet_server.http.server import GracefulServer, run_on_fast_loop
from rewardfleet_server.look.app import LookApp
from rewardfleet_server.look.labels import Labels
from rewardfleet_server.look.records import Records
from rewardfleet_server.serve import bind, url_of
from rewardfleet_server.settings import is_loopback
from rewardfleet_server.up.flags import network_flags


@click.command(
    name="look",
    help="Show a page of what was scored: folders of --score-log, and outputs of `rewardfleet "
    "score`. People can filter, compare and label scores there.",
)
@click.argument(
    "sources",
    nargs=-1,
    required=True,
    metavar="FOLDER...",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@network_flags("the page")
@click.option(
    "--labels",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("labels.jsonl"),
    show_default=True,
    metavar="FILE",
    help="File that labels are added to.",
)
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1),
    default=0.5,
    show_default=True,
    metavar="SCORE",
    help="A judge says success from this score on.",
)
def command(
    sources: tuple[Path, ...],
    host: str | None,
    port: int | None,
    api_key_file: Path | None,
    allow_unauthenticated: bool | None,
    labels: Path,
    threshold: float,
) -> int:
    """Serve the page until it is interrupted."""
    host = host or "127.0.0.1"
    if not (is_loopback(host) or api_key_file or allow_unauthenticated):
        raise ValueError(f"--host {host}: give --api-key-file, or --allow-unauthenticated")
    hosts = AllowedHosts([], listens_on=host, has_keys=api_key_file is not None)
    app = LookApp(Records(sources), Labels(labels, threshold), ApiKeys(api_key_file), hosts)
    listener = bind(host, 18090 if port is None else port)
    click.echo(f"{url_of(listener)}/  (Ctrl-C ends it)")
    if not (is_loopback(host) or api_key_file):
        logging.getLogger(__name__).warning("ANYONE WHO REACHES %s SEES THE SCORES", host)
    server = GracefulServer(app, handles_signals=False)
    status = 0

    async def serve() -> None:
        def stop(number: int) -> None:
            nonlocal status
            status = INTERRUPTED if number == signal.SIGINT else 0
            server.force_exit, server.should_exit = server.should_exit, True

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
        await server.serve([listener])

    run_on_fast_loop(serve())
    return status
