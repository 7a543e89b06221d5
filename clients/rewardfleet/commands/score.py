"""`rewardfleet score`: score one item with a running service."""

from dataclasses import dataclass
from pathlib import Path

import click

from rewardfleet.blocking import RewardFleet

from .options import API_KEY, TIMEOUT, CommandGroup, grouped, number


@dataclass(frozen=True)
class ScoreOptions:
    """How a clip is scored."""

    nframes: int
    backend: str | None
    timeout: float


@click.group(cls=CommandGroup, name="score", help="Score one item with a running service.")
def command() -> None:
    """Group the commands that score an item."""


@command.command(name="video", help="Send the video file CLIP; print the response as JSON.")
@click.argument("clip", type=click.Path(path_type=Path))
@click.argument("task")
@click.option(
    "--url",
    default="http://127.0.0.1:18080",
    envvar="REWARDFLEET_VIDEO_URL",
    show_default=True,
    show_envvar=True,
    metavar="URL",
    help="Base URL of the video service.",
)
@API_KEY
@number("--nframes", "N", "Frames that the judge sees.", 16, of=click.IntRange(1, 128))
@click.option("--backend", metavar="JUDGE", help="Judge.  [default: the service's]")
@TIMEOUT
@grouped(options=ScoreOptions)
def score_video(clip: Path, task: str, url: str, api_key: str, options: ScoreOptions) -> int:
    """Score one clip and print the response; return 3 if it has no score."""
    with RewardFleet(video=url, api_key=api_key, timeout_s=options.timeout) as fleet:
        # The content is sent: the service need not see this machine's files.
        result = fleet.video.score(
            task, clip.read_bytes(), nframes=options.nframes, backend=options.backend
        )
    print(result.model_dump_json(indent=2))
    return 0 if result.score is not None else 3
