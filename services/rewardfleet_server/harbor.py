"""`rewardfleet harbor`: the reward of a Harbor task, as its verifier writes it.

It runs where an agent has worked, so nothing that the agent left behind may decide: earlier reward
files are removed, and what the agent wrote is read as data.
"""

import json
import os
import stat
from pathlib import Path
from typing import Literal

import click

from rewardfleet import Score
from rewardfleet.blocking import RewardFleet
from rewardfleet.wire.code import as_tests
from rewardfleet.wire.policy_text import MAX_CHARACTERS

#: Where Harbor looks for the reward, in this order.
REWARD_FILES = ("reward.json", "reward.txt")


def score_program(
    fleet: RewardFleet, program: Path, tests: Path, mode: Literal["pass_rate", "all_pass"]
) -> Score:
    """Score a program of the agent. One that is not there, or cannot be read, scores 0.

    Args:
        fleet: Has the code service.
        program: The file that the agent wrote.
        tests: A file with the tests, or with a ground truth of another form.
        mode: As in a request of the code service.

    Raises:
        RewardFleetError: There is no score.
        OSError: The tests cannot be read.
    """
    score: Score = fleet.code.score(read_text(program), as_tests(tests.read_text()), mode=mode)
    return score


def read_text(path: Path) -> str:
    """Return the text of a file that an agent wrote; "" if it is not a regular file.

    A file that is a link is not read: it may lead to the solution, which Harbor stores next to
    the tests.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        return _empty(path, str(error.strerror))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return _empty(path, "not a regular file")
    with os.fdopen(descriptor, "rb") as file:
        # A character more than what is judged by its content, whatever its encoding.
        return file.read(4 * (MAX_CHARACTERS + 1)).decode(errors="surrogateescape")


def _empty(path: Path, reason: str) -> str:
    click.echo(f"rewardfleet: {path}: {reason}; scored as empty", err=True)
    return ""


def remove_rewards(folder: Path) -> None:
    """Create the folder of the reward, and remove the rewards that are in it.

    Raises:
        OSError: It cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in REWARD_FILES:
        (folder / name).unlink(missing_ok=True)


def write_reward(folder: Path, reward: float) -> None:
    """Write `reward.json` with one key; it is complete or not there.

    Raises:
        OSError: It cannot be written.
    """
    temporary = folder / f".{REWARD_FILES[0]}.{os.getpid()}"
    temporary.unlink(missing_ok=True)
    with temporary.open("x") as file:
        json.dump({"reward": reward}, file)
    temporary.replace(folder / REWARD_FILES[0])
