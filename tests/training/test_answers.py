"""TRL's trainer and verl's reward loop with the answers service, beside their own functions."""

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

from rewardfleet.adapters.trl import reward_function
from rewardfleet.commands.local_service import local_service

from ..third_party.trainers import byte_tokenizer, random_trainer

torch = pytest.importorskip("torch")
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
    fleet = score.keywords["scorer"]._fleet
    asyncio.run_coroutine_threadsafe(fleet.aclose(), trainer.async_loop).result(30)
    steps = [each for each in trainer.state.log_history if "reward" in each]
    assert len(steps) == 3
    assert all(math.isfinite(value) for step in steps for value in step.values())


@pytest.fixture
def local_ray():
    ray = pytest.importorskip("ray")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.usefixtures("local_ray")
def test_the_function_of_verl_is_replaced_by_three_lines(answers_url: str, tmp_path: Path):
    pytest.importorskip("verl")
    from hydra import compose, initialize_config_module
    from verl import DataProto
    from verl.experimental.reward_loop.reward_loop import (
        RewardLoopManager,
        migrate_legacy_reward_impl,
    )
    from verl.trainer.ppo.reward import extract_reward
    from verl.utils.reward_score import default_compute_score

    byte_tokenizer().save_pretrained(tmp_path / "tokenizer")
    overrides = [
        f"actor_rollout_ref.model.path={tmp_path / 'tokenizer'}",
        "actor_rollout_ref.rollout.name=hf",
        "reward.num_workers=1",
        "reward.custom_reward_function.path=pkg://rewardfleet.adapters.verl",
        "reward.custom_reward_function.name=compute_score_async",
        f"+reward.custom_reward_function.reward_kwargs={{url:'{answers_url}',service:answers}}",
    ]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides)
    prompts = torch.full((len(ANSWERS), 4), 65)
    encoded = byte_tokenizer()(
        list(ANSWERS), add_special_tokens=False, padding=True, return_tensors="pt"
    )
    mask = torch.cat([torch.ones_like(prompts), encoded.attention_mask], dim=1)
    batch = DataProto.from_dict(
        tensors={
            "prompts": prompts,
            "responses": encoded.input_ids,
            "response_mask": encoded.attention_mask,
            "attention_mask": mask,
        },
        non_tensors={
            "uid": ["a"] * len(ANSWERS),
            "data_source": [MATH] * len(ANSWERS),
            "reward_model": [{"ground_truth": "0.5"}] * len(ANSWERS),
            "extra_info": [{} for _ in ANSWERS],
        },
    )
    manager = RewardLoopManager(migrate_legacy_reward_impl(config))
    rewards, reported = extract_reward(batch.union(manager.compute_rm_score(batch)))
    assert rewards.sum(-1).tolist() == [*ANSWERS.values()]
    assert reported["reward/failed"].tolist() == [0.0] * len(ANSWERS)
    assert [default_compute_score(MATH, each, "0.5") for each in ANSWERS] == [1.0, 0.0, 0.0, 0.0]
