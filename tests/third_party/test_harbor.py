"""Harbor 0.26.0: its verifier runs the test.sh of docs/wire-formats.md, and reads the reward."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..programs import HALF, RIGHT, TESTS, WRONG
from .trainers import CLIENTS, HERE, needs_clients

#: Harbor needs Python 3.12, and its folder has wheels for this version only.
HARBOR = CLIENTS / "python3.12"
FOLDERS = [*map(str, Path("~/.pyenv/versions").expanduser().glob("3.12.*/bin")), os.environ["PATH"]]
PYTHON = shutil.which("python3.12", path=os.pathsep.join(FOLDERS))

needs_python = pytest.mark.skipif(not (PYTHON and HARBOR.exists()), reason="needs Python 3.12")
pytestmark = [needs_clients, needs_python, pytest.mark.slow]

PAGE = (HERE.parent.parent / "docs" / "wire-formats.md").read_text()
SCRIPT = re.search(r"## Harbor\n\n```sh\n(.*?)```", PAGE, re.DOTALL)[1]


def verified(url: str, folder: Path, program: str | None, seconds: int = 60) -> object:
    """Return the rewards that Harbor reads, or its error; the agent has left a reward."""
    root, task = folder / "root", folder / "task"
    for each in (root / "app", root / "logs" / "verifier", task / "tests", task / "environment"):
        each.mkdir(parents=True)
    (root / "logs" / "verifier" / "reward.txt").write_text("1.0")
    if program is not None:
        (root / "app" / "solution.py").write_text(program)
    (task / "task.toml").write_text("")
    (task / "instruction.md").write_text("Add.")
    (task / "tests" / "tests.json").write_text(json.dumps(TESTS))
    here = f"PYTHONPATH={os.environ.get('PYTHONPATH', '')} {sys.executable} -m rewardfleet_server"
    output = f"--output-dir /logs/verifier/ --timeout {seconds}"
    script = SCRIPT.replace("rewardfleet", here).replace("--url http://HOST:18000", output)
    (task / "tests" / "test.sh").write_text(f"{script.rstrip()} --url {url}\n")
    command = [str(PYTHON), str(HERE / "harbor_verifier.py"), str(task), str(root)]
    environment = {**os.environ, "PYTHONPATH": str(HARBOR)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def test_the_reward_is_that_of_the_program(code_url: str, tmp_path: Path):
    for program, reward in ((RIGHT, 1.0), (HALF, 0.5), (WRONG, 0.0), (None, 0.0)):
        found = verified(code_url, tmp_path / str(program and len(program)), program)
        assert found == {"rewards": {"reward": reward}}


def test_without_a_service_there_is_no_reward_not_even_that_of_the_agent(
    dead_url: str, tmp_path: Path
):
    assert verified(dead_url, tmp_path, RIGHT, seconds=1) == {"error": "RewardFileNotFoundError"}
    assert "rewardfleet:" in (tmp_path / "root/logs/verifier/test-stdout.txt").read_text()
