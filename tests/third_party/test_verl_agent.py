"""verl-agent's loop of episodes and its advantages, at the commit in sources.toml."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rewardfleet.adapters.verl_agent import EpisodeRewardManager, filter_group_data

from .peers import Peer, recorded
from .trainers import bare, byte_tokenizer, counted

pytestmark = pytest.mark.slow


def adapter(*_: str) -> Any:
    from omegaconf import OmegaConf

    def filtered(*, config: Any, **given: Any) -> Any:
        return filter_group_data(**given, config=OmegaConf.create(config))  # it is recorded as JSON

    grouped = EpisodeRewardManager(None, 0, normalization_type="group_mean")
    plain = EpisodeRewardManager(None, 0)
    return SimpleNamespace(filter_group_data=filtered, plain=plain, grouped=grouped)


@recorded("verl_agent", {"verl_agent": adapter})
def verl_agent(peer: Peer) -> dict[str, Any]:
    """`multi_turn_loop`, `compute_reward` and GRPO's advantages, of episodes of one step.

    One episode of each of two groups has no reward; the second group's others are equal.
    """
    bare("agent_system.environments", EnvironmentManagerBase=object)  # it imports simulators
    bare("verl.workers.rollout.async_server", AsyncLLMServerManager=object)  # it imports openai
    import torch
    from agent_system.multi_turn_rollout import rollout_loop
    from omegaconf import OmegaConf
    from verl import DataProto
    from verl.trainer.ppo import ray_trainer

    tokenizer = byte_tokenizer()
    recorder = peer.adapter("verl_agent")
    rollout_loop.filter_group_data = recorder.filter_group_data
    rollout_loop.uuid = counted()
    outcomes = np.array([1.0, 0.0, np.nan, 1.0, 1.0, np.nan])

    class Workers:
        world_size = 1

        def generate_sequences(self, prompts: Any) -> Any:
            batch = dict(prompts.batch.items())
            batch["prompts"] = batch["input_ids"]
            batch["responses"] = torch.full((len(prompts), 3), tokenizer.eos_token_id)
            mask = torch.tensor([[1, 1, 0]] * len(prompts))
            batch["attention_mask"] = torch.cat([batch["attention_mask"], mask], dim=1)
            return DataProto.from_single_dict(batch)

    class Environments:
        def reset(self, kwargs: Any) -> Any:
            return {"text": ["Go."] * 6, "image": None, "anchor": None}, [{}] * 6

        def step(self, actions: list[str]) -> Any:
            return self.reset(None)[0], outcomes, np.ones(6, bool), [{}] * 6

        def success_evaluator(self, episode_rewards: Any, **_: Any) -> Any:
            return {"success_rate": episode_rewards}

    def step(manager: str, is_filtered: bool) -> dict[str, Any]:
        config = OmegaConf.create(
            {
                "data": {"train_batch_size": 2, "max_prompt_length": 10, "truncation": "error"},
                "env": {"rollout": {"n": 3}, "max_steps": 1},
                "algorithm": {"filter_groups": {"enable": is_filtered, "max_num_gen_batches": 1}},
            }
        )
        texts = {"raw_prompt": np.array([None] * 2), "data_source": np.array(["a"] * 2)}
        ids = torch.ones(2, 1, dtype=torch.long)
        prompts = DataProto.from_single_dict({"input_ids": ids, **texts})
        collector = rollout_loop.TrajectoryCollector(config, tokenizer)
        batch = collector.multi_turn_loop(prompts, Workers(), Environments())
        rewards, extra = ray_trainer.compute_reward(batch, getattr(recorder, manager))
        batch.batch["token_level_rewards"] = rewards
        estimator = ray_trainer.AdvantageEstimator.GRPO
        batch = ray_trainer.compute_advantage(batch, estimator, norm_adv_by_std_in_grpo=False)
        advantages = batch.batch["advantages"][:, 0].tolist()
        return {"rewards": rewards.tolist(), "advantages": advantages, **extra}

    return {"filtered": step("plain", True), "within groups": step("grouped", False)}


async def test_a_missing_reward_is_dropped_by_the_filter_or_has_no_advantage():
    pytest.importorskip("torch")
    found = await verl_agent()
    filtered, within_groups = found["filtered"], found["within groups"]
    # The reward is at the second of two tokens. Groups: 1, 0, missing; 1, 1, missing.
    assert filtered["rewards"] == [[0, 1, 0], [0, 0, 0], [0, 1, 0], [0, 1, 0]]
    assert filtered["advantages"] == [0.5, -0.5, 0, 0]
    assert within_groups["advantages"] == [0.5, -0.5, 0, 0, 0, 0]
    assert within_groups["reward_valid"] == [True, True, False, True, True, False]
