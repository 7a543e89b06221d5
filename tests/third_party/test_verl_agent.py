"""verl-agent's `main_ppo.py`, loop and advantages, at the commit in sources.toml."""

import json
import random
import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from rewardfleet.adapters.verl_agent import EpisodeRewardManager, filter_group_data

from .peers import Peer, recorded
from .trainers import CONFIGS, HERE, bare, byte_tokenizer, counted, edited

pytestmark = pytest.mark.slow


def adapter(*_: str) -> Any:
    from omegaconf import OmegaConf

    def filtered(*, config: Any, **given: Any) -> Any:
        return filter_group_data(**given, config=OmegaConf.create(config))  # it is recorded as JSON

    grouped = EpisodeRewardManager(None, 0, normalization_type="group_mean")
    plain = EpisodeRewardManager(None, 0)
    return SimpleNamespace(filter_group_data=filtered, plain=plain, grouped=grouped)


_MANAGER = "tokenizer=tokenizer, num_examine={}, normalize_by_length=False"
_IMPORT = "from rewardfleet.adapters.verl_agent import"
_ENVIRONMENTS = "from agent_system.environments import EnvironmentManagerBase\n"
#: The edits of the page in `main_ppo.py` and `rollout_loop.py`.
ENTRY = {
    f"        reward_fn = reward_manager_cls({_MANAGER.format(0)})": f"""\
        {_IMPORT} EpisodeRewardManager, reward_manager_of
        reward_fn = reward_manager_of(config)({_MANAGER.format(0)})""",
    f"reward_manager_cls({_MANAGER.format(1)})": "EpisodeRewardManager(tokenizer, num_examine=1)",
}
LOOP = {_ENVIRONMENTS: f"{_IMPORT} filter_group_data\n{_ENVIRONMENTS}"}
#: Returns of the episodes of two groups, in rounds of sampling.
RETURNS = [[1.0, 1, 1, 0, 0, 0], [10.0, 10, 10, 1, 0, 0.25], [1.0, 1, 1, 0, 0, 0]]


class Workers:
    """Stands in for the model."""

    world_size = 1

    def generate_sequences(self, prompts: Any) -> Any:
        import torch
        from verl import DataProto

        batch = dict(prompts.batch.items())
        batch["prompts"] = batch["input_ids"]
        batch["responses"] = torch.full((len(prompts), 3), byte_tokenizer().eos_token_id)
        mask = torch.tensor([[1, 1, 0]] * len(prompts))
        batch["attention_mask"] = torch.cat([batch["attention_mask"], mask], dim=1)
        return DataProto.from_single_dict(batch)


class Environments:
    """Episodes of one step, with given returns, and the success rate of one task."""

    def __init__(self, rounds: list[Any]) -> None:
        self._rounds = iter(rounds)

    def reset(self, kwargs: Any) -> Any:
        return {"text": ["Go."] * 6, "image": None, "anchor": None}, [{}] * 6

    def step(self, actions: list[str]) -> Any:
        return self.reset(None)[0], np.array(next(self._rounds)), np.ones(6, bool), [{}] * 6

    def success_evaluator(self, episode_rewards: Any, **_: Any) -> Any:
        return {"success_rate": episode_rewards, "of_one_task": episode_rewards[:1]}


def config_of(tries: int, *, is_filtered: bool = True) -> Any:
    from omegaconf import OmegaConf

    config = OmegaConf.load(CONFIGS / "verl_agent.yaml")
    filters = {"enable": is_filtered, "max_num_gen_batches": tries}
    return OmegaConf.merge(config, {"algorithm": {"filter_groups": filters}})


def step(collector: Any, environments: Any, reward_fn: Any) -> tuple[Any, dict[str, Any]]:
    """Return a batch with the advantages of GRPO, and what else the reward manager returns."""
    import torch
    from verl import DataProto
    from verl.trainer.ppo import ray_trainer

    texts = {"raw_prompt": np.array([None] * 2), "data_source": np.array(["a"] * 2)}
    ids = torch.ones(2, 1, dtype=torch.long)
    prompts = DataProto.from_single_dict({"input_ids": ids, **texts})
    batch = collector.multi_turn_loop(prompts, Workers(), environments)
    rewards, extra = ray_trainer.compute_reward(batch, reward_fn)
    batch.batch["token_level_rewards"] = rewards
    estimator = ray_trainer.AdvantageEstimator.GRPO
    batch = ray_trainer.compute_advantage(batch, estimator, norm_adv_by_std_in_grpo=False)
    return batch, extra


def entry(is_edited: bool, tries: int) -> dict[str, Any]:
    """Run `main_ppo.py` with stand-ins for models and environments."""
    import verl.utils
    from agent_system import multi_turn_rollout

    names = ("ActorRolloutRefWorker", "AsyncActorRolloutRefWorker", "CriticWorker")
    bare("verl.workers.fsdp_workers", **{name: type(name, (), {}) for name in names})  # needs GPUs
    sys.modules["agent_system.environments"].make_envs = lambda _: (Environments(RETURNS), None)
    verl.utils.hf_tokenizer = lambda *_, **__: byte_tokenizer()
    verl.utils.hf_processor = lambda *_, **__: None
    name = "agent_system.multi_turn_rollout.rollout_loop"
    loop = edited(name, LOOP if is_edited else {})
    loop.uuid = counted()
    multi_turn_rollout.TrajectoryCollector = loop.TrajectoryCollector
    main_ppo = edited("verl.trainer.main_ppo", ENTRY if is_edited else {})
    main_ppo.create_rl_dataset = main_ppo.create_rl_sampler = Mock()
    found: dict[str, Any] = {}

    class Trainer:
        def __init__(self, *, reward_fn: Any, traj_collector: Any, envs: Any, **_: Any) -> None:
            self.given = (traj_collector, envs, reward_fn)

        def init_workers(self) -> None:
            pass

        def fit(self) -> None:
            batch, _ = step(*self.given)
            rates = {"success_rate", "of_one_task"} & set(batch.non_tensor_batch)
            found["rewards"] = batch.batch["token_level_rewards"].tolist()
            found["advantages"] = batch.batch["advantages"].tolist()
            columns = batch.non_tensor_batch
            found["rates"] = {name: [*map(float, columns[name])] for name in sorted(rates)}

    main_ppo.RayPPOTrainer = Trainer
    runner = main_ppo.TaskRunner.__ray_metadata__.modified_class
    runner.run(None, config_of(tries))
    return found


