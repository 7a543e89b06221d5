"""`rewardfleet up`: run all services on this machine, below one address."""

from pathlib import Path

import click

from rewardfleet_server.up.flags import network_flags
from rewardfleet_server.up.settings import read_config
from rewardfleet_server.up.supervisor import run_up


@click.command(name="up", help="Run all services on this machine, below one address.")
@click.option("--only", metavar="NAMES", help="Services to start, e.g. video,code.  [default: all]")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="TOML file with these flags, and a table with settings for each service.",
)
@click.option(
    "--replicas", multiple=True, metavar="NAME=N", help="Processes of a service.  [default: 1]"
)
@network_flags("the gateway")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Caches, run state and logs.  [default: ~/.local/state/rewardfleet]",
)
@click.option("--logs", is_flag=True, help="Print the logs of all services, with their names.")
def command(
    config: Path | None, only: str | None, replicas: tuple[str, ...], logs: bool, **given: object
) -> int:
    """Start all services; return 1 if one cannot start."""
    overrides = {name: value for name, value in given.items() if value is not None}
    if only is not None:
        overrides["only"] = [name.strip() for name in only.split(",")]
    counts = {}
    for each in replicas:
        name, _, count = each.partition("=")
        if not count.isdecimal():
            raise click.UsageError(f"--replicas {each}: give NAME=N, e.g. code=2")
        counts[name] = int(count)
    return run_up(read_config(config, {**overrides, "replicas": counts}), show_logs=logs)
