"""Every adapter reads a completion in the same forms, without the special tokens at its end.

`tests/third_party` runs the trainers with them.
"""

import asyncio
import contextlib
import json
import math
from types import SimpleNamespace

import pytest

from rewardfleet import Abstained, InvalidRequest, RewardFleet
from rewardfleet.adapters import areal, ms_swift, nemo_rl, ray_data, rllm, trl, verifiers, verl
from rewardfleet.adapters._rows import MissingReward
from rewardfleet.adapters.ctrl import CritiqueReward

from .conftest import ECHO, SUM, TESTS, UNREACHABLE, install_modules

END = "<|im_end|>\n"
PARTS = [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": SUM}]
USER, TOOL = {"role": "user", "content": ECHO}, {"role": "tool", "content": ECHO}
RIGHT = [SUM, f"{SUM}{END}", PARTS, {"code": SUM + END}]
RIGHT += [[USER, {"role": "assistant", "content": SUM + END}, TOOL]]
RIGHT += [[USER, SimpleNamespace(role="assistant", content=PARTS)]]
RIGHT += [SimpleNamespace(content=SUM, text=ECHO)]  # an output of a model
RIGHT += [[{"type": "text", "text": SUM, "thinking": None}]]  # of a table with other parts
NOTHING = {"role": "assistant", "content": None}
THOUGHT, CALL = {"reasoning_content": "Hm."}, {"tool_calls": [{"name": "f", "arguments": {}}]}
EMPTY = ["", END, "\0", "\ud800", "Hm.", [NOTHING | {"content": ""}], NOTHING | CALL,
         [NOTHING | THOUGHT], [USER, NOTHING | CALL, TOOL], PARTS[:1]]  # fmt: skip
#: What a trainer has of a rollout that was aborted.
NULL = [None, math.nan, [], [USER], NOTHING, [NOTHING], {"code": None}, NOTHING | {"content": []},
        [NOTHING | {"content": SUM}, TOOL, NOTHING | {"tool_calls": []}]]  # fmt: skip
UNREADABLE = [7, [SUM], {"answer": SUM}, [{"type": "ai", "content": SUM}], {"code": {"text": SUM}}]


#: The fields of a row; the adapters of NeMo-RL and of others read the tests from other fields.
ROW = {"tests": TESTS, "ground_truth": TESTS}


async def by_areal(url: str, completion: object, row: dict = ROW, **options: object) -> float:
    reward = areal.reward_function("code", url, **options)
    assert asyncio.iscoroutinefunction(reward), "else AReaL runs it in a pool, and gives 0 at 15 s"
    return await reward("Add.", completion, [], [], **row)


async def by_ctrl(url: str, completion: object) -> float:
    reward = CritiqueReward(RewardFleet(code=url), [], tokenizer=None)
    critiques = [[{"role": "assistant", "content": f"Overall judgment: Incorrect{END}"}]]
    return (await reward.get_reward_all(critiques, [completion], [{"tests": TESTS}]))[0]


async def by_ms_swift(url: str, completion: object, row: dict = ROW, **options: object) -> float:
    kind = ms_swift.orm("code", url, **options)
    assert kind.__name__ == "CodeReward", "ms-swift logs the name of the class"
    # It is made with the trainer's arguments, and gets completions by position, rows as lists.
    given = {"messages": [[]], "tools": [None], **{name: [each] for name, each in row.items()}}
    return kind(args=object())([completion], trainer_state=object(), **given)[0]


async def by_nemo_rl(url: str, completion: object, row: dict = ROW, **options: object) -> float:
    pytest.importorskip("torch")
    environment = nemo_rl.ScoringEnvironment({"service": "code", "url": url, **options})
    return (await environment.step([completion], [row])).rewards.item()


async def by_ray_data(url: str, completion: object) -> float:
    batch = {"response": [completion], "tests": [TESTS]}
    return ray_data.Scorer("code", url, on_failure="raise")(batch)["reward"][0]


async def by_rllm(url: str, completion: object, row: dict = ROW, **options: object) -> float:
    steps = [SimpleNamespace(output=None, model_response=completion)]
    episode = SimpleNamespace(artifacts={}, trajectories=[SimpleNamespace(output="", steps=steps)])
    return rllm.evaluator("code", url, **options).evaluate(row, episode).reward


async def by_trl(url: str, completion: object, row: dict = ROW, **options: object) -> float:
    columns = {name: [each] for name, each in row.items()}
    reward = trl.reward_function("code", url, **options)
    return (await reward(completions=[completion], **columns))[0]


async def by_verifiers(url: str, completion: object) -> float:
    return await verifiers.reward_function("code", url)(completion=completion, answer=TESTS)


async def by_verl(url: str, completion: object) -> float:
    return (await verl.compute_score_async("code", completion, TESTS, url=url))["score"]


ADAPTERS = [by_areal, by_ctrl, by_ms_swift, by_nemo_rl, by_ray_data, by_rllm, by_trl, by_verifiers]


@pytest.fixture(autouse=True)
def _standins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verl, "_scorers", {})
    types = SimpleNamespace(EvalOutput=SimpleNamespace, Signal=SimpleNamespace)
    monkeypatch.setattr(rllm, "module_of_trainer", lambda *_: types)