def filters() -> dict[str, int]:
    """Compare the filter with that of verl-agent, on random groups."""
    from agent_system.multi_turn_rollout import utils

    rng, found = random.Random(0), {"batches": 0, "other": 0}
    for _ in range(500):
        rewards = np.array([rng.choice([0.0, 0.5, 1.0]) for _ in range(6)])
        for last_try in (False, True):
            given = dict.fromkeys(("episode_lengths", "traj_uid", "tool_callings"), np.arange(6))
            given |= {"episode_rewards": rewards, "config": config_of(1), "last_try": last_try}
            given["batch_list"] = [[{"uid": index // 3}] for index in range(6)]
            given["success"] = {"success_rate": rewards, "of_one_task": rewards[:1]}
            both = [each(**given) for each in (utils.filter_group_data, filter_group_data)]
            rates = [{name: v.tolist() for name, v in each[3].items()} for each in both]
            others = [str([*each[:3], *each[4:]]) for each in both]
            found["batches"] += 1
            found["other"] += rates[0] != rates[1] or others[0] != others[1]
    return found


@recorded("verl_agent", {"verl_agent": adapter})
def verl_agent(peer: Peer) -> dict[str, Any]:
    """Steps with GRPO's advantages, of episodes of one step: by the entry, and with failures.

    One episode of each of two groups has no reward; the second group's others are equal.
    """
    bare("agent_system.environments", EnvironmentManagerBase=object)  # it imports simulators
    bare("verl.workers.rollout.async_server", AsyncLLMServerManager=object)  # it imports openai
    from agent_system.multi_turn_rollout import rollout_loop

    recorder = peer.adapter("verl_agent")
    original = rollout_loop.filter_group_data
    rollout_loop.filter_group_data = recorder.filter_group_data
    rollout_loop.uuid = counted()
    outcomes = [1.0, 0.0, np.nan, 1.0, 1.0, np.nan]

    def failing(manager: str, is_filtered: bool) -> dict[str, Any]:
        config = config_of(1, is_filtered=is_filtered)
        collector = rollout_loop.TrajectoryCollector(config, byte_tokenizer())
        batch, extra = step(collector, Environments([outcomes]), getattr(recorder, manager))
        rewards = batch.batch["token_level_rewards"].tolist()
        return {"rewards": rewards, "advantages": batch.batch["advantages"][:, 0].tolist(), **extra}

    found = {"filtered": failing("plain", True), "within groups": failing("grouped", False)}
    rollout_loop.filter_group_data = original
    for tries in (1, 2, 3):
        for name, is_edited in (("original", False), ("edited", True)):
            found[f"{name}, {tries}"] = entry(is_edited, tries)
    return found | {"filters": filters()}


async def test_the_edited_entry_is_like_the_original_and_a_missing_reward_has_no_advantage():
    pytest.importorskip("torch")
    found = await verl_agent()
    filtered, within_groups = found["filtered"], found["within groups"]
    # The reward is at the second of two tokens. Groups: 1, 0, missing; 1, 1, missing.
    assert filtered["rewards"] == [[0, 1, 0], [0, 0, 0], [0, 1, 0], [0, 1, 0]]
    assert filtered["advantages"] == [0.5, -0.5, 0, 0]
    assert within_groups["advantages"] == [0.5, -0.5, 0, 0, 0, 0]
    assert within_groups["reward_valid"] == [True, True, False, True, True, False]
    # The entry of the page gives what the original gives.
    assert found["filters"] == {"batches": 1000, "other": 0}
    for tries in (1, 2, 3):
        assert found[f"edited, {tries}"] == found[f"original, {tries}"]
    # On the last try, the rate of the task is kept: it is the first one only here.
    assert [set(found[f"original, {tries}"]["rates"]) for tries in (1, 2)] == [
        {"success_rate", "of_one_task"}, {"success_rate"}
    ]  # fmt: skip


def test_the_recorded_filter_of_the_original_is_repeated():
    """Without PyTorch, and without verl-agent: a round of sampling is the last one, or not."""
    took = json.loads((HERE / "recorded/verl_agent.json").read_text())["took"]
    for tries in (1, 2):
        kept: list[float] = []
        rates: dict[str, Any] = {}
        for number, returns in enumerate(RETURNS[:tries], 1):
            rewards, config = np.array(returns), SimpleNamespace(get=lambda _, default: default)
            steps = [[{"uid": f"{number} {index // 3}"}] for index in range(6)]
            success = {"success_rate": rewards, "of_one_task": rewards[:1]}
            given = (steps, rewards, np.ones(6), success, np.arange(6), np.arange(6))
            settings = SimpleNamespace(algorithm=SimpleNamespace(filter_groups=config))
            filtered = filter_group_data(*given, settings, last_try=number == tries)
            kept += filtered[1].tolist()
            rates = rates or filtered[3]
        original = took[f"original, {tries}"]
        assert kept == [sum(row) for row in original["rewards"]]
        assert set(rates) == set(original["rates"])
