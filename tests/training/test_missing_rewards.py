"""What TRL 1.16 trains on where a sample has no reward: the rows of docs/trainers/failures.md.

If a row of a new version differs, so do `NAN_WOULD` and the page.
"""

import asyncio
import importlib
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rewardfleet.adapters._rows import NAN_WOULD
from rewardfleet.adapters.trl import reward_function

from ..adapters.conftest import TESTS, UNREACHABLE
from ..third_party.trainers import random_trainer

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow, pytest.mark.timeout(900)]

GRPO = {"num_generations": 4, "per_device_train_batch_size": 4}
#: By class: its options, and what it trains on with NaN, and with None.
TRAINERS = {
    "GRPOTrainer": (GRPO, "others", "others"),
    "GRPOTrainer, by batch": (GRPO | {"scale_rewards": "batch"}, "others", "others"),
    "GRPOTrainer, not scaled": (GRPO | {"scale_rewards": "none"}, "others", "others"),
    "GRPOTrainer, normalized first": (
        GRPO | {"multi_objective_aggregation": "normalize_then_sum"}, "others", "others",
    ),
    "RLOOTrainer": (GRPO, "others", "others"),
    "experimental.gmpo.GMPOTrainer": (GRPO, "others", "others"),
    "experimental.online_dpo.OnlineDPOTrainer": ({"per_device_train_batch_size": 2}, "0", "0"),
    "experimental.sdpo.SDPOTrainer": (GRPO | {"success_reward_threshold": -0.1}, "0", "0"),
    "experimental.a2po.A2POTrainer": ({"per_device_train_batch_size": 4}, "NaN", "TypeError"),
}  # fmt: skip


def class_of(name: str) -> Any:
    module, _, kind = name.partition(",")[0].rpartition(".")
    return getattr(importlib.import_module(f"trl.{module}".rstrip(".")), kind)


def trained(name: str, reward: Any, folder: Path, kind: Any = None, **options: Any) -> Any:
    given = {"max_steps": 1, "learning_rate": 1e-2, "report_to": [], **TRAINERS[name][0], **options}
    rows = [{"prompt": "Add.", "tests": TESTS}] * 8
    trainer = random_trainer(folder, reward, rows, kind=kind or class_of(name), **given)
    trainer.train()
    return trainer


def of(value: float | None) -> Any:
    """Return a function for groups of four, of which the first get a value."""

    def reward(completions: list[str], **_: object) -> list[float | None]:
        return [[value, -1.0, -0.5, -2.0][at % 4] for at in range(len(completions))]

    return reward


def outcome(name: str, missing: float | None, folder: Path) -> str:
    def parameters(reward: float | None) -> list[float]:
        trainer = trained(name, of(reward), folder)
        nonlocal advantages
        advantages = [*getattr(trainer, "_logs", {}).get("advantages", [])]
        return torch.cat([each.detach().flatten() for each in trainer.model.parameters()]).tolist()

    advantages: list[float] = []
    try:
        found = parameters(missing)
    except TypeError as error:
        return type(error).__name__
    if not all(map(math.isfinite, found)):
        return "NaN"
    if advantages and advantages[0] == 0:
        assert np.sign(advantages).tolist() == [0, 1, 1, -1]
        assert sum(advantages) == pytest.approx(0, abs=1e-5)
        return "others"
    assert found == parameters(0.0) != parameters(-3.0)
    return "0"


@pytest.mark.parametrize("name", TRAINERS)
def test_a_missing_reward_is_left_out_where_the_page_says_so(name: str, tmp_path: Path):
    found = [outcome(name, each, tmp_path) for each in (math.nan, None)]
    assert found == [*TRAINERS[name][1:]]
    would = NAN_WOULD[f"TRL {class_of(name).__name__}"]
    assert {"others": "", "0": "count as 0", "NaN": "make all parameters NaN"}[found[0]] == would


