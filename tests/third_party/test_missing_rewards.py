"""What trainers train on where a sample has no reward: the rows of docs/trainers/failures.md.

If a row of a new version differs, so do the page and `NAN_WOULD` of the adapters. TRL is in
tests/training, verl in tests/adapters.
"""

import json
import math
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from .peers import SOURCES
from .trainers import CONFIGS, PEERS, absent, bare, in_process, needs_clients, run

pytestmark = [needs_clients, pytest.mark.slow]

#: What becomes of a missing reward, by trainer and by what computes advantages there.
EXPECTED = json.loads((CONFIGS / "missing_rewards.json").read_text())

#: Two groups of four; the third sample of the first has no reward.
REWARDS = [1.0, 0.0, math.nan, 1.0, 0.5, 1.0, 0.0, 0.25]


def effect(advantages_of: Callable[..., list[float]], *given: Any) -> str:
    """Return which samples have no advantage, or as what the missing reward counts."""
    found = advantages_of(REWARDS, *given)
    lost = [at for at, each in enumerate(found) if math.isnan(each)]
    if lost:
        return {1: "sample", 4: "group", 8: "batch"}[len(lost)]
    zero = advantages_of([0.0 if math.isnan(each) else each for each in REWARDS], *given)
    return "as 0" if found == zero else "others"


@in_process
def ms_swift() -> dict[str, str]:
    absent("modelscope", "modelscope_hub", "json_repair", "dacite")  # hubs, and formats of tools
    import torch
    from swift.rl_core import advantage

    def advantages(rewards: list[float], *options: str) -> list[float]:
        given = (torch.tensor(rewards)[:, None], torch.ones(1), 4, *options)
        return advantage.compute_advantages(*given)[0].tolist()

    def dynamic(rewards: list[float], estimator: str) -> list[float]:
        given = (torch.tensor(rewards)[:, None], torch.ones(1), [*"aaaabbbb"], [*"01234567"])
        return advantage.compute_advantages_dynamic(*given, estimator)[0].tolist()

    found = {}
    for each in ("grpo", "rloo", "reinforce_plus_plus"):
        for scale in ("group", "batch", "none", "gdpo"):
            found[f"{each}, {scale}"] = effect(advantages, each, scale)
        found[f"{each}, dynamic"] = effect(dynamic, each)
    return found


@in_process
def openrlhf() -> dict[str, str]:
    absent("vllm", "deepspeed", "flash_attn", "peft", "loralib", "bitsandbytes", "optimum")
    import torch
    from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

    def advantages(rewards: list[float], estimator: str) -> list[float]:
        maker = object.__new__(RemoteExperienceMaker)
        settings = {"estimator": estimator, "gamma": 1.0, "lambd": 1.0, "no_std_norm": False}
        reward = dict.fromkeys(("clip_range", "overlong_buffer_len", "stop_properly_penalty_coef"))
        args = SimpleNamespace(
            algo=SimpleNamespace(advantage=SimpleNamespace(**settings)),
            rollout=SimpleNamespace(n_samples_per_prompt=4),
            reward=SimpleNamespace(**reward),
        )
        maker.strategy, maker.advantage_estimator = SimpleNamespace(args=args), estimator
        maker.kl_ctl = SimpleNamespace(value=0.0)
        experience = SimpleNamespace(
            index=[*range(8)], rewards=torch.tensor(rewards), kl=torch.zeros(8, 1), info={},
            values=torch.zeros(8, 1), action_mask=torch.ones(8, 1).bool(),
        )  # fmt: skip
        (made,) = maker.compute_advantages_and_returns([experience])
        return made.advantages[:, 0].tolist()

    names = "gae reinforce rloo reinforce_baseline group_norm dr_grpo flash_reinforce"
    return {each: effect(advantages, each) for each in names.split()}


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return 1.0


@in_process
async def areal() -> dict[str, str]:
    absent("aiofiles", "blinker", "einops", "flask", "jiter", "lark", "numba")
    import asyncio

    import torch
    from areal.api.cli_args import NormConfig
    from areal.api.reward_api import AsyncRewardWrapper
    from areal.utils.data import Normalization

    def advantages(rewards: list[float], mean: str, std: str) -> list[float]:
        norm = Normalization(NormConfig(mean_level=mean, std_level=std, group_size=4))
        return norm(torch.tensor(rewards)).tolist()

    levels = [("group", "group"), ("batch", "batch"), ("group", None), (None, None)]
    found = {f"{mean}, {std}": effect(advantages, mean, std) for mean, std in levels}
    waits = AsyncRewardWrapper(nap, timeout_seconds=1.5, max_workers=1)
    rewards = await asyncio.gather(*(waits(1.0) for _ in range(4)))
    return found | {"four functions of 1 s under 1.5 s": "as 0" if 0 in rewards else "right"}


