"""`rewardfleet harbor`: the reward of a Harbor task, as its verifier writes it.

It runs where an agent has worked, so nothing that the agent left behind may decide: earlier reward
files are removed, and what the agent wrote is read as data.
"""

import json
import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

from rewardfleet import Score
from rewardfleet.blocking import RewardFleet
from rewardfleet.bulk.files import new_file
from rewardfleet.code import CodeOptions
from rewardfleet.wire.policy_text import MAX_CHARACTERS
from rewardfleet.wire.tools import fields_of_truth

from .options import TIMEOUT, grouped, one_url, path_option
from .settings import api_key

#: Where Harbor looks for the reward, in this order.
REWARD_FILES = ("reward.json", "reward.txt")

Mode = Literal["pass_rate", "all_pass"]


@dataclass(frozen=True)
class ExpectedResult:
    """What a file is compared with: one of tests, a correct answer and a task."""

    tests: Path | None
    ground_truth: Path | None
    task: str | None
    mode: Mode | None


@click.command(
    name="harbor",
    help="Verify a Harbor task, from its tests/test.sh: score FILE, which the agent wrote, and "
    "write reward.json. Without a score, no file is written. FILE is a program with --tests, an "
    "answer with --ground-truth, a video with --task.",
)
@click.argument("file", type=click.Path(path_type=Path))
@path_option(
    "--tests",
    "FILE",
    "The tests of the program: those of a request, or the ground truth of a dataset.",
)
@path_option(
    "--ground-truth",
    "FILE",
    "The correct answer, for an answer that calls tools; or JSON with it as `ground_truth`.",
)
@click.option("--task", metavar="TEXT", help="The task that the video shows.")
@click.option(
    "--mode",
    type=click.Choice(["pass_rate", "all_pass"]),
    help="Reward: pass_rate, the share of tests passed, or all_pass, 1 or 0.  [default: that in "
    "the file of --tests, or pass_rate]",
)
@one_url("Base URL of the fleet or of the service.")
@TIMEOUT
@path_option(
    "--output-dir",
    "FOLDER",
    "Folder where the reward is written.",
    default="/logs/verifier",
    show_default=True,
)
@grouped(truth=ExpectedResult)
def command(file: Path, truth: ExpectedResult, url: str, timeout: float, output_dir: Path) -> int:
    """Write the reward of a file; return 3 if it has no score."""
    output_dir.mkdir(parents=True, exist_ok=True)
    for name in REWARD_FILES:  # first of all: the agent may have written one
        (output_dir / name).unlink(missing_ok=True)
    if (truth.tests is None) + (truth.ground_truth is None) + (truth.task is None) != 2:
        raise click.UsageError("give one of --tests, --ground-truth and --task")
    reward = _score(file, truth, url, timeout).score
    if reward is None:
        print("rewardfleet: the judge abstained; no reward is written", file=sys.stderr)
        return 3
    with new_file(output_dir / REWARD_FILES[0]) as written:
        written.write(json.dumps({"reward": reward}).encode())
    return 0


def _score(file: Path, truth: ExpectedResult, url: str, timeout_s: float) -> Score:
    with RewardFleet(url, timeout_s=timeout_s, api_key=api_key()) as fleet:
        if truth.tests is not None:
            options: CodeOptions = {"mode": truth.mode} if truth.mode else {}
            return fleet.code.score(_read_text(file), truth.tests.read_text(), **options)
        if truth.ground_truth is not None:
            fields = fields_of_truth(truth.ground_truth.read_text())
            return fleet.tools.score(_read_text(file), **fields)
        return fleet.video.score(truth.task or "", file.read_bytes())


def _read_text(path: Path) -> str:
    """Return the text of a file that an agent wrote; "" if it is not a regular file.

    A file that is a link is not read: it may lead to the solution, which Harbor stores next to
    the tests.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as file:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                # A character more than what is judged by its content, whatever its encoding.
                return file.read(4 * (MAX_CHARACTERS + 1)).decode(errors="surrogateescape")
        reason = "not a regular file"
    except OSError as error:
        reason = str(error.strerror)
    click.echo(f"rewardfleet: {path}: {reason}; scored as empty", err=True)
    return ""
