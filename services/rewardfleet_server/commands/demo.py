"""`make demo`: start all services, score real rollouts and one item of each service.

    python -m rewardfleet_server.commands.demo FOLDER

FOLDER contains labeled rollouts: video files, and `manifest.jsonl` with one `{"file", "task_text",
"success", "failure_kind"}` per line.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from rewardfleet import RewardFleet, RewardFleetError, Score, VideoScore, episode_request
from rewardfleet_server.up.settings import free_port

_STOP_SECONDS, _POLL_SECONDS = 60, 0.1
#: Concurrent requests.
_CALLERS = 8
_THRESHOLD = 0.5
_TASK_WIDTH = 27


@dataclass(frozen=True)
class Rollout:
    """One line of the manifest.

    Attributes:
        path: The video file.
        task_text: The task.
        success: Whether the task was done at the end.
        failure_kind: How it failed, in the simulator's terms; empty for a success.
    """

    path: Path
    task_text: str
    success: bool
    failure_kind: str


@dataclass(frozen=True)
class ScoredRollout:
    """A rollout that was scored twice.

    Attributes:
        rollout: The rollout.
        score: The response to the first request.
        first_ms: Milliseconds of the first request.
        again_ms: Milliseconds of the repeated request.
        again_cached: Whether the repeated request was answered from the cache.
    """

    rollout: Rollout
    score: VideoScore
    first_ms: float
    again_ms: float
    again_cached: bool


def main(folder: Path) -> int:
    """Score every rollout of `folder` with a new fleet; print scores and their accuracy."""
    console = Console()
    rollouts = _read_manifest(folder)
    console.print("Starting the services: rewardfleet up …")
    try:
        with _fleet(folder) as url:
            console.print(
                f"They are below {url}; the video judge is `reference`.\n", highlight=False
            )
            results, others = asyncio.run(_score_all(url, rollouts, console))
    except RewardFleetError as error:
        console.print(f"[red]A service failed:[/red] {escape(str(error))}")
        return 1
    console.print(_table(results))
    _print_summary(console, results)
    for name, (what, score) in others.items():
        console.print(f"{name:8} {what:40} {score.score:.2f}", highlight=False)
    _print_next(console)
    return 0


def _read_manifest(folder: Path) -> list[Rollout]:
    lines = (folder / "manifest.jsonl").read_text().splitlines()
    return [
        Rollout(
            folder.resolve() / entry["file"],
            entry["task_text"],
            entry["success"],
            entry.get("failure_kind") or "",
        )
        for entry in map(json.loads, lines)
    ]


@contextmanager
def _fleet(folder: Path) -> Iterator[str]:
    """Run `rewardfleet up` on free ports for the block; yield its URL."""
    with tempfile.TemporaryDirectory() as data:
        config, port = Path(data) / "fleet.toml", free_port()
        config.write_text(
            f"port = {port}\n[code]\nport = 0\n[episode]\nport = 0\n[tools]\nport = 0\n"
            f"[video]\nport = 0\nvideo_root = [{json.dumps(str(folder.resolve()))}]\n"
        )
        command = [sys.executable, "-m", "rewardfleet_server", "up", "--config", str(config)]
        with Path(data, "log").open("w+") as log:
            process = subprocess.Popen(  # noqa: S603 - a fixed command
                [*command, "--data-dir", data], stderr=log
            )
            try:
                url = f"http://127.0.0.1:{port}"
                while not _is_ready(url):
                    if process.poll() is not None:
                        log.seek(0)
                        raise RewardFleetError(f"the fleet did not start:\n{log.read()}")
                    time.sleep(_POLL_SECONDS)
                yield url
            finally:
                process.terminate()
                process.wait(_STOP_SECONDS)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=2, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


async def _score_all(
    url: str, rollouts: Sequence[Rollout], console: Console
) -> tuple[list[ScoredRollout], dict[str, tuple[str, Score]]]:
    """Score each rollout twice, and one item of each other service."""
    slots = asyncio.Semaphore(_CALLERS)
    with Progress(console=console, transient=False) as progress:
        bar = progress.add_task("Scoring", total=2 * len(rollouts))

        async def request(fleet: RewardFleet, rollout: Rollout) -> tuple[VideoScore, float]:
            async with slots:
                started = time.monotonic()
                score = await fleet.video.score(rollout.task_text, rollout.path)
                progress.advance(bar)
                return score, (time.monotonic() - started) * 1000

        async with RewardFleet(url) as fleet:
            first = await asyncio.gather(*(request(fleet, rollout) for rollout in rollouts))
            again = await asyncio.gather(*(request(fleet, rollout) for rollout in rollouts))
            others = await _score_others(fleet)
    results = [
        ScoredRollout(rollout, score, first_ms, again_ms, repeated.cached)
        for rollout, (score, first_ms), (repeated, again_ms) in zip(
            rollouts, first, again, strict=True
        )
    ]
    return results, others


async def _score_others(fleet: RewardFleet) -> dict[str, tuple[str, Score]]:
    """Score one item of each service besides video; return what it is, and its score."""
    tests = {"kind": "asserts", "cases": ["assert gcd(12, 18) == 6", "assert gcd(5, 7) == 1"]}
    program = "def gcd(a, b):\n    while b:\n        a, b = b, a % b\n    return a"
    episode = episode_request("a", kind="efficiency", success=1, steps=120, max_steps=512)
    call = '<tool_call>\n{"name": "get_weather", "parameters": {"city": "Paris"}}\n</tool_call>'
    answer = f"<think>I look it up.</think>\n{call}"
    return {
        "code": ("a program that passes 2 tests", await fleet.code.score(program, tests)),
        "episode": ("a success after 120 of 512 steps", await fleet.episode.score(episode)),
        "tools": ("an answer with the right call", await fleet.tools.score(answer, answer)),
    }


def _table(results: Sequence[ScoredRollout]) -> Table:
    table = Table(
        title="Times in milliseconds; a repeated request is answered from the cache",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("task", no_wrap=True)
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("simulator said", no_wrap=True)
    table.add_column("first", justify="right", no_wrap=True)
    table.add_column("again", justify="right", no_wrap=True)
    table.add_column("cached", no_wrap=True)
    for each in sorted(results, key=lambda each: each.rollout.task_text):
        score, rollout = each.score.score, each.rollout
        wrong = score is not None and (score >= _THRESHOLD) != rollout.success
        shown = "none" if score is None else f"{score:.2f}"
        table.add_row(
            _shortened(rollout.task_text),
            f"[red]{shown}[/red]" if wrong else shown,
            "[green]success[/green]" if rollout.success else rollout.failure_kind or "failure",
            f"{each.first_ms:.0f}",
            f"{each.again_ms:.1f}",
            "yes" if each.again_cached else "no",
        )
    return table


def _shortened(task_text: str) -> str:
    """Cut the middle: tasks differ at both ends, in the object and in the target."""
    if len(task_text) <= _TASK_WIDTH:
        return task_text
    half = (_TASK_WIDTH - 1) // 2
    return f"{task_text[:half]}…{task_text[-half:]}"


def _print_summary(console: Console, results: Sequence[ScoredRollout]) -> None:
    scored = [
        (each.score.score, each.rollout.success) for each in results if each.score.score is not None
    ]
    successes = [score for score, success in scored if success]
    failures = [score for score, success in scored if not success]
    called = sum(score >= _THRESHOLD for score in failures)
    found = sum(score >= _THRESHOLD for score in successes)
    console.print(
        f"\nAUROC {auroc(successes, failures):.3f} over {len(successes)} successes and "
        f"{len(failures)} failures; {len(results) - len(scored)} abstained.\n"
        f"False positives at {_THRESHOLD}: {called} of {len(failures)} failures. "
        f"Successes found: {found} of {len(successes)}.\n",
        highlight=False,
    )


def _print_next(console: Console) -> None:
    console.print(
        "\nWhat to try next:\n"
        "  .venv/bin/rewardfleet up\n"
        "and, in a second terminal,\n"
        "  .venv/bin/rewardfleet status\n"
        '  .venv/bin/rewardfleet score video CLIP "the task"\n'
        "or read the HTTP reference at http://127.0.0.1:18000/video/docs; add your own tasks with\n"
        '  .venv/bin/rewardfleet references add LIBRARY CLIP "the task" --success',
        highlight=False,
    )


def auroc(successes: Sequence[float], failures: Sequence[float]) -> float:
    """Return the area under the ROC curve; NaN if there are no successes or no failures.

    It is the probability that a success scores above a failure, with ties counted half (Hanley and
    McNeil, Radiology 143, 1982).
    """
    pairs = [(success > failure) + (success == failure) / 2
             for success in successes for failure in failures]  # fmt: skip
    return sum(pairs) / len(pairs) if pairs else float("nan")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
