"""The shell scripts of examples/router start commands that accept their arguments."""

import subprocess
from pathlib import Path

import pytest

from rewardfleet_router.config import parse_arguments

SCRIPTS = Path(__file__).parents[3] / "examples" / "router"


def arguments_of(script: str, *more: str, **environment: str) -> tuple[list[str], list[str]]:
    """Return the program that a script starts, and its arguments."""
    done = subprocess.run(
        ["bash", str(SCRIPTS / script), *more],
        env={"PATH": "/usr/bin:/bin", "PYTHON": "echo", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    words = done.stdout.split()
    return [word for word in words if "=" not in word], [word for word in words if "=" in word]


def test_the_loop_of_its_own_gets_arguments_that_it_accepts():
    program, arguments = arguments_of(
        "run_router_training.sh",
        "trainer.total_epochs=3",
        LOOP="own",
        DATA_DIR="data",
        BASE_MODEL="model",
        BUDGET="0.2",
    )
    assert program == ["-m", "rewardfleet_router", "train"]
    config = parse_arguments(arguments)
    assert config.router.budget_B == 0.2
    assert config.router.cost_weights.any_tool == 1.0
    assert config.data.train_files == (Path("data/train_router.parquet"),)
    assert config.trainer.save_freq == 200
    assert config.trainer.total_epochs == 3, "the last one counts"


@pytest.mark.filterwarnings("ignore")  # of verl and what it imports
@pytest.mark.parametrize(
    ("script", "rollout"), [("run_router_training.sh", "hf"), ("train_grpo.sh", "vllm")]
)
def test_verl_gets_arguments_that_it_accepts(script: str, rollout: str):
    from rewardfleet_router.verl.__main__ import compose

    program, arguments = arguments_of(script, "data.seed=3", DATA_DIR="data", BASE_MODEL="model")
    assert program == ["-m", "rewardfleet_router.verl"]
    config = compose(arguments)
    assert config.router.budget_B == 0.3
    assert config.actor_rollout_ref.rollout.name == rollout
    assert config.actor_rollout_ref.rollout.n == 4
    assert config.data.seed == 3
    assert config.trainer.experiment_name in {"baseline_router", "grpo-router"}


def test_a_script_without_its_variables_says_which_one_is_missing():
    with pytest.raises(subprocess.CalledProcessError) as failed:
        arguments_of("run_router_training.sh", DATA_DIR="data")
    assert "BASE_MODEL: the actor, a causal language model" in failed.value.stderr
