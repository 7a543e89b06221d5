"""`rewardfleet score`: score a clip, or whole data sets."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from rewardfleet.bulk.job import Job
from rewardfleet.bulk.lerobot import write_rewards
from rewardfleet.bulk.output import Output, Printer
from rewardfleet.bulk.records import columns_of
from rewardfleet.bulk.requests import Columns, Item, RequestBuilder
from rewardfleet.bulk.rows import Row, Source, open_sources
from rewardfleet.bulk.run import MOST_IN_FLIGHT, Run, score_type_of
from rewardfleet.client import SERVICES, RewardFleet
from rewardfleet.wire.errors import InvalidRequest, RewardFleetError

from .index import base_url, find_services, http_client
from .options import API_KEY, TIMEOUT, CommandGroup, grouped, number


@dataclass(frozen=True)
class Scorer:
    """What scores the items."""

    url: Sequence[str]
    start: str | None
    timeout: float
    api_key: str


@dataclass(frozen=True)
class Fields:
    """What requests have that is not in the rows."""

    set_field: Sequence[str]
    task: str | None = None
    judge: str | None = None
    by_path: bool = False


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
    help="Base URL of the video service, or of a fleet.",
)
@API_KEY
@number("--nframes", "N", "Frames that the judge sees.", 16, of=click.IntRange(1, 128))
@click.option("--backend", metavar="JUDGE", help="Judge.  [default: the service's]")
@TIMEOUT
@grouped(options=ScoreOptions)
def score_video(clip: Path, task: str, url: str, api_key: str, options: ScoreOptions) -> int:
    """Score one clip and print the response; return 3 if it has no score."""
    content = clip.read_bytes()
    url = asyncio.run(_video_url(base_url(url), api_key))
    with RewardFleet(video=url, api_key=api_key, timeout_s=options.timeout) as fleet:
        # The content is sent: the service need not see this machine's files.
        result = fleet.video.score(task, content, nframes=options.nframes, backend=options.backend)
    print(result.model_dump_json(indent=2))
    return 0 if result.score is not None else 3


async def _video_url(url: str, api_key: str) -> str:
    """Return the base URL of the video service at or below a URL; if there is none, the URL."""
    async with http_client(api_key) as http:
        return (await find_services(http, url)).services.get("video", url)
