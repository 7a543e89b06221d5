"""CTRL's `RayPPOTrainer.fit`, at the commit in sources.toml, with the changes of its page."""

import json
import math
import tempfile
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from rewardfleet import RewardFleet, RewardFleetError
from rewardfleet.adapters import verl_advantages
from rewardfleet.adapters.ctrl import RewardModelForCritic

from ..programs import CASES, FENCED, HALF
from .peers import TIMEOUT, Peer, recorded
from .trainers import byte_tokenizer, counted

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("closes")]


def reward_fn(url: str, on_failure: Any = "raise") -> Any:
    """Return the `reward_fn` of CTRL's page, and the advantages of its page, of one problem."""
    row = {"id": "7", "problem": "Add.", "solution": HALF, "prompter_type": "code_contests"}
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write(json.dumps({**row, "selected_uts": CASES}))
        file.flush()
        fleet = RewardFleet(code=url, on_failure=on_failure, **TIMEOUT)
        fn = RewardModelForCritic(file.name, byte_tokenizer(), fleet=fleet)
    fn.grpo = verl_advantages.grpo
    return fn


ADAPTERS = {
    "ctrl": lambda url, _: reward_fn(url),
    "ctrl, down": lambda _, down_url: reward_fn(down_url),
    "ctrl, down, NaN": lambda _, down_url: reward_fn(down_url, math.nan),
}


@recorded("ctrl", ADAPTERS)
def ctrl(peer: Peer) -> dict[str, Any]:
    """A step of `RayPPOTrainer.fit`, with GRPO's advantages of the page; workers are a stand-in."""
    import torch
    from ctrl.rl import critic_ray_trainer
    from omegaconf import OmegaConf
    from verl import DataProto
    from verl.utils import tracking

    tracking.Tracking = Mock()
    tokenizer = byte_tokenizer()
    incorrect = "Overall judgment: Incorrect"
    critiques = [f"right. {incorrect}", f"half. {incorrect}", "right, no judgment", ""]

    def padded(texts: list[str]) -> Any:
        given = tokenizer(texts, padding=True, add_special_tokens=False, return_tensors="pt")
        return given["input_ids"]

    class Workers:
        world_size = 1

        def generate_sequences(self, prompts: Any) -> Any:
            responses = padded(critiques)
            mask = (responses != tokenizer.pad_token_id).long()
            first = prompts.batch["input_ids"].repeat_interleave(len(critiques), dim=0)
            batch = {"prompts": first, "responses": responses}
            batch["attention_mask"] = torch.cat([torch.ones_like(first), mask], dim=1)
            return DataProto.from_single_dict(batch)

        def generate_sequences_ref(self, prompts: Any) -> Any:
            texts = tokenizer.batch_decode(prompts.batch["input_ids"], skip_special_tokens=True)
            answers = [FENCED if "right" in each else HALF for each in texts]
            return DataProto.from_single_dict({"responses": padded(answers)})

        def compute_log_prob(self, batch: Any, name: str = "old_log_probs") -> Any:
            return DataProto.from_single_dict({name: torch.zeros(batch.batch["responses"].shape)})

        def compute_ref_log_prob(self, batch: Any) -> Any:
            return self.compute_log_prob(batch, "ref_log_prob")

        def update_actor(self, batch: Any) -> Any:
            self.batch = batch.batch
            return DataProto(meta_info={"metrics": {}})

    def step(name: str) -> dict[str, Any]:
        fn = peer.adapter(name)

        # As the page says; the estimator gets its arguments by these names.
        def advantages(token_level_rewards: Any, eos_mask: Any, index: Any) -> Any:
            return fn.grpo(token_level_rewards, eos_mask, index)

        critic_ray_trainer.core_algos.compute_grpo_outcome_advantage = advantages
        critic_ray_trainer.uuid = counted()
        trainer = object.__new__(critic_ray_trainer.RayPPOTrainer)
        trainer.tokenizer, trainer.reward_fn, trainer.val_reward_fn = tokenizer, fn, None
        trainer.actor_rollout_wg, trainer.total_training_steps = Workers(), 2
        trainer.use_critic = trainer.use_rm = False
        trainer.config = OmegaConf.create(
            """
            trainer: {total_epochs: 1, critic_warmup: 0, save_freq: -1, test_freq: -1,
                      project_name: p, experiment_name: e, logger: null}
            data: {}
            algorithm: {adv_estimator: grpo, gamma: 1.0, lam: 1.0}
            actor_rollout_ref: {actor: {use_kl_loss: true}, rollout: {n: 4}}
            """
        )
        prompt = torch.ones(1, 2, dtype=torch.long)
        ids = np.array(["7"], dtype=object)
        names = ("input_ids", "attention_mask", "position_ids")
        trainer.train_dataloader = [{**dict.fromkeys(names, prompt), "problem_id": ids}]
        trainer.fit()
        found = trainer.actor_rollout_wg.batch
        return {
            "rewards": found["token_level_scores"].sum(-1).tolist(),
            "advantages": found["advantages"][:, 0].tolist(),
        }

    found = {"up": step("ctrl"), "down, NaN": step("ctrl, down, NaN")["advantages"]}
    try:
        found["down"] = step("ctrl, down")
    except RewardFleetError:
        found["down"] = "raised"
    return found


async def test_critiques_get_the_pass_rates_of_revisions_and_a_missing_reward_no_advantage(
    code_url: str, dead_url: str
):
    pytest.importorskip("torch")
    found = await ctrl(code_url, dead_url)
    # The last critique is empty: no token of it has an advantage.
    assert found["up"]["rewards"] == [1.0, 0.5, 0.0, 0.0]
    assert found["up"]["advantages"] == pytest.approx([1.3056, 0.2611, -0.7833, 0.0], abs=1e-3)
    assert found["down, NaN"] == [0.0] * 4
    assert found["down"] == "raised"