@pytest.mark.parametrize("name", [each for each in TRAINERS if "," not in each])
def test_without_a_service_a_run_goes_on_only_where_a_missing_reward_is_left_out(
    name: str, lost_url: str, tmp_path: Path
):
    def run(is_async: bool, number: int = 1, **given: Any) -> Any:
        options = {"is_async": is_async, "timeout_s": 0.3, **given}
        functions = [reward_function("code", lost_url, **options) for _ in range(number)]
        return trained(name, functions, tmp_path)

    if TRAINERS[name][1] == "others":
        for is_async in (True, False):
            (step, *_) = run(is_async).state.log_history
            assert (step["reward/failed"], step["grad_norm"]) == (1.0, 0.0)
            with pytest.raises(UNREACHABLE):
                run(is_async, number=2)
        with pytest.raises(ValueError, match="count as 0 in TRL with several reward functions"):
            run(True, number=2, on_failure=math.nan)
        # In a function of the user's, the trainer is known as well.
        scored = reward_function("code", lost_url, timeout_s=0.3)

        async def added(completions: list[str], **columns: Any) -> list[float]:
            return [each + 0.5 for each in await scored(completions, **columns)]

        assert trained(name, added, tmp_path).state.log_history[0]["reward/failed"] == 1.0
        subclass = type("Mine", (class_of(name),), {})
        reward = reward_function("code", lost_url, timeout_s=0.3)
        with pytest.raises(UNREACHABLE):
            trained(name, reward, tmp_path, kind=subclass)
    else:
        with pytest.raises(UNREACHABLE):
            run(False)
        with pytest.raises(TypeError, match="does not await reward functions: give is_async=False"):
            run(True)
        would = f"on_failure: NaN would .* in TRL {class_of(name).__name__}"
        with pytest.raises(ValueError, match=would):
            run(False, on_failure=math.nan)


@pytest.mark.parametrize("name", ["GRPOTrainer", "RLOOTrainer", "experimental.gmpo.GMPOTrainer"])
def test_beside_another_function_a_missing_reward_counts_as_0(name: str, tmp_path: Path):
    """If this fails, `TRL with several reward functions` is not needed in `NAN_WOULD`."""
    runs = [trained(name, [of(each), of(-0.2)], tmp_path) for each in (math.nan, None, 0.0)]
    found = [[*each._logs["advantages"]] for each in runs]
    assert found[0] == found[1] == found[2] != [0.0] * 4


@pytest.mark.parametrize("missing", [math.nan, None])
def test_async_grpo_leaves_a_missing_reward_out(missing: float | None, lost_url: str):
    """Its loop runs in a process of its own beside vLLM; here, only its scoring."""
    worker = importlib.import_module("trl.experimental.async_grpo.async_rollout_worker")
    importlib.import_module("accelerate").PartialState(cpu=True)  # for its log

    def advantages(*functions: Any) -> list[float]:
        loop = object.__new__(worker._AsyncRolloutLoop)
        loop.reward_funcs, loop._env_reward_types = [*functions], []
        loop.reward_func_names = [each.__name__ for each in functions]
        group = SimpleNamespace(
            prompts=["Add."] * 4, completions=["x"] * 4, completions_ids=[[1]] * 4,
            reward_kwargs={"tests": [TESTS] * 4}, tool_call_counts=[0], tool_failure_counts=[0],
            completions_sequences=[[worker.TrainingSequence([1], [1], [0.0], 0)]] * 4, group_id=0,
            model_version=0,
        )  # fmt: skip
        return [each.advantage for each in asyncio.run(loop._score_group(group))]

    first, *others = advantages(of(missing))
    assert first == 0 and np.sign(others).tolist() == [1, 1, -1][: len(others)]
    assert sum(others) == pytest.approx(0, abs=1e-5)

    async def raising(completions: list[str], **_: object) -> list[float]:
        raise ValueError(completions)

    with pytest.raises(ValueError, match="x"):
        advantages(raising)
    reward = reward_function("code", lost_url, timeout_s=0.3)
    assert advantages(reward) == [0.0] * 4
    in_thread = reward_function("code", lost_url, timeout_s=0.3, is_async=False)
    for functions in ((reward, of(1.0)), (in_thread,)):
        with pytest.raises(UNREACHABLE):
            advantages(*functions)
