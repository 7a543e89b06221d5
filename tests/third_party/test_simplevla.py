"""SimpleVLA-RL's `RayTrainer.fit`, at the commit in sources.toml, with the changes of its page."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import yaml

from rewardfleet.adapters.simplevla import RobRewardManager, keep_selected, sample_temperatures

from .peers import Peer, recorded
from .trainers import CONFIGS, bare, byte_tokenizer, counted, edited

pytestmark = pytest.mark.slow

_CONFIG = yaml.safe_load((CONFIGS / "simplevla.yaml").read_text())
SETTINGS, ENTRY_SETTINGS = _CONFIG["step"], _CONFIG["entry"]


def reward_manager(*_: str) -> Any:
    from omegaconf import OmegaConf

    manager = RobRewardManager(0, OmegaConf.create(SETTINGS))
    manager.keep_selected = keep_selected
    return manager


#: The edits of the page in `main_ppo.py` and `ray_trainer.py`, each before what it replaces.
ENTRY = {
    "import ray\nimport hydra\n": "from rewardfleet.adapters.simplevla import RobRewardManager\n"
    "import ray\nimport hydra\n",
}
_FORWARD = "forward_test_time_rl(self.config, gen_batch.meta_info, self.reward_fn)"
_KEEP = "batch = keep_selected(batch, multiple_of=self.actor_rollout_wg.world_size)"
TRAINER = {
    "import uuid\n": "import uuid\n"
    "from rewardfleet.adapters.simplevla import forward_test_time_rl, keep_selected\n",
    "gen_batch_output = self.actor": f"{_FORWARD}; gen_batch_output = self.actor",
    "batch = valid_batch\n": f"batch = valid_batch; {_KEEP}\n",
}
#: The lines of other files that the page names: these files need the models.
_MODEL = "verl/utils/vla_utils/openvla_oft/modeling_prismatic.py"
NAMED = [
    ("verl/workers/rollout/rob_rollout.py", "temperature = prompts.get('temperature'"),
    (_MODEL, "assert temperature>0"),
    (_MODEL, "scaled_logits = action_logits_last256 / temperature"),
]

#: Rollouts of one prompt, without a failed environment.
COMPLETE = [True, True, False, True, False, True, True, False]
STEPS = [100, 500, 512, 512, 7, 1, 250, 8]


def config_of(ray_trainer: Any, *settings: Any) -> Any:
    from omegaconf import OmegaConf

    yaml = Path(ray_trainer.__file__).parents[1] / "config/ppo_trainer.yaml"
    return OmegaConf.merge(OmegaConf.load(yaml), *map(OmegaConf.create, settings))


def entry(edits: dict[str, str], **settings: Any) -> dict[str, Any]:
    """Run `main_ppo.py` with stand-ins for models; return tokens with a reward, and metrics."""
    import verl.utils
    from verl.trainer.ppo import ray_trainer

    names = ("ActorRolloutRefWorker", "CriticWorker", "RobActorRolloutRefWorker")
    # It needs GPUs and simulators.
    bare("verl.workers.fsdp_workers", **{name: type(name, (), {}) for name in names})
    verl.utils.hf_tokenizer = lambda _: byte_tokenizer()
    if edits:
        ray_trainer = edited("verl.trainer.ppo.ray_trainer", TRAINER)
    main_ppo = edited("verl.trainer.main_ppo", edits)
    found: dict[str, Any] = {}

    class Trainer:
        def __init__(self, *, config: Any, reward_fn: Any, **_: Any) -> None:
            self.config, self.reward_fn = config, reward_fn

        def init_workers(self) -> None:
            pass

        def fit(self) -> None:
            batch, metrics = fit(ray_trainer, self.config, self.reward_fn, COMPLETE, STEPS)[1:]
            rewards = batch["token_level_scores"]
            at = rewards.nonzero().tolist()
            values = [rewards[row, token].item() for row, token in at]
            names = ("train_verify_score/", "train_reward/", "format_score/", "critic/rewards/")
            found["rewards"] = [[*each, value] for each, value in zip(at, values, strict=True)]
            kept = [each for each in metrics if each.startswith(names) and "/reward/" not in each]
            found["metrics"] = {name: float(metrics[name]) for name in kept}

    main_ppo.RayTrainer = Trainer
    main_ppo.main_task._function(config_of(ray_trainer, ENTRY_SETTINGS, settings))
    return found


def fit(
    ray_trainer: Any, config: Any, reward_fn: Any, complete: list[bool], steps: list[int]
) -> tuple[Any, Any, Any]:
    """Run a step of `RayTrainer.fit`; return temperatures, the batch to train on, and metrics."""
    import torch
    from verl import DataProto
    from verl.utils import tracking

    tracking.Tracking = Mock()
    ray_trainer.uuid = counted()
    count = len(complete)

    class Workers:
        world_size = 2

        def generate_sequences(self, prompts: Any) -> Any:
            self.temperatures = sample_temperatures(prompts.meta_info, count)
            batch = {"complete": torch.tensor(complete), "finish_step": torch.tensor(steps)}
            batch["responses"] = torch.zeros(count, -(-max(steps) // 8), 56, dtype=torch.long)
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
    trainer.config = config
    trainer.tokenizer, trainer.train_dataloader = byte_tokenizer(), loader
    trainer.actor_rollout_wg, trainer.reward_fn, trainer.val_reward_fn = Workers(), reward_fn, None
    trainer.use_reference_policy = trainer.use_rm = trainer.use_critic = False
    trainer.kl_ctrl = Mock(value=0.0)
    trainer.fit()
    [logged] = [each.kwargs["data"] for each in tracking.Tracking.return_value.log.call_args_list]
    workers = trainer.actor_rollout_wg
    return workers.temperatures, workers.batch, logged


@recorded("simplevla", {"simplevla": reward_manager})
def simplevla(peer: Peer) -> dict[str, Any]:
    """Steps of `RayTrainer.fit`: by the entry of SimpleVLA-RL, and with a failed environment."""
    adapter = peer.adapter("simplevla")
    ray_trainer = edited("verl.trainer.ppo.ray_trainer", TRAINER)
    ray_trainer.keep_selected = adapter.keep_selected
    # Of four rollouts, two succeed, one fails, and the environment of the last one has failed.
    rollouts = ([True, True, False, False], [2, 8, 8, 0])
    config = config_of(ray_trainer, SETTINGS)
    temperatures, batch, _ = fit(ray_trainer, config, adapter, *rollouts)
    efficiency = {"test_time_rl": True, "episode_reward": {"accuracy": "score"}}
    root = Path(ray_trainer.__file__).parents[3]
    return {
        "temperatures": temperatures,
        "rewards": batch["gt_scores"].sum(-1).tolist(),
        "advantages": batch["advantages"][:, 0].tolist(),
        "original": entry({}),
        "edited": entry(ENTRY),
        "edited, test-time RL": entry(ENTRY, **efficiency),
        "named lines are there": all(line in (root / file).read_text() for file, line in NAMED),
    }


async def test_successes_get_their_efficiency_and_a_failed_environment_does_not_count():
    pytest.importorskip("torch")
    found = await simplevla()
    assert found["temperatures"] == [0.6, 0.7, 0.8, 0.9]
    # A success after 2 and after all 8 steps, a failure, and a row that fills up the batch.
    assert found["rewards"] == pytest.approx([0.8, 0.5, 0.0, 0.0])
    assert found["advantages"] == pytest.approx([0.9073, 0.1650, -1.0722, 0.0], abs=1e-3)
    assert found["named lines are there"]
    # Without test-time RL, as the original.
    edited_entry = found["edited"]
    assert edited_entry["rewards"] == found["original"]["rewards"]
    assert edited_entry["metrics"] == found["original"]["metrics"]
    # With it, as the formula of the original integration, which divides by 500.
    successes = [(row, STEPS[row]) for row, complete in enumerate(COMPLETE) if complete]
    efficiencies = [[row, 7 * steps - 1, 5 / (1 + steps / 500)] for row, steps in successes]
    test_time = found["edited, test-time RL"]
    assert np.array(test_time["rewards"]) == pytest.approx(np.array(efficiencies))
    mean = sum(value for *_, value in efficiencies) / 5 / len(STEPS)
    assert test_time["metrics"]["train_verify_score/all"] == pytest.approx(mean)