@in_process
async def verifiers() -> dict[str, str]:
    """What prime-rl reads of traces that it keeps, and whether it drops them for their errors."""
    absent("anthropic", "connectrpc", "docstring_parser", "jiter", "math_verify", "prime_sandboxes")
    absent("pyqwest", "tomli_w")
    import verifiers.v1 as vf
    from verifiers.v1.graph import MessageNode
    from verifiers.v1.trace import AgentInfo, TraceTask

    class Data(vf.TaskData):
        pass

    class Task(vf.Task[Data, vf.State]):
        @vf.reward(weight=1.0)
        async def first(self, trace) -> float:
            return 0.5

        @vf.reward(weight=1.0)
        async def second(self, trace) -> float:
            if missing == "exception":
                raise ValueError
            return missing

    found = {}
    for missing in (math.nan, None, "exception"):
        task = Task(Data())
        reply = MessageNode(message=vf.AssistantMessage(content="x"), sampled=True)
        seed = TraceTask(type="Task", data=task.data)
        trace = vf.Trace(task=seed, agent=AgentInfo(config=vf.AgentConfig()), nodes=[reply])
        try:
            await task.score(trace)
        except vf.TaskError as error:
            trace.record_error(error)
        found[str(missing)] = f"{trace.reward}, {len(trace.errors)} errors"
    return found


def nemo_rl() -> dict[str, str]:
    bare("pynvml")
    bare("nemo_rl.utils.logger", Logger=object)
    import torch
    from nemo_rl.algorithms.advantage_estimator import GRPOAdvantageEstimator

    def advantages(rewards: list[float], leave_one_out: bool) -> list[float]:
        options = SimpleNamespace(use_leave_one_out_baseline=leave_one_out, normalize_rewards=True)
        estimator = GRPOAdvantageEstimator(options, SimpleNamespace())
        prompts = torch.tensor([[0]] * 4 + [[1]] * 4)
        given = (prompts, torch.tensor(rewards), torch.ones(8, 1))
        return estimator.compute_advantage(*given)[:, 0].tolist()

    return {f"leave one out: {each}": effect(advantages, each) for each in (True, False)}


def rllm() -> dict[str, str]:
    absent("litellm", "tinker", "openai", "hydra", "fastapi")
    import numpy as np
    from rllm.trainer.algorithms import advantage

    config = SimpleNamespace(norm_adv_by_std_in_grpo=True)

    def advantages(rewards: list[float], function: Any) -> list[float]:
        groups = [np.array(rewards[:4]), np.array(rewards[4:])]
        return np.concatenate(function(groups, config)[0]).tolist()

    return {
        name.value: effect(advantages, function)
        for name, function in advantage.RLLM_ADV_ESTIMATOR_REGISTRY.items()
    }


def roll() -> dict[str, str]:
    absent("codetiming", "deepspeed", "megatron", "vllm", "more_itertools", "trl", "peft")
    absent("loralib", "opentelemetry")
    import torch
    from roll.utils.functionals import reward_norm

    def normalized(rewards: list[float], *levels: str) -> list[float]:
        return reward_norm(torch.tensor(rewards), 4, {}, *levels).flatten().tolist()

    levels = [("group", "group"), ("batch", "batch"), ("group", None), (None, None)]
    return {f"{mean}, {std}": effect(normalized, mean, std) for mean, std in levels}


def slime() -> dict[str, str]:
    absent("megatron", "mooncake", "pylatexenc", "ring_flash_attn", "sgl_kernel", "sglang")
    absent("blobfile", "pybase64", "sglang_router", "tensorboard", "torch_memory_saver", "wandb")
    from slime.ray.rollout import RolloutManager

    def advantages(rewards: list[float], estimator: str) -> list[float]:
        args = {"advantage_estimator": estimator, "rewards_normalization": True}
        args |= {"grpo_std_normalization": True, "n_samples_per_prompt": 4, "rollout_batch_size": 2}
        args = SimpleNamespace(**args)
        manager = SimpleNamespace(args=args, custom_reward_post_process_func=None)
        samples = [SimpleNamespace(get_reward_value=lambda _, each=each: each) for each in rewards]
        kind = RolloutManager.__ray_metadata__.modified_class
        return kind._post_process_rewards(manager, samples)[1]

    names = ("grpo", "reinforce_plus_plus_baseline")
    return {each: effect(advantages, each) for each in names}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_missing_reward(name: str):
    trainer, source = globals()[name], PEERS / name
    if name not in SOURCES:
        found = trainer()
    elif source.exists():
        found = run(
            trainer, [], source, *(source / each for each in SOURCES[name].get("paths", []))
        )
    else:
        pytest.skip("needs a source: `make install-peers`")
    assert found == EXPECTED[name]
