"""Reward functions for TRL 1.16: called as its `GRPOTrainer` does, and in it where installed."""

import inspect
import json
import math
import pickle
from contextlib import nullcontext
from importlib import metadata

import pytest

from rewardfleet import InvalidRequest, SampleTables
from rewardfleet.adapters.trl import reward_function
from rewardfleet.wire.causes import CodeCause
from rewardfleet_server.tools.app import create_app as create_tools_app
from rewardfleet_server.tools.settings import ToolsSettings

from ..conftest import client_of
from ..third_party.trainers import close_fleet_of, random_trainer
from ..viewers.wandb_file import history_of, rows_of
from .conftest import ECHO, SUM, TESTS, UNREACHABLE

NO_CAUSES = {f"reward/cause/{each}": 0.0 for each in CodeCause}


async def call(function, completions: list, **columns: object) -> list[float]:
    """Call a reward function as TRL 1.16 does: by keyword, with columns and its own arguments."""
    count = len(completions)
    given = {"prompts": ["Add."] * count, "completion_ids": [[1]] * count}
    given |= {"trainer_state": object(), "log_extra": print, "log_metric": print, **columns}
    rewards = function(completions=completions, **given)
    return await rewards if inspect.iscoroutinefunction(function) else rewards


@pytest.fixture(params=[True, False], ids=["async", "sync"])
def reward(request: pytest.FixtureRequest, code_url: str):
    return reward_function("code", code_url, is_async=request.param)


async def test_fields_beside_the_tests_of_a_row_are_fields_of_the_request(code_url: str):
    strict = {"tests": TESTS, "mode": "all_pass"}
    rows = [{"tests": TESTS}, strict, json.dumps({"tests": TESTS}), json.dumps(strict)]
    reward = reward_function("code", code_url)
    assert await call(reward, [ECHO] * 4, tests=rows) == [0.5, 0.0] * 2


async def test_a_missing_reward_is_raised_unless_it_is_to_be_nan(lost_url: str):
    """TRL 1.16's own trainers call in `tests/training/test_missing_rewards.py`."""
    given = {"completions": [SUM, SUM], "tests": [TESTS] * 2}
    missing = reward_function("code", lost_url, timeout_s=0.3, on_failure=math.nan)
    rewards = await call(missing, **given)
    assert all(map(math.isnan, rewards)) and len(rewards) == 2
    with pytest.raises(UNREACHABLE):
        await call(reward_function("code", lost_url, timeout_s=0.3), **given)


#: What NaN would do in a class of a version of TRL.
WOULD = [
    ("GRPOTrainer", "1.5.2", "count as 0 in TRL before 1.6"),
    ("GRPOTrainer", "1.6.0", ""),
    ("A2POTrainer", "1.16.0", "make all parameters NaN in TRL A2POTrainer"),
]


@pytest.mark.parametrize(("kind", "version", "would"), WOULD)
def test_nan_is_the_default_where_the_class_that_calls_leaves_it_out(
    kind: str, version: str, would: str, lost_url: str, monkeypatch
):
    monkeypatch.setattr(metadata, "version", {"trl": version}.__getitem__)
    program = f"class {kind}:\n  def call(self, function, **given): return function(**given)"
    names: dict[str, type] = {"__name__": "trl.trainer"}
    exec(program, names)
    trainer = names[kind]()
    trainer.reward_func_names = ["code_reward"]
    errors = {UNREACHABLE: ".", ValueError: would}  # by default, and if NaN is asked for
    for error, on_failure in zip(errors, (None, math.nan), strict=True):
        options = {"is_async": False, "timeout_s": 0.3, "on_failure": on_failure}
        reward = reward_function("code", lost_url, **options)
        with pytest.raises(error, match=errors[error]) if would else nullcontext():
            assert math.isnan(trainer.call(reward, completions=[SUM], tests=[TESTS])[0])


