"""The static types of both clients, checked by mypy, and the generated stub."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from rewardfleet import blocking
from rewardfleet.services import SERVICES

ROOT = Path(__file__).parent.parent.parent

#: Lines with a comment must be errors of this code; all other lines must be accepted.
PROGRAM = """
import numpy as np
import rewardfleet
from rewardfleet import blocking

frames = np.zeros((8, 32, 32, 3), np.uint8)
tests = {"kind": "stdio", "cases": [{"stdin": "", "stdout": "1"}]}

with blocking.RewardFleet(video="http://a", code=["http://b", "http://c"], timeout_s=5) as fleet:
    score: rewardfleet.VideoScore = fleet.video.score("task", frames, nframes=8)
    reward: float = fleet.video.reward("task", "clip.mp4", backend=None)
    health: rewardfleet.VideoHealth = fleet.video.health()
    request = rewardfleet.video_request("task", b"...")
    scores: list[rewardfleet.VideoScore] = fleet.video.score_batch([request])
    rewards: list[float] = fleet.code.rewards([rewardfleet.code_request("print(1)", tests)])
    code_score: rewardfleet.CodeScore = fleet.code.score("print(1)", tests, mode="all_pass")
    episode = fleet.episode.score_batch([rewardfleet.episode_request("a", success=True)])
    first: rewardfleet.EpisodeScore = episode.results[0]
    fleet.video.score("task", 7)  # arg-type
    fleet.video.score("task", frames, nframes="8")  # arg-type
    fleet.video.score("task", frames, frames=8)  # call-arg
    fleet.video.score_batch([rewardfleet.code_request("print(1)", tests)])  # list-item
    fleet.code.reward("print(1)", tests, mode="most")  # arg-type
    fleet.video.aclse()  # attr-defined
    fleet.audio  # attr-defined
    text: str = fleet.video.reward("task", frames)  # assignment
blocking.RewardFleet(vidoe="http://a")  # call-arg
blocking.RewardFleet(video=7)  # arg-type

async def use() -> None:
    async with rewardfleet.RewardFleet(video="http://a", code="http://b") as fleet:
        client: rewardfleet.VideoClient = fleet.video
        score: rewardfleet.CodeScore = await fleet.code.score("print(1)", tests)
        rewards: list[float] = await fleet.video.rewards([request])
        await fleet.video.score("task", frames, nframes="8")  # arg-type
        await fleet.code.rewards([request])  # list-item
        text: str = await fleet.video.reward("task", frames)  # assignment
    rewardfleet.RewardFleet(video=7)  # arg-type
"""


@pytest.mark.slow
def test_mypy_accepts_correct_calls_and_rejects_wrong_arguments(tmp_path: Path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-pretty", str(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    found = {
        (int(line.split(":")[1]), line.rpartition("[")[2].rstrip("]"))
        for line in done.stdout.splitlines()
        if ": error: " in line
    }
    expected = {
        (number, line.partition("  # ")[2])
        for number, line in enumerate(PROGRAM.splitlines(), 1)
        if "  # " in line
    }
    assert found == expected, done.stdout + done.stderr


def test_the_stub_has_every_service_and_call():
    tree = ast.parse(Path(blocking.__file__).with_suffix(".pyi").read_text())
    classes = {
        node.name: {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
    assert classes.keys() == {"RewardFleet"} | {
        f"_{each.client.__name__}" for each in SERVICES.values()
    }
    for name, client_type in ((name, each.client) for name, each in SERVICES.items()):
        assert name in classes["RewardFleet"]
        calls = {
            call
            for call, _ in inspect.getmembers(client_type, inspect.iscoroutinefunction)
            if not call.startswith("_") and call != "aclose"
        }
        assert classes[f"_{client_type.__name__}"] == calls
