"""TRL's trainer and verl's reward loop with the answers service, beside their own functions."""

import math
from pathlib import Path
from typing import Any

import pytest

from rewardfleet.adapters.trl import reward_function
from rewardfleet.commands.local_service import local_service

from ..third_party.trainers import close_fleet_of, random_trainer, rollouts_of
from .conftest import reward_loop

pytest.importorskip("torch")
pytest.importorskip("math_verify")

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow, pytest.mark.timeout(900)]

#: What a policy wrote for the reference 0.5, and whether that is right.
ANSWERS = {r"So \boxed{\frac{1}{2}}": 1.0, r"\boxed{2}": 0.0, "The answer is 50%.": 1.0, "": 0.0}
MATH = "HuggingFaceH4/MATH-500"


@pytest.fixture(scope="module")
def answers_url():
    with local_service("answers", "") as url:
        yield url


def test_the_function_of_trl_is_replaced_by_one_with_its_column(answers_url: str):
    from trl.rewards import accuracy_reward

    completions = [[{"role": "assistant", "content": each}] for each in ANSWERS]
    given: dict[str, Any] = {"completions": completions, "solution": ["$0.5$"] * len(ANSWERS)}
    reward = reward_function("answers", answers_url, column="solution", is_async=False)
    assert reward(prompts=["?"] * len(ANSWERS), **given) == [*ANSWERS.values()]
    assert accuracy_reward(**given) == [1.0, 0.0, 0.0, 0.0]


def test_trl_trains_with_it(answers_url: str, tmp_path: Path):
    pytest.importorskip("trl")
    score = reward_function("answers", answers_url)
    rows = [{"prompt": f"{number} + 1?", "reference": str(number + 1)} for number in range(4)]
    options = {"max_steps": 3, "per_device_train_batch_size": 8, "num_generations": 4}
    trainer = random_trainer(tmp_path, score, rows * 3, **options, report_to=[])
    trainer.train()
    close_fleet_of(score, trainer)
    steps = [each for each in trainer.state.log_history if "reward" in each]
    assert len(steps) == 3
    assert all(math.isfinite(value) for step in steps for value in step.values())


@pytest.mark.usefixtures("local_ray")
def test_the_function_of_verl_is_replaced_by_three_lines(answers_url: str, tmp_path: Path):
    pytest.importorskip("verl")
    from verl.trainer.ppo.reward import extract_reward
    from verl.utils.reward_score import default_compute_score

    count = len(ANSWERS)
    batch = rollouts_of([*ANSWERS], ["0.5"] * count, uid=["a"] * count, data_source=[MATH] * count)
    manager = reward_loop(tmp_path, 1, url=answers_url, service="answers")
    rewards, reported = extract_reward(batch.union(manager.compute_rm_score(batch)))
    assert rewards.sum(-1).tolist() == [*ANSWERS.values()]
    assert reported["reward/failed"].tolist() == [0.0] * count
    assert [default_compute_score(MATH, each, "0.5") for each in ANSWERS] == [1.0, 0.0, 0.0, 0.0]
