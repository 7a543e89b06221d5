"""The experiment of examples/grpo_programs.py: a policy learns to write programs."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ..running import output_of, own_environment

pytest.importorskip("torch")
pytest.importorskip("trl")
pytest.importorskip("matplotlib")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "grpo_programs.py"
SEEDS, STEPS = 3, 50


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> list[dict[str, Any]]:
    """Train all runs of the example, each as a list of the mean rewards of its steps."""
    folder = tmp_path_factory.mktemp("grpo")
    command = (sys.executable, EXAMPLE, folder, folder / "learning.png")
    output_of(*command, seconds=840, env={**own_environment(), "HF_HUB_OFFLINE": "1"})
    assert (folder / "learning.png").exists()
    return json.loads((folder / "results.json").read_text())


def runs(results: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [each for each in results if each["name"] == name]


def tenths(run: dict[str, Any]) -> tuple[float, float]:
    """Return the mean rewards of the first and the last tenth of the steps."""
    return np.mean(run["rewards"][: STEPS // 10]), np.mean(run["rewards"][-STEPS // 10 :])


def test_each_seed_at_least_doubles_its_reward(results):
    real = [*map(tenths, runs(results, "real"))]
    assert len(real) == SEEDS
    assert all(last >= 2 * first >= 0.1 for first, last in real), real


def test_no_seed_learns_from_shuffled_rewards(results):
    shuffled = [*map(tenths, runs(results, "shuffled"))]
    assert len(shuffled) == SEEDS
    assert all(last < 1.5 * first for first, last in shuffled), shuffled


def test_a_replica_that_is_killed_halfway_changes_no_reward_of_any_step(results):
    (killed,) = runs(results, "killed")
    (same,) = [each for each in runs(results, "real") if each["seed"] == killed["seed"]]
    assert (killed["replicas at the end"], same["replicas at the end"]) == (1, 2)
    assert len(killed["rewards"]) == STEPS
    assert killed["rewards"] == same["rewards"]


def test_no_reward_is_missing(results):
    assert [run["missing"] for run in results] == [0] * len(results)
    assert all(len(run["rewards"]) == STEPS for run in results)
