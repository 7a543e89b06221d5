"""`rewardfleet up`: run all services on this machine, below one address."""

from pathlib import Path

import click

from rewardfleet.commands.options import path_option
from rewardfleet_server.up.flags import network_flags
from rewardfleet_server.up.settings import read_config
from rewardfleet_server.up.supervisor import run_up


@click.command(name="up", help="Run all services on this machine, below one address.")
@click.option(
    "--only",
    metavar="NAME[=N],…",
    help="Services to start, and how many processes of each: video,code=2.  [default: all, one]",
)
@path_option(
    "--config", "FILE", "TOML file with these flags, and a table with settings for each service."
)
@path_option(
    "--video-root",
    "FOLDER",
    "Folder of the files that video_path may name, of the video service; repeatable.",
    multiple=True,
)
@click.option(
    "--judge",
    multiple=True,
    metavar="JUDGE",
    help="Judge of the video service; repeatable.  [default: reference]",
)
@network_flags("the gateway")
@path_option(
    "--data-dir", "FOLDER", "Caches, run state and logs.  [default: ~/.local/state/rewardfleet]"
)
@path_option(
    "--score-log", "FOLDER", "Keep what was scored: requests and scores, with small pictures."
)
@path_option(
    "--score-log-key-file",
    "FILE",
    "File of keys, no API keys, with which `rewardfleet look URL` reads the score log.",
)
def command(
    config: Path | None,
    only: str | None,
    video_root: tuple[Path, ...],
    judge: tuple[str, ...],
    **given: object,
) -> int:
    """Start all services; return 1 if one cannot start."""
    overrides = {name: value for name, value in given.items() if value is not None}
    named = {"video_root": video_root, "backend": judge}
    video: dict[str, object] = {name: [*values] for name, values in named.items() if values}
    tables = {"video": video}
    if only is not None:
        pairs = [each.strip().partition("=") for each in only.split(",")]
        overrides["only"] = [name for name, _, _ in pairs]
        for name, separator, count in pairs:
            if separator and not count.isdecimal():
                raise click.UsageError(f"--only {name}={count}: give NAME=N, e.g. code=2")
            if separator:
                tables.setdefault(name, {})["replicas"] = int(count)
    overrides |= tables
    return run_up(read_config(config, overrides))
