"""ROLL (commit 8eb27cc): its reward worker and its rollout loop.

The stand-ins below have what the adapter uses of `Worker`, `register`, `DataProto` and
`UserDefinedRolloutLoop`, with the same calls. `tests/third_party/test_roll.py` runs ROLL itself.
"""

import asyncio
import inspect
import json
import math
from enum import Enum, auto
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rewardfleet import InvalidRequest
from rewardfleet.adapters import roll
from rewardfleet.adapters.roll import reward_worker

from ..third_party.trainers import byte_tokenizer
from .conftest import ECHO, SUM, TESTS, UNREACHABLE, install_modules

torch = pytest.importorskip("torch")

CONFIG = SimpleNamespace(model_args="tokenizer")


class Worker:
    def __init__(self, worker_config: object) -> None:
        self.worker_config = worker_config
        self.rank_info = SimpleNamespace(rank=1, world_size=4, dp_rank=0, dp_size=1)


class Dispatch(Enum):
    ONE_TO_ALL = auto()
    DP_MP_COMPUTE = auto()


def register(dispatch_mode: Dispatch, *, clear_cache: bool = True):
    """Mark a method, as ROLL does, which keeps coroutine functions what they are."""

    def decorator(function):
        function.dispatch_mode = dispatch_mode
        return function

    return decorator


class BatchProxy(dict):
    __iter__ = None


class DataProto:
    def __init__(self, batch, non_tensor_batch=None, meta_info=None) -> None:
        self.batch = batch
        self.non_tensor_batch = BatchProxy(non_tensor_batch or {})
        self.meta_info = meta_info or {}

    @classmethod
    def from_dict(cls, tensors, meta_info=None) -> "DataProto":
        assert len({len(each) for each in tensors.values()}) == 1
        return cls(tensors, meta_info=meta_info)


class UserDefinedRolloutLoop:
    """ROLL's loop, as far as rewards go: a group is dropped if one of its members is None."""

    async def process_new_prompt(self, context):
        given = {"context": context, "domain": "code"}
        calls = [self._generate_and_reward(req=each, **given) for each in context.requests]
        responses = await asyncio.gather(*calls)
        return None if None in responses else [item for each in responses for item in each]

    async def _generate_and_reward(self, context, req, domain):
        return [await context.compute_rewards(req=req, domain=domain)]


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch):
    scheduler = "roll.distributed.scheduler"
    providers = {"default_tokenizer_provider": lambda model_args: byte_tokenizer()}
    loops = {"UserDefinedRolloutLoop": UserDefinedRolloutLoop}
    modules = {
        "roll.models.model_providers": providers,
        "roll.distributed.executor.worker": {"Worker": Worker},
        f"{scheduler}.decorator": {"Dispatch": Dispatch, "register": register},
        f"{scheduler}.protocol": {"DataProto": DataProto},
        f"{scheduler}.user_defined_rollout_loop": loops,
    }
    install_modules(monkeypatch, modules)
    yield
    roll._worker.cache_clear()
    roll._rollout_loop.cache_clear()


def data_of(texts: list[str], **columns: list[object]) -> DataProto:
    tokens = [byte_tokenizer()(text)["input_ids"] for text in texts]
    width = max(map(len, tokens)) + 2
    responses = torch.tensor([each + [0] * (width - len(each)) for each in tokens])
    columns = {"tests": [json.dumps(TESTS)] * len(texts), **columns}
    arrays = {name: np.array(values, dtype=object) for name, values in columns.items()}
    return DataProto({"responses": responses}, arrays, {"global_step": 3})


def dead_worker(lost_url: str, **options: object):
    return reward_worker("code", lost_url, timeout_s=0.3, **options)(CONFIG)


