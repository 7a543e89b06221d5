"""AReaL 1.0.4: its reward functions' arguments, as `RLVRWorkflow` passes them.

`tests/third_party/test_areal.py` runs AReaL with the workflow of docs/trainers/areal.md.
"""

import asyncio
import json
import math
import sys
from types import ModuleType, SimpleNamespace

import pytest

from rewardfleet import InvalidRequest
from rewardfleet.adapters.areal import reward_function

from .conftest import SUM, TESTS, UNREACHABLE

pytestmark = pytest.mark.usefixtures("closes")

ROW = {"messages": [{"role": "user", "content": "Add."}], "tests": json.dumps(TESTS)}


async def rewards_of(function, texts: list[str], **row: object) -> list[float]:
    """Call the function as workflows of a group do: at the same time, with the row's fields."""
    calls = (function("<user>Add.", text, [1, 2], [3], **{**ROW, **row}) for text in texts)
    return await asyncio.gather(*calls)


async def test_whatever_a_policy_writes_is_scored(code_url: str):
    reward = reward_function("code", code_url)
    texts = ["", "\0", "\ud800", "<|im_end|>", "No idea.", "print(input())", SUM]
    assert await rewards_of(reward, texts) == [0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 1.0]


async def test_fields_of_the_row_are_those_of_the_request(code_url: str):
    reward = reward_function("code", code_url, column="checks")
    assert await rewards_of(reward, ["print(input())"], checks=TESTS, mode="all_pass") == [0.0]
    with pytest.raises(InvalidRequest, match=r"no 'checks'; there are: messages, tests"):
        await rewards_of(reward, [SUM])


async def test_a_failure_is_raised_which_rejects_the_group(unused_tcp_port: int):
    reward = reward_function("code", f"http://127.0.0.1:{unused_tcp_port}", timeout_s=0.3)
    with pytest.raises(UNREACHABLE):
        await rewards_of(reward, [SUM, SUM])


def test_nan_is_refused():
    with pytest.raises(ValueError, match="NaN would spread over its group in AReaL"):
        reward_function("code", "http://127.0.0.1:18081", on_failure=math.nan)


@pytest.mark.slow
async def test_it_reports_to_the_statistics_of_the_workflow(
    code_url: str, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
):
    logged: list[dict[str, float]] = []
    areal, tracker = ModuleType("areal"), ModuleType("areal.utils.stats_tracker")
    areal.workflow_context = SimpleNamespace(stat_scope=lambda: "rollout")
    scopes = {"rollout": SimpleNamespace(scalar=lambda **values: logged.append(values))}
    tracker.get = scopes.__getitem__
    monkeypatch.setitem(sys.modules, "areal", areal)
    monkeypatch.setitem(sys.modules, "areal.utils.stats_tracker", tracker)
    await rewards_of(reward_function("code", code_url), [SUM])
    dead = f"http://127.0.0.1:{unused_tcp_port}"
    replaced = reward_function("code", dead, timeout_s=0.3, on_failure=-1.0)
    assert await rewards_of(replaced, [SUM]) == [-1.0]
    assert [each["reward/failed"] for each in logged] == [0.0, 1.0]
    assert [each["reward/abstained"] for each in logged] == [0.0, 0.0]
    assert all("reward/cached" in each for each in logged)


def test_areal_refuses_it_where_it_would_run_in_a_process_pool(code_url: str):
    """`reward_fn=` of a workflow would, and then a wait of 15 s is a reward of 0."""
    assert asyncio.iscoroutinefunction(reward_function("code", code_url))
