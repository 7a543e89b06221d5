"""What the package needs: labels and routes work without PyTorch."""

import subprocess
import sys

import pytest

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # as if it were not installed
import rewardfleet_router.labels.labeling, rewardfleet_router.metrics, rewardfleet_router.rows
from rewardfleet_router.__main__ import main
from rewardfleet_router.routes import Route
print(Route.ANSWER, flush=True)
main(sys.argv[1:])
"""


def run_without_torch(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_TORCH, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("route", "."),
        ("train", "data.train_files=rows.parquet", "actor_rollout_ref.model.path=model"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_without_torch_labels_and_routes_work_and_other_commands_say_what_they_need(arguments):
    done = run_without_torch(*arguments)
    assert done.returncode == 1
    assert done.stdout == "ANSWER\n"
    assert "torch" in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr


@pytest.mark.slow
def test_without_openai_the_label_command_says_what_it_needs():
    program = "import sys; sys.modules['openai'] = None\n"
    program += "from rewardfleet_router.__main__ import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", program, "label", "rows.parquet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 2
    assert "openai" in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr
