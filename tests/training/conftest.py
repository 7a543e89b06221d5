"""A real code service, one that is down, a local Ray, and verl's reward loop."""

from pathlib import Path
from typing import Any

import pytest

from ..adapters.conftest import closes, code_url, lost_url  # noqa: F401 - fixtures
from ..third_party.trainers import byte_tokenizer


@pytest.fixture
def local_ray():
    ray = pytest.importorskip("ray")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def reward_loop(folder: Path, workers: int, **reward_kwargs: str) -> Any:
    """Return the manager of verl's reward loop, by verl's own configuration."""
    from hydra import compose, initialize_config_module
    from verl.experimental.reward_loop import reward_loop

    byte_tokenizer().save_pretrained(folder / "tokenizer")
    function = "reward.custom_reward_function"
    overrides = [
        f"actor_rollout_ref.model.path={folder / 'tokenizer'}",
        "actor_rollout_ref.rollout.name=hf",
        f"reward.num_workers={workers}",
        f"{function}.path=pkg://rewardfleet.adapters.verl",
        f"{function}.name=compute_score_async",
        *(f"+{function}.reward_kwargs.{name}='{each}'" for name, each in reward_kwargs.items()),
    ]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides)
    return reward_loop.RewardLoopManager(reward_loop.migrate_legacy_reward_impl(config))
