"""verl's reward loop: its workers on a local Ray, with its own configuration."""

import json
from pathlib import Path

import pytest

from ..programs import TESTS
from ..third_party.trainers import byte_tokenizer

torch = pytest.importorskip("torch")
ray = pytest.importorskip("ray")
pytest.importorskip("verl")

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow, pytest.mark.timeout(900)]

#: Responses and their rewards, in two groups of four.
RESPONSES = {
    "": 0.0,
    "print(sum(map(int, input().split())))": 1.0,
    "print(input())": 0.5,
    "print(": 0.0,
    "\0\0": 0.0,
    "I do not know.": 0.0,
    "```python\nprint(7)\n```": 0.5,
    "print('\0')": 0.0,
}


@pytest.fixture
def local_ray():
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.slice
@pytest.mark.usefixtures("local_ray")
def test_an_empty_response_gets_its_reward_and_the_batch_too(code_url: str, tmp_path: Path):
    from hydra import compose, initialize_config_module
    from verl.experimental.reward_loop.reward_loop import (
        RewardLoopManager,
        migrate_legacy_reward_impl,
    )
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
    from verl.trainer.ppo.reward import extract_reward

    byte_tokenizer().save_pretrained(tmp_path / "tokenizer")
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose(
            "ppo_trainer",
            [
                f"actor_rollout_ref.model.path={tmp_path / 'tokenizer'}",
                "actor_rollout_ref.rollout.name=hf",
                "reward.num_workers=2",
                "reward.custom_reward_function.path=pkg://rewardfleet.adapters.verl",
                "reward.custom_reward_function.name=compute_score_async",
                f"+reward.custom_reward_function.reward_kwargs.url={code_url}",
            ],
        )
    batch = rollouts()
    manager = RewardLoopManager(migrate_legacy_reward_impl(config))
    scored = batch.union(manager.compute_rm_score(batch))
    rewards, reported = extract_reward(scored)
    assert rewards.sum(-1).tolist() == list(RESPONSES.values())
    assert reported["reward/failed"].tolist() == [0.0] * len(RESPONSES)
    advantages, _ = compute_grpo_outcome_advantage(
        rewards, batch.batch["response_mask"], batch.non_tensor_batch["uid"]
    )
    assert torch.isfinite(advantages).all()
    assert advantages[0].abs().sum() == 0, "an empty response has no token to train"
    assert (advantages.sum(-1)[1:4] > 0).tolist() == [True, True, False]


def rollouts():
    """Return a batch as verl's rollout workers do: prompts on the left, responses on the right."""
    from verl import DataProto

    prompts = torch.full((len(RESPONSES), 4), 65)
    encoded = byte_tokenizer()(
        list(RESPONSES), add_special_tokens=False, padding=True, return_tensors="pt"
    )
    return DataProto.from_dict(
        tensors={
            "prompts": prompts,
            "responses": encoded.input_ids,
            "response_mask": encoded.attention_mask,
            "attention_mask": torch.cat([torch.ones_like(prompts), encoded.attention_mask], dim=1),
        },
        non_tensors={
            "uid": ["first"] * 4 + ["second"] * 4,
            "data_source": ["code"] * len(RESPONSES),
            "reward_model": [{"ground_truth": json.dumps(TESTS)} for _ in RESPONSES],
            "extra_info": [{} for _ in RESPONSES],
        },
    )
