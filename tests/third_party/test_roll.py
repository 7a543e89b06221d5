"""ROLL (commit 8eb27cc): its clusters of reward workers, on Ray, and its rollouts of prompts."""

import asyncio
import itertools
import os
import sys
from collections import defaultdict
from types import ModuleType, SimpleNamespace

import pytest

from rewardfleet.adapters.roll import reward_worker

from ..programs import TESTS, TEXTS
from . import trainers
from .trainers import PEERS, absent, error_of, in_process, needs_peer

pytestmark = [needs_peer("roll"), trainers.needs_clients, pytest.mark.slow]

PROMPT = 8
LONGEST = PROMPT + 1 + max(map(len, TEXTS))


def prepare() -> None:
    """Let this process import ROLL, without what sends traces, loads models and divides lists."""
    sys.path.insert(0, str(PEERS / "roll"))
    absent("more_itertools", "modelscope", "opentelemetry")


def scheduler_of(workers: list, row: dict[str, object], tokenizer, texts: list[str]):
    """Return what a rollout asks of the scheduler; the policy writes these texts."""
    import numpy as np
    import torch
    from roll.distributed.scheduler.protocol import DataProto
    from roll.utils.metrics.metrics_manager import DurationTracker

    from rewardfleet.adapters.roll import RolloutLoop

    def collect(rows: list[dict[str, object]]) -> dict[str, object]:
        ones = torch.ones(1, PROMPT, dtype=torch.long)
        tensors = {"input_ids": ones, "attention_mask": ones, "position_ids": ones.cumsum(1) - 1}
        columns = {name: np.array([None], dtype=object) for name in rows[0]}
        for name, column in columns.items():
            column[0] = rows[0][name]
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
    return SimpleNamespace(
        meta_info={"generation_config": {"num_return_sequences": len(texts)}},
        pipeline_config=SimpleNamespace(
            prompt_length=PROMPT, is_num_return_sequences_expand=False, rewards={"code": everything}
        ),
        sequence_length=LONGEST,
        is_val=False,
        udrl=RolloutLoop(),
        running_tasks={},
        replay_buffer=Buffer(),
        get_data_item_kwargs={},
        get_next_dataset_item=lambda: {"domain": "code", **row},
        collect_fn=collect,
        next_request_id=lambda: 0,
        generate_timer=defaultdict(DurationTracker),
        reward_timer=defaultdict(DurationTracker),
        reward_worker_iters={"code": itertools.cycle(workers)},
        router_client=SimpleNamespace(generate_request=generate),
    )


@in_process
def rolled_out(services: dict[str, float], rows: list[dict[str, object]]) -> list[object]:
    """Return what becomes of a prompt per row, in each of two clusters."""
    prepare()
    import ray
    from ray import cloudpickle
    from roll.configs.model_args import ModelArguments
    from roll.configs.worker_config import WorkerConfig
    from roll.distributed.executor.cluster import Cluster
    from roll.distributed.scheduler.generate_scheduler import RolloutContext
    from roll.distributed.scheduler.resource_manager import ResourceManager
    from roll.distributed.scheduler.storage import SharedStorage
    from roll.utils.constants import RAY_NAMESPACE, STORAGE_NAME
    from transformers import ByT5Tokenizer

    tokenizer = ByT5Tokenizer()
    tokenizer.save_pretrained("tokenizer")
    for module in (trainers, sys.modules[__name__]):
        cloudpickle.register_pickle_by_value(module)
    os.environ["PYTHONPATH"] += os.pathsep + str(PEERS / "roll")
    setup = {"worker_process_setup_hook": prepare}
    ray.init("local", num_cpus=2, include_dashboard=False, runtime_env=setup)
    # Before the resource manager takes the processors, as ROLL does.
    storage = SharedStorage.options(name=STORAGE_NAME, namespace=RAY_NAMESPACE).remote()
    resources = ResourceManager(num_gpus_per_node=0, num_nodes=1)
    sys.modules["my_rewards"] = ModuleType("my_rewards")

    async def prompt(workers: list, row: dict[str, object]) -> object:
        scheduler = scheduler_of(workers, row, tokenizer, [*TEXTS])
        try:
            await RolloutContext.process_new_prompt(scheduler, 7)
        except (Exception, asyncio.CancelledError) as error:
            assert scheduler.replay_buffer == {7: None}
            return error_of(error)
        samples = scheduler.replay_buffer[7]
        return [each.batch["response_level_rewards"].item() for each in samples]

    found = []
    for number, (url, timeout_s) in enumerate(services.items()):
        sys.modules["my_rewards"].CodeReward = reward_worker("code", url, timeout_s=timeout_s)
        config = WorkerConfig(
            model_args=ModelArguments(model_name_or_path="tokenizer"), world_size=1
        )
        cluster = Cluster(f"reward-{number}", "my_rewards.CodeReward", resources, config)
        found += [asyncio.run(prompt(cluster.workers, row)) for row in rows]
    del storage
    ray.shutdown()
    return found


@pytest.mark.timeout(600)
def test_prompts_get_their_rewards_and_one_without_a_reward_is_dropped(
    code_url: str, dead_url: str
):
    rows = [{"tests": TESTS}, {"other": TESTS}]
    scored, invalid, dropped, _ = rolled_out({code_url: 60, dead_url: 0.5}, rows)
    assert scored == [*TEXTS.values()]
    assert invalid.startswith("RayTaskError(InvalidRequest): ") and "no column 'tests'" in invalid
    assert dropped == "CancelledError: "  # ROLL draws another prompt
