"""TRL's own trainer, with a policy that writes random bytes."""

import json
import math
from pathlib import Path

import pytest

from rewardfleet.adapters.trl import reward_function

from ..third_party.trainers import close_fleet_of, random_trainer

pytest.importorskip("torch")
pytest.importorskip("trl")

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow, pytest.mark.timeout(900)]

STEPS = 30
#: A program that does nothing passes the first.
TESTS = {"kind": "stdio", "cases": [{"stdin": "", "stdout": ""}, {"stdin": "", "stdout": "5"}]}


def test_a_policy_that_writes_random_bytes_is_trained_for_30_steps(code_url: str, tmp_path: Path):
    """Empty programs and NUL characters are among what it writes."""
    score = reward_function("code", code_url)
    scored: dict[str, float] = {}

    async def code_reward(completions: list[str], **columns: object) -> list[float]:
        rewards = await score(completions=completions, **columns)
        scored.update(zip(completions, rewards, strict=True))
        return rewards

    rows = [{"prompt": f"print {number}", "tests": json.dumps(TESTS)} for number in range(4)]
    options = {"max_steps": STEPS, "per_device_train_batch_size": 32, "num_generations": 8}
    options |= {"learning_rate": 1e-3, "report_to": []}
    trainer = random_trainer(tmp_path, code_reward, rows * STEPS, **options)
    trainer.train()
    close_fleet_of(score, trainer)
    steps = [each for each in trainer.state.log_history if "reward" in each]
    assert len(steps) == STEPS
    assert all(math.isfinite(value) for step in steps for value in step.values())
    assert any("\0" in program for program in scored)
    assert "" in scored
    assert {0.0, 0.5} <= set(scored.values()) <= {0.0, 0.5, 1.0}
    assert any(step["grad_norm"] > 0 for step in steps)
