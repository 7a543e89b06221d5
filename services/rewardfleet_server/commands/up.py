"""`rewardfleet up`: run all services on this machine, below one address."""

from dataclasses import dataclass
from pathlib import Path

import click

from rewardfleet.commands.options import grouped
from rewardfleet_server.up.flags import network_flags
from rewardfleet_server.up.settings import read_config
from rewardfleet_server.up.supervisor import run_up
from rewardfleet_server.video.judges.completion import complete_judge


@dataclass(frozen=True)
class VideoFlags:
    """The settings of the video service that have flags here."""

    video_root: tuple[Path, ...]
    judge: tuple[str, ...]


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
@click.option(
    "--video-root",
    multiple=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Folder of the files that video_path may name, of the video service; repeatable.",
)
@click.option(
    "--judge",
    multiple=True,
    metavar="JUDGE",
    shell_complete=complete_judge,
    help="Judge of the video service; repeatable.  [default: reference]",
)
@network_flags("the gateway")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Caches, run state and logs.  [default: ~/.local/state/rewardfleet]",
)
@click.option(
    "--score-log",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Keep what was scored: requests and scores, with small pictures.",
)
@click.option(
    "--score-log-key-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File of keys, no API keys, with which `rewardfleet look URL` reads the score log.",
)
@click.option("--logs", is_flag=True, help="Print the logs of all services, with their names.")
@grouped(video=VideoFlags)
def command(
    config: Path | None, only: str | None, logs: bool, video: VideoFlags, **given: object
) -> int:
    """Start all services; return 1 if one cannot start."""
    overrides = {name: value for name, value in given.items() if value is not None}
    named = {"video_root": video.video_root, "backend": video.judge}
    overrides["video"] = {name: [*values] for name, values in named.items() if values}
    if only is not None:
        pairs = [each.strip().partition("=") for each in only.split(",")]
        for name, separator, count in pairs:
            if separator and not count.isdecimal():
                raise click.UsageError(f"--only {name}={count}: give NAME=N, e.g. code=2")
        overrides["only"] = [name for name, _, _ in pairs]
        overrides["replicas"] = {name: int(count) for name, _, count in pairs if count}
    return run_up(read_config(config, overrides), show_logs=logs)