@pytest.mark.parametrize("score", [*ADAPTERS, by_verl])
async def test_it_is_read_or_refused_or_missing(score, code_url: str):
    assert [await score(code_url, each) for each in RIGHT] == [1.0] * len(RIGHT)
    assert [await score(code_url, each) for each in EMPTY] == [0.0] * len(EMPTY)
    for each in NULL:
        with contextlib.suppress(Abstained, MissingReward):  # unless the trainer takes NaN
            assert math.isnan(await score(code_url, each)), each
    for each in UNREADABLE:
        with pytest.raises((InvalidRequest, MissingReward), match="a completion is a text, mess"):
            await score(code_url, each)


#: By whether further fields of a row must be named.
NAMED = {by_areal: False, by_ms_swift: True, by_nemo_rl: True, by_rllm: False, by_trl: True}


@pytest.mark.parametrize("score", NAMED)
async def test_the_tests_may_be_in_another_field_and_others_be_fields_of_the_request(
    score, code_url: str
):
    options = {"column": "checks", "columns": ["mode"]} if NAMED[score] else {"column": "checks"}
    row = {"checks": json.dumps(TESTS), "limits": None}
    assert await score(code_url, ECHO, {**row, "mode": "pass_rate"}, **options) == 0.5
    assert await score(code_url, ECHO, {**row, "mode": "all_pass"}, **options) == 0.0
    with pytest.raises(
        InvalidRequest, match="(no column 'checks'; it has|'checks' is missing; there are): "
    ):
        await score(code_url, ECHO, {"mode": None, "tests": TESTS}, **options)


@pytest.mark.parametrize("score", [by_areal, by_ms_swift, by_nemo_rl, by_rllm])
async def test_a_failure_is_raised_or_a_number_and_never_nan(score, lost_url: str):
    """These trainers count NaN as 0, or spread it over its group."""
    with pytest.raises(UNREACHABLE):
        await score(lost_url, SUM, timeout_s=0.3)
    assert await score(lost_url, SUM, timeout_s=0.3, on_failure=-1.0) == -1.0
    with pytest.raises(ValueError, match="NaN would (count|spread)"):
        await score(lost_url, SUM, on_failure=math.nan)


async def test_areal_logs_what_became_of_a_sample(code_url: str, lost_url: str, monkeypatch):
    logged: list[dict[str, float]] = []
    scopes = {"rollout": SimpleNamespace(scalar=lambda **values: logged.append(values))}
    context = SimpleNamespace(stat_scope=lambda: "rollout")
    modules = {"areal": {"workflow_context": context}}
    modules["areal.utils.stats_tracker"] = {"get": scopes.__getitem__}
    install_modules(monkeypatch, modules)
    await by_areal(code_url, SUM)
    await by_areal(lost_url, SUM, timeout_s=0.3, on_failure=-1.0)
    assert [each["reward/failed"] for each in logged] == [0.0, 1.0]
    assert [each["reward/abstained"] for each in logged] == [0.0, 0.0]
    assert all("reward/cached" in each for each in logged)
