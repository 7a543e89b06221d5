"""`rewardfleet harbor`, with a real code service: the file that it writes, if there is a score.

tests/third_party/test_harbor.py lets Harbor read it.
"""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rewardfleet.commands.main import main
from rewardfleet.wire.errors import Unavailable
from rewardfleet_server.testing import FakeJudge, FakeSandbox

from ...conftest import served
from ...score_log.conftest import service_at
from ...server.code.conftest import served_code

TWO = {"inputs": ["1 2", "3 4"], "outputs": ["3", "7"]}
CALL = '<think>look</think>\n<tool_call>\n{"name": "search", "parameters": {}}\n</tool_call>'


@pytest.fixture(scope="module")
def code_url() -> Iterator[str]:
    with service_at("code") as url:
        yield url


@pytest.fixture
def logs(tmp_path) -> Path:
    """Return the folder of the reward, in which the agent has left some."""
    folder = tmp_path / "logs" / "verifier"
    folder.mkdir(parents=True)
    (folder / "reward.json").write_text('{"reward": 1.0}')
    (folder / "reward.txt").write_text("1.0")
    return folder


def verify(logs: Path, file: Path, *arguments: object) -> int:
    return main(["harbor", str(file), "--output-dir", str(logs), *map(str, arguments)])


def score(url: str, logs: Path, program: Path, *arguments: str) -> float:
    """Verify a program on two tests; return the reward that is written."""
    tests = program.parent / "tests.json"
    tests.write_text(json.dumps(TWO))
    assert verify(logs, program, "--tests", tests, "--url", url, *arguments) == 0
    assert [each.name for each in logs.iterdir()] == ["reward.json"]
    rewards = json.loads((logs / "reward.json").read_text())
    assert rewards.keys() == {"reward"}  # some consumers demand exactly one key
    return rewards["reward"]


def test_the_reward_of_a_program_is_its_pass_rate(code_url, logs: Path, tmp_path):
    program = tmp_path / "solution.py"
    program.write_text("print(sum(map(int, input().split())))")
    assert score(code_url, logs, program) == 1
    program.write_text("print(3)")
    assert score(code_url, logs, program) == 0.5
    assert score(code_url, logs, program, "--mode", "all_pass") == 0


@pytest.mark.parametrize(
    "write",
    [
        lambda path: None,
        lambda path: path.write_text(""),
        lambda path: path.write_bytes(b"print(3)\0\xff"),
        lambda path: path.mkdir(),
        os.mkfifo,
        lambda path: path.symlink_to(path.parent / "solved.py"),
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.write_text("#" * 4_000_010 + "\nprint(3)"),
    ],
    ids=["none", "empty", "binary", "folder", "pipe", "link", "endless", "long"],
)
def test_whatever_the_agent_left_is_scored(
    code_url, logs: Path, tmp_path, write: Callable[[Path], object]
):
    (tmp_path / "solved.py").write_text("print(sum(map(int, input().split())))")
    write(tmp_path / "solution.py")
    assert score(code_url, logs, tmp_path / "solution.py") == 0


@pytest.mark.slow
def test_a_failure_leaves_no_reward_not_even_that_of_the_agent(logs: Path, tmp_path):
    program, tests = tmp_path / "solution.py", tmp_path / "tests.json"
    program.write_text("print(3)")
    tests.write_text(json.dumps(TWO))
    with served_code(sandbox=FakeSandbox(error=Unavailable("no jail"))) as service:
        url = str(service.client.base_url)
        assert verify(logs, program, "--tests", tests, "--url", url, "--timeout", 1) == 2
    assert not list(logs.iterdir())


def test_a_video_on_which_the_judge_abstains_has_no_reward(logs: Path, make_video):
    video = make_video(4)
    for judge, status, count in ((FakeJudge(None), 3, 0), (FakeJudge(0.5), 0, 1)):
        with served(judge) as client:
            url = str(client.base_url)
            assert verify(logs, video, "--task", "put it there", "--url", url) == status
        assert len(list(logs.iterdir())) == count
    assert json.loads((logs / "reward.json").read_text()) == {"reward": 0.5}


def test_an_answer_that_calls_tools(logs: Path, tmp_path):
    answer, truth = tmp_path / "answer.txt", tmp_path / "truth.json"
    answer.write_text(CALL)
    truth.write_text(json.dumps({"ground_truth": CALL, "difficulty": "easy"}))
    with service_at("tools") as url:
        for each in (answer, truth):
            assert verify(logs, answer, "--ground-truth", each, "--url", url) == 0
    assert json.loads((logs / "reward.json").read_text()) == {"reward": 4.0}


def test_what_is_wrong_is_named_and_leaves_no_reward(code_url, logs, tmp_path, capsys):
    (tmp_path / "tests.json").write_text('{"answer": 5}')
    for arguments, words in (
        ([], "give one of --tests, --ground-truth and --task"),
        (["--tests", "/none.json"], "/none.json: No such file"),
        (["--tests", tmp_path / "tests.json", "--url", code_url], "its fields: answer"),
    ):
        assert verify(logs, tmp_path / "solution.py", *arguments) == 2
        assert words in capsys.readouterr().err and not list(logs.iterdir())
