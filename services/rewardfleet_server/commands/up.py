"""`rewardfleet up`: run all services on this machine, below one address."""

from pathlib import Path

import click

from rewardfleet_server.up.flags import network_flags
from rewardfleet_server.up.settings import read_config
from rewardfleet_server.up.supervisor import run_up


@click.command(name="up", help="Run all services on this machine, below one address.")
@click.option(
    "--only",
    metavar="NAME[=N],…",
    help="Services to start, and how many processes of each: video,code=2.  [default: all, one]",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="TOML file with these flags, and a table with settings for each service.",
)
@network_flags("the gateway")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Caches, run state and logs.  [default: ~/.local/state/rewardfleet]",
)
@click.option("--logs", is_flag=True, help="Print the logs of all services, with their names.")
def command(config: Path | None, only: str | None, logs: bool, **given: object) -> int:
    """Start all services; return 1 if one cannot start."""
    overrides = {name: value for name, value in given.items() if value is not None}
    if only is not None:
        pairs = [each.strip().partition("=") for each in only.split(",")]
        for name, separator, count in pairs:
            if separator and not count.isdecimal():
                raise click.UsageError(f"--only {name}={count}: give NAME=N, e.g. code=2")
        overrides["only"] = [name for name, _, _ in pairs]
        overrides["replicas"] = {name: int(count) for name, _, count in pairs if count}
    return run_up(read_config(config, overrides), show_logs=logs)