async def test_a_worker_returns_the_tensors_of_a_reward_worker(code_url: str, tmp_path: Path):
    kind = reward_worker("code", code_url, score_log=tmp_path / "log")
    # ROLL sends a worker many requests at once if a method of its class is a coroutine function.
    assert inspect.iscoroutinefunction(kind.compute_rewards)
    assert kind.compute_rewards.dispatch_mode is Dispatch.DP_MP_COMPUTE
    assert kind.__name__ == "CodeReward"
    worker = kind(worker_config=CONFIG)
    assert (worker.rank_info.dp_rank, worker.rank_info.dp_size) == (1, 4)
    worker.initialize(pipeline_config=None)
    data = data_of([f"{SUM}<|im_end|>", ECHO, "", "\0"])
    output = await worker.compute_rewards(data)
    placed = output.batch.pop("token_level_rewards")
    assert placed.shape == data.batch["responses"].shape and not placed.any()
    assert set(output.batch) == {"response_level_rewards", "scores"}
    for rewards in output.batch.values():
        assert rewards.tolist() == [1.0, 0.5, 0.0, 0.0] and rewards.dtype == torch.float32
    assert output.meta_info["metrics"]["reward/failed"] == 0.0
    await worker.scorer.fleet.aclose()
    (segment,) = (tmp_path / "log").glob("*.jsonl")
    steps = [json.loads(line)["step"] for line in segment.read_text().splitlines()]
    assert steps == [3] * 4


async def test_further_columns_are_fields_of_the_request(code_url: str):
    worker = reward_worker("code", code_url, column="test_cases", columns=["mode"])(CONFIG)
    data = data_of([ECHO, ECHO], test_cases=[TESTS, TESTS], mode=["all_pass", None])
    output = await worker.compute_rewards(data)
    assert output.batch["scores"].tolist() == [0.0, 0.5]
    with pytest.raises(InvalidRequest, match="no column 'test_cases'"):
        await worker.compute_rewards(data_of([ECHO]))


async def test_equal_rewards_have_no_deviation(code_url: str):
    """In half precision, ROLL would divide the rounding error of their mean by almost nothing."""
    thirds = {"kind": "stdio", "cases": [{"stdin": each, "stdout": "1"} for each in "123"]}
    worker = reward_worker("code", code_url)(CONFIG)
    data = data_of([ECHO] * 8, tests=[thirds] * 8)
    rewards = (await worker.compute_rewards(data)).batch["response_level_rewards"]
    assert rewards[0] == pytest.approx(1 / 3)
    normalized = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
    assert normalized.abs().max() < 0.1


async def test_a_prompt_with_a_missing_reward_is_dropped(code_url: str, lost_url: str, monkeypatch):
    good = reward_worker("code", code_url)(CONFIG)
    dead = dead_worker(lost_url)
    loop = roll.RolloutLoop()

    def context(*workers):
        requests = [(worker, data_of([SUM])) for worker in workers]

        async def compute_rewards(req, domain):
            return await req[0].compute_rewards(req[1])

        return SimpleNamespace(prompt_id=7, requests=requests, compute_rewards=compute_rewards)

    assert await loop.process_new_prompt(context(good, dead)) is None
    responses = await loop.process_new_prompt(context(good, good))
    assert [each.batch["scores"].item() for each in responses] == [1.0, 1.0]
    bad = reward_worker("code", code_url, column="other")(CONFIG)
    with pytest.raises(InvalidRequest):
        await loop.process_new_prompt(context(good, bad))
    monkeypatch.setattr(roll, "_MAX_FAILURES", 3)  # the first was above
    assert [await loop.process_new_prompt(context(dead)) for _ in range(2)] == [None, None]
    with pytest.raises(UNREACHABLE):
        await loop.process_new_prompt(context(dead))


async def test_a_failure_is_raised_or_replaced_by_a_number(lost_url: str):
    with pytest.raises(UNREACHABLE):
        await dead_worker(lost_url).compute_rewards(data_of([SUM]))
    output = await dead_worker(lost_url, on_failure=-1.0).compute_rewards(data_of([SUM]))
    assert output.batch["scores"].tolist() == [-1.0]
    assert output.meta_info["metrics"]["reward/failed"] == 1.0
    with pytest.raises(ValueError, match="NaN would spread over its group in ROLL"):
        dead_worker(lost_url, on_failure=math.nan)
