"""`rewardfleet up`: run all services on this machine, below one address."""

from collections import defaultdict
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
@click.option(
    "--ports", metavar="NAME=PORT,…", help="Ports of services: code=9001. 0 picks a free one."
)
@path_option(
    "--config", "FILE", "TOML file with these flags, and a table with settings for each service."
)
@path_option(
    "--video-root",
    "FOLDER",
    "Folder of the files that video_path of the video service may name; repeatable.",
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
    "--data-dir",
    "FOLDER",
    "Folder for caches, run state and logs.  [default: ~/.local/state/rewardfleet]",
)
@path_option("--score-log", "FOLDER", "Folder that keeps requests and scores, with small pictures.")
@path_option(
    "--score-log-key-file",
    "FILE",
    "File of keys, no API keys, with which `rewardfleet look URL` reads the score log.",
)
def command(
    config: Path | None,
    only: str | None,
    ports: str | None,
    video_root: tuple[Path, ...],
    judge: tuple[str, ...],
    **given: object,
) -> int:
    """Start all services; return 1 if one cannot start."""
    overrides = {name: value for name, value in given.items() if value is not None}
    tables = defaultdict[str, dict[str, object]](dict)
    for setting, values in (("video_root", video_root), ("backend", judge)):
        if values:
            tables["video"][setting] = [*values]
    if only is not None:
        overrides["only"] = [each.partition("=")[0].strip() for each in only.split(",")]
    for flag, setting, pairs in (("--only", "replicas", only), ("--ports", "port", ports)):
        for pair in (pairs or "").split(","):
            name, separator, number = pair.strip().partition("=")
            if separator and number.isdecimal():
                tables[name][setting] = int(number)
            elif separator or (pair and flag == "--ports"):
                raise click.UsageError(f"{flag} {pair}: give NAME=N, e.g. code=2")
    overrides |= tables
    return run_up(read_config(config, overrides))