async def test_metrics_of_a_batch_are_logged_and_have_the_same_names(
    code_url: str, lost_url: str, monkeypatch
):
    monkeypatch.setattr(metadata, "version", {"trl": "1.16.0"}.__getitem__)
    logged: dict[str, float] = {}
    given = {"tests": [TESTS] * 4, "log_metric": logged.__setitem__}
    await call(reward_function("code", code_url), [SUM, ECHO, "", "pass"], **given)
    cached = logged.pop("reward/cached")
    assert 0 <= cached <= 1
    assert logged == {
        "reward/failed": 0.0, "reward/abstained": 0.0, "reward/p0": 0.0, "reward/p25": 0.0,
        "reward/p50": 0.25, "reward/p75": 0.625, "reward/p100": 1.0,
        **NO_CAUSES, "reward/cause/wrong_answer": 0.5, "reward/cause/no_code_block": 0.25,
    }  # fmt: skip
    logged.clear()
    missing = reward_function("code", lost_url, timeout_s=0.3, on_failure=math.nan)
    await call(missing, [SUM] * 4, **given)
    shares = {"reward/failed": 1.0, "reward/abstained": 0.0, "reward/cached": 0.0}
    assert logged == shares | NO_CAUSES
    # Before, each process must log all names.
    monkeypatch.setattr(metadata, "version", {"trl": "1.15.0"}.__getitem__)
    await call(missing, [SUM] * 4, **given)
    missing = {name for name, value in logged.items() if math.isnan(value)}
    assert missing == {f"reward/p{percent}" for percent in (0, 25, 50, 75, 100)}
    await call(reward_function("code", code_url), [SUM] * 4, **given)
    assert logged["reward/p100"] == 1.0 and not any(map(math.isnan, logged.values()))


async def test_completions_are_scored_by_the_tests_of_their_rows(reward):
    tests = [TESTS, json.dumps(TESTS)]
    assert await call(reward, [SUM, ECHO], tests=tests) == [1.0, 0.5]
    for columns, message in (
        ({"test": [TESTS]}, "no column 'tests'; it has: .*completion_ids, .*test"),
        ({"tests": [{"kind": "stdio", "cases": [{}]}]}, "stdout"),
        ({"tests": [TESTS] * 2}, "2 values for 1 completions"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            await call(reward, [SUM], **columns)


async def test_a_function_has_a_name_and_can_be_pickled(reward):
    assert reward.__name__ == "code_reward"
    again = pickle.loads(pickle.dumps(reward))
    assert again.__name__ == "code_reward"
    assert await call(again, [ECHO], tests=[TESTS]) == [0.5]
    scorer = getattr(again, "_scorer", None) or again.keywords["scorer"]
    scorer.loop.close(scorer.fleet.aclose())
    await scorer.fleet.aclose()


async def test_answers_that_call_tools_are_scored_by_a_correct_answer():
    text = '<think>Look.</think>\n<tool_call>\n{"name": "search", "parameters": {}}\n</tool_call>'
    with client_of(create_tools_app(ToolsSettings())) as service:
        reward = reward_function("tools", str(service.base_url), is_async=False)
        answers = [text, [{"role": "assistant", "content": f"{text}<|im_end|>"}], ""]
        rewards = await call(reward, answers, ground_truth=[text] * 3, tools=[None] * 3)
        assert rewards == [4.0, 4.0, -3.0]
        search = {"type": "function", "function": {"name": "search", "arguments": {}}}
        message = {"role": "assistant", "content": "<think>x</think>", "tool_calls": [search]}
        done = [message, {"role": "tool", "content": ""}, {"role": "assistant", "content": ""}]
        truth = {"ground_truth": text, "options": {"variant": "toolrl", "correct_max1": True}}
        truths = [text, text, json.dumps(truth)]
        assert await call(reward, [[message], done, text], ground_truth=truths) == [4.0, 4.0, 2.0]


@pytest.mark.slice
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # TRL's own loop
@pytest.mark.parametrize("is_async", [True, False])
def test_grpo_trains_with_it_and_logs_it(is_async: bool, code_url: str, tmp_path, monkeypatch):
    pytest.importorskip("trl")
    wandb = pytest.importorskip("wandb")
    rows = [{"prompt": "Add.", "tests": json.dumps(TESTS)}] * 8
    for name, value in {"MODE": "offline", "DIR": tmp_path, "DATA_DIR": tmp_path}.items():
        monkeypatch.setenv(f"WANDB_{name}", str(value))
    tables = SampleTables(rows=1)
    reward = reward_function("code", code_url, is_async=is_async, sample_tables=tables)
    options = {"max_steps": 2, "per_device_train_batch_size": 4, "num_generations": 4}
    trainer = random_trainer(tmp_path, reward, rows, report_to="wandb", **options)
    trainer.train()
    close_fleet_of(reward, trainer)
    logged = [each for each in trainer.state.log_history if "rewards/code_reward/mean" in each]
    assert len(logged) == 2
    assert [each["reward/failed"] for each in logged] == [0.0, 0.0]
    assert all(each["rewards/code_reward/mean"] == 0.0 for each in logged)  # random bytes
    wandb.finish()
    wandb.teardown()
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    history = history_of(file)
    assert [each["train/reward"] for each in history if "train/reward" in each] == [0.0, 0.0]
    logged = [each["rewardfleet/code"] for each in history if "rewardfleet/code" in each]
    shown = {(row["step"], row["score"]) for each in logged for row in rows_of(file, each)}
    assert shown == {(0, 0.0), (1, 0.0)}
    assert not any(tables.dropped.values())
