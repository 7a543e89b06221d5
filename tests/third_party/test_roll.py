"""ROLL's clusters of reward workers, on Ray, and its rollouts, at the commit in sources.toml."""

import asyncio
import itertools
import sys
from collections import defaultdict
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rewardfleet.adapters import roll

from ..programs import TESTS, TEXTS
from . import trainers
from .peers import TIMEOUT, Peer, recorded
from .trainers import absent, byte_tokenizer, counted, error_of

pytest.importorskip("torch")
from ..adapters.test_roll import CONFIG, installed  # noqa: F401 - a fixture, which needs it

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROMPT = 8
LONGEST = PROMPT + 1 + max(map(len, TEXTS))

ADAPTERS = {
    "roll": lambda url, _: roll.reward_worker("code", url)(CONFIG),
    "roll, down": lambda _, down_url: roll.reward_worker("code", down_url, **TIMEOUT)(CONFIG),
}


def without_libraries() -> None:
    """Let ROLL be imported without what sends traces, loads models and divides lists."""
    absent("more_itertools", "modelscope", "opentelemetry")


def scheduler_of(worker: Any, row: dict[str, object], texts: list[str]) -> Any:
    """Return what a rollout asks of the scheduler; the policy writes these texts."""
    import numpy as np
    import torch
    from roll.distributed.scheduler.protocol import DataProto
    from roll.utils.metrics.metrics_manager import DurationTracker

    tokenizer = byte_tokenizer()

    def collect(rows: list[dict[str, object]]) -> dict[str, object]:
        ones = torch.ones(1, PROMPT, dtype=torch.long)
        tensors = {"input_ids": ones, "attention_mask": ones, "position_ids": ones.cumsum(1) - 1}
        (row,) = rows
        columns = {name: np.array([each], dtype=object) for name, each in row.items()}
        return {**tensors, **columns}

    async def generate(req, request_id: object, uid: int) -> DataProto:
        found = {"output_token_ids": [tokenizer.encode(each) for each in texts]}
        ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
        return DataProto(meta_info={"finish_reasons": ["stop"] * len(texts), **found, **ids})

    class Buffer(dict):
        async def begin(self, prompt_id: int) -> int:
            return 0

        def commit(self, prompt_id: int, items: list) -> None:
            self[prompt_id] = [each.data for each in items]

        def abort(self, prompt_id: int) -> None:
            self[prompt_id] = None

    everything = SimpleNamespace(query_filter_config=SimpleNamespace(type="no_filter"))
    pipeline = {"prompt_length": PROMPT, "is_num_return_sequences_expand": False}
    return SimpleNamespace(
        meta_info={"generation_config": {"num_return_sequences": len(texts)}},
        pipeline_config=SimpleNamespace(**pipeline, rewards={"code": everything}),
        sequence_length=LONGEST,
        is_val=False,
        udrl=roll.RolloutLoop(),
        running_tasks={},
        replay_buffer=Buffer(),
        get_data_item_kwargs={},
        get_next_dataset_item=lambda: {"domain": "code", **row},
        collect_fn=collect,
        next_request_id=lambda: 0,
        generate_timer=defaultdict(DurationTracker),
        reward_timer=defaultdict(DurationTracker),
        reward_worker_iters={"code": itertools.repeat(worker)},
        router_client=SimpleNamespace(generate_request=generate),
    )


@recorded("roll", ADAPTERS)
def rolled_out(peer: Peer) -> dict[str, object]:
    """Return what becomes of prompts in clusters of workers."""
    without_libraries()
    import ray
    from ray import cloudpickle
    from roll.configs.model_args import ModelArguments
    from roll.configs.worker_config import WorkerConfig
    from roll.distributed.executor.cluster import Cluster
    from roll.distributed.scheduler import generate_scheduler
    from roll.distributed.scheduler.resource_manager import ResourceManager
    from roll.distributed.scheduler.storage import SharedStorage
    from roll.utils.constants import RAY_NAMESPACE, STORAGE_NAME

    byte_tokenizer().save_pretrained("tokenizer")
    generate_scheduler.uuid = counted()
    for module in (trainers, sys.modules[__name__]):
        cloudpickle.register_pickle_by_value(module)
    setup = {"worker_process_setup_hook": without_libraries}
    ray.init("local", num_cpus=2, include_dashboard=False, runtime_env=setup)
    # Before the resource manager takes the processors, as ROLL does.
    storage = SharedStorage.options(name=STORAGE_NAME, namespace=RAY_NAMESPACE).remote()
    resources = ResourceManager(num_gpus_per_node=0, num_nodes=1)
    sys.modules["my_rewards"] = ModuleType("my_rewards")

    def worker(name: str, url: str) -> Any:
        sys.modules["my_rewards"].CodeReward = roll.reward_worker("code", url, **TIMEOUT)
        model = ModelArguments(model_name_or_path="tokenizer")
        config = WorkerConfig(model_args=model, world_size=1)
        (actor,) = Cluster(name, "my_rewards.CodeReward", resources, config).workers
        return peer.remote(name, actor, "compute_rewards")

    def prompt(worker: Any, row: dict[str, object], texts: list[str]) -> object:
        scheduler = scheduler_of(worker, row, texts)
        try:
            asyncio.run(generate_scheduler.RolloutContext.process_new_prompt(scheduler, 7))
        except (Exception, asyncio.CancelledError) as error:
            assert scheduler.replay_buffer == {7: None}
            return error_of(getattr(error, "cause", error))  # without the traceback of Ray
        samples = scheduler.replay_buffer[7]
        return [each.batch["response_level_rewards"].item() for each in samples]

    up = worker("roll", peer.direct_url)
    found = {
        "rewards": prompt(up, {"tests": TESTS}, [*TEXTS]),
        "invalid": prompt(up, {"other": TESTS}, [""]),
        "down": prompt(worker("roll, down", peer.down_url), {"tests": TESTS}, [""]),
    }
    del storage
    ray.shutdown()
    return found


@pytest.mark.usefixtures("installed")
async def test_prompts_get_their_rewards_and_one_without_a_reward_is_dropped(
    code_url: str, dead_url: str
):
    found = await rolled_out(code_url, dead_url)
    assert found["rewards"] == [*TEXTS.values()]
    assert found["invalid"].startswith("InvalidRequest: the dataset has no column 'tests'")
    assert found["down"] == "CancelledError: "  # ROLL draws another prompt
