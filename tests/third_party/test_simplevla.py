"""SimpleVLA-RL's `RayTrainer.fit`, at the commit in sources.toml, with the changes of its page."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from rewardfleet.adapters.simplevla import (
    RobRewardManager,
    forward_test_time_rl,
    keep_selected,
    sample_temperatures,
)

from .peers import Peer, recorded
from .trainers import byte_tokenizer, counted, edited

pytestmark = pytest.mark.slow

#: Settings of SimpleVLA-RL, with rewards times 5.
SETTINGS = """
test_time_rl: true
data: {task_suite_name: libero_spatial, train_batch_size: 1, n_samples: 4, filter_accuracy: true}
actor_rollout_ref: {model: {max_steps: 8, action_token_len: 7}}
algorithm: {adv_estimator: grpo}
verifier: {reward_coef: 5}
trainer: {total_epochs: 1}
"""


def reward_manager(*_: str) -> Any:
    from omegaconf import OmegaConf

    manager = RobRewardManager(0, OmegaConf.create(SETTINGS))
    manager.keep_selected = keep_selected
    return manager


@recorded("simplevla", {"simplevla": reward_manager})
def simplevla(peer: Peer) -> dict[str, Any]:
    """A step of `RayTrainer.fit`, with the changes of the page; workers are a stand-in.

    Of four rollouts, two succeed, one fails, and the environment of the last one has failed.
    """
    import torch
    from omegaconf import OmegaConf
    from verl import DataProto
    from verl.utils import tracking

    tracking.Tracking = Mock()
    adapter = peer.adapter("simplevla")
    forward = "forward_test_time_rl(self.config, gen_batch.meta_info, self.reward_fn);"
    keep = "batch = keep_selected(batch, multiple_of=self.actor_rollout_wg.world_size)"
    ray_trainer = edited(
        "verl.trainer.ppo.ray_trainer",
        {
            "gen_batch_output = self.actor": f"{forward} gen_batch_output = self.actor",
            "batch = valid_batch\n": f"batch = valid_batch; {keep}\n",
        },
        keep_selected=adapter.keep_selected,
        forward_test_time_rl=forward_test_time_rl,
    )
    ray_trainer.uuid = counted()

    class Workers:
        world_size = 2

        def generate_sequences(self, prompts: Any) -> Any:
            self.temperatures = sample_temperatures(prompts.meta_info, 4)
            batch = {
                "responses": torch.zeros(4, 1, 56, dtype=torch.long),
                "complete": torch.tensor([True, True, False, False]),
                "finish_step": torch.tensor([2, 8, 8, 0]),
            }
            return DataProto.from_single_dict(batch)

        def update_actor(self, batch: Any) -> Any:
            self.batch = batch.batch
            return DataProto(meta_info={"metrics": {}})

        def compute_entropy(self, data: Any) -> Any:
            return DataProto(meta_info={"metrics": {}})

    task = {name: torch.tensor([[0]]) for name in ("task_id", "trial_id")}
    task["task_suite_name"] = np.array(["libero_spatial"], dtype=object)
    loader = Mock(get_next_batch=Mock(side_effect=[task, StopIteration]))
    loader.buffer_size.return_value = 0
    trainer = object.__new__(ray_trainer.RayTrainer)
    config = OmegaConf.load(Path(ray_trainer.__file__).parents[1] / "config/ppo_trainer.yaml")
    trainer.config = OmegaConf.merge(config, OmegaConf.create(SETTINGS))
    trainer.tokenizer, trainer.train_dataloader = byte_tokenizer(), loader
    trainer.actor_rollout_wg, trainer.reward_fn, trainer.val_reward_fn = Workers(), adapter, None
    trainer.use_reference_policy = trainer.use_rm = trainer.use_critic = False
    trainer.kl_ctrl = Mock(value=0.0)
    trainer.fit()
    found = trainer.actor_rollout_wg.batch
    return {
        "temperatures": trainer.actor_rollout_wg.temperatures,
        "rewards": found["gt_scores"].sum(-1).tolist(),
        "advantages": found["advantages"][:, 0].tolist(),
    }


async def test_successes_get_their_efficiency_and_a_failed_environment_does_not_count():
    pytest.importorskip("torch")
    found = await simplevla()
    assert found["temperatures"] == [0.6, 0.7, 0.8, 0.9]
    # A success after 2 and after all 8 steps, a failure, and a row that fills up the batch.
    assert found["rewards"] == pytest.approx([0.8, 0.5, 0.0, 0.0])
    assert found["advantages"] == pytest.approx([0.9073, 0.1650, -1.0722, 0.0], abs=1e-3)
