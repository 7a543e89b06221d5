"""`rewardfleet demo`: start all services, score real rollouts and one item of each service."""

import asyncio
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
from pydantic import BaseModel

from rewardfleet import RewardFleet, RewardFleetError, Score, VideoScore
from rewardfleet.commands.local_service import running
from rewardfleet.commands.options import table
from rewardfleet.evaluation.metrics import auroc
from rewardfleet.services import SERVICES
from rewardfleet.wire.causes import SUCCESS_THRESHOLD

#: Concurrent requests.
_CALLERS = 8
#: Columns of a task's text at each end, so that the table fits into 60.
_HALF = 12
_NEXT = """
What to try next, all services:
  rewardfleet up
and, in a second terminal,
  rewardfleet status
The HTTP reference is then at http://127.0.0.1:18000/video/docs.
The tasks that the judge knows, and how to add your own:
  rewardfleet references list
  rewardfleet references add LIBRARY CLIP "the task" --success"""
#: The rollouts in the package, see their NOTICE.md.
_ROLLOUTS = Path(__file__).parent / "rollouts"


class Rollout(BaseModel):
    """One line of the manifest."""

    file: str  #: the video file, in the folder of the manifest
    task_text: str
    success: bool  #: whether the task was done at the end
    failure_kind: str | None = None  #: how it failed, in the simulator's terms; empty for a success


class ScoredRollout(NamedTuple):
    rollout: Rollout
    score: VideoScore
    took_ms: float


@click.command(
    name="demo",
    help="Start all services, score rollouts of robots and one item of each service, and end them. "
    'FOLDER contains labeled rollouts: video files, and manifest.jsonl with one {"file", '
    '"task_text", "success", "failure_kind"} per line.  [default: those in the package]',
)
@click.argument(
    "folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=_ROLLOUTS,
    metavar="[FOLDER]",
)
def command(folder: Path) -> int:
    """Score every rollout of a folder with a new fleet; print scores and their accuracy."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # `_fleet` ends what it has started
    lines = (folder / "manifest.jsonl").read_text().splitlines()
    rollouts = [Rollout.model_validate_json(line) for line in lines]
    print("Starting the services: rewardfleet up …", flush=True)
    try:
        with _fleet(folder) as url:
            print(f"They are at {url}; the video judge is `reference`.")
            print(f"Scoring {len(rollouts)} rollouts …\n", flush=True)
            results, others = asyncio.run(_score_all(url, folder.resolve(), rollouts))
    except RewardFleetError as error:
        print(f"A service failed: {error}")
        return 1
    print(_table(results))
    print(_summary(results))
    for name, (what, score) in others.items():
        print(f"{name:8} {what:40} {score.score:.2f}")
    print(_NEXT)
    return 0


@contextmanager
def _fleet(folder: Path) -> Iterator[str]:
    """Run `rewardfleet up` on free ports for the block; yield its URL."""
    with tempfile.TemporaryDirectory() as data:
        config = Path(data) / "fleet.toml"
        config.write_text("port = 0\n" + "".join(f"[{name}]\nport = 0\n" for name in SERVICES))
        flags = ["--config", str(config), "--data-dir", data, "--video-root", str(folder.resolve())]
        with running(["up", *flags], r"Ready after .*?: (http\S+)\. ") as url:
            yield url


async def _score_all(
    url: str, folder: Path, rollouts: Sequence[Rollout]
) -> tuple[list[ScoredRollout], dict[str, tuple[str, Score]]]:
    """Score each rollout, and one item of each other service: what it is, and its score."""
    slots = asyncio.Semaphore(_CALLERS)

    async def request(fleet: RewardFleet, rollout: Rollout) -> ScoredRollout:
        async with slots:
            started = time.monotonic()
            score = await fleet.video.score(rollout.task_text, folder / rollout.file)
            return ScoredRollout(rollout, score, (time.monotonic() - started) * 1000)

    others = {}
    async with RewardFleet(url) as fleet:
        scored = await asyncio.gather(*(request(fleet, rollout) for rollout in rollouts))
        for name, service in SERVICES.items():
            if name != "video":
                item = service.client.request_type.model_validate(service.item(0)[0])
                answer = await getattr(fleet, name).score_batch([item])
                (score,) = getattr(answer, "results", answer)
                others[name] = service.example, score
    return scored, others


def _table(results: Sequence[ScoredRollout]) -> str:
    rows = []
    for each in sorted(results, key=lambda each: each.rollout.task_text):
        score, rollout, task = each.score.score, each.rollout, each.rollout.task_text
        if len(task) > 2 * _HALF + 1:  # tasks differ at both ends, in the object and in the target
            task = f"{task[:_HALF]}…{task[-_HALF:]}"
        said = "success" if rollout.success else rollout.failure_kind or "failure"
        is_wrong = score is not None and (score >= SUCCESS_THRESHOLD) != rollout.success
        shown = "none" if score is None else f"{score:.2f}"
        rows.append([task, shown, said + " !" * is_wrong, f"{each.took_ms:.0f}"])
    return table(("task", "score", "simulator said", "ms"), rows, numbers=True)


def _summary(results: Sequence[ScoredRollout]) -> str:
    scored = [each for each in results if each.score.score is not None]
    success = np.array([each.rollout.success for each in scored], bool)
    scores = np.array([each.score.score for each in scored], float)
    successes, failures = success.sum(), (~success).sum()
    called, found = ((scores[of] >= SUCCESS_THRESHOLD).sum() for of in (~success, success))
    area = auroc(success, scores)
    return (
        f"\nAUROC {np.nan if area is None else area:.3f} over {successes} successes and "
        f"{failures} failures; {len(results) - len(scored)} abstained.\n"
        f"False positives at {SUCCESS_THRESHOLD}: {called} of {failures} failures. "
        f"Successes found: {found} of {successes}. Wrong verdicts have a !.\n"
    )
