"""`rewardfleet up`: run all services on this machine, below one address."""

from pathlib import Path

import click

from rewardfleet.commands.options import path_option
from rewardfleet_server.up.flags import network_flags
from rewardfleet_server.up.settings import read_config
from rewardfleet_server.up.supervisor import run_up
from rewardfleet_server.video.judges.completion import complete_judge


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
    shell_complete=complete_judge,
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
@click.option("--logs", is_flag=True, help="Print the logs of all services, with their names.")
def command(
    config: Path | None,
    only: str | None,
    logs: bool,
    video_root: tuple[Path, ...],
    judge: tuple[str, ...],
    **given: object,
) -> int:
    """Start all services; return 1 if one cannot start."""
    overrides = {name: value for name, value in given.items() if value is not None}
    named = {"video_root": video_root, "backend": judge}
    overrides["video"] = {name: [*values] for name, values in named.items() if values}
    if only is not None:
        pairs = [each.strip().partition("=") for each in only.split(",")]
        for name, separator, count in pairs:
            if separator and not count.isdecimal():
                raise click.UsageError(f"--only {name}={count}: give NAME=N, e.g. code=2")
        overrides["only"] = [name for name, _, _ in pairs]
        overrides["replicas"] = {name: int(count) for name, _, count in pairs if count}
    return run_up(read_config(config, overrides), show_logs=logs)
