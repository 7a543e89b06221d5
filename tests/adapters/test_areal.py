"""AReaL 1.0.4: its reward functions' arguments, as `RLVRWorkflow` passes them.

`tests/third_party/test_areal.py` runs AReaL with the workflow of docs/trainers/areal.md.
"""

import asyncio
import json
from types import SimpleNamespace

import pytest

from rewardfleet.adapters.areal import reward_function

from .conftest import SUM, TESTS, install_modules

ROW = {"messages": [{"role": "user", "content": "Add."}], "tests": json.dumps(TESTS)}


async def rewards_of(function, texts: list[str], **row: object) -> list[float]:
    """Call the function as workflows of a group do: at the same time, with the row's fields."""
    calls = (function("<user>Add.", text, [1, 2], [3], **{**ROW, **row}) for text in texts)
    return await asyncio.gather(*calls)


@pytest.mark.slow
async def test_it_reports_to_the_statistics_of_the_workflow(
    code_url: str, lost_url: str, monkeypatch: pytest.MonkeyPatch
):
    logged: list[dict[str, float]] = []
    scopes = {"rollout": SimpleNamespace(scalar=lambda **values: logged.append(values))}
    context = SimpleNamespace(stat_scope=lambda: "rollout")
    modules = {"areal": {"workflow_context": context}}
    modules["areal.utils.stats_tracker"] = {"get": scopes.__getitem__}
    install_modules(monkeypatch, modules)
    await rewards_of(reward_function("code", code_url), [SUM])
    replaced = reward_function("code", lost_url, timeout_s=0.3, on_failure=-1.0)
    assert await rewards_of(replaced, [SUM]) == [-1.0]
    assert [each["reward/failed"] for each in logged] == [0.0, 1.0]
    assert [each["reward/abstained"] for each in logged] == [0.0, 0.0]
    assert all("reward/cached" in each for each in logged)


def test_areal_refuses_it_where_it_would_run_in_a_process_pool(code_url: str):
    """`reward_fn=` of a workflow would, and then a wait of 15 s is a reward of 0."""
    assert asyncio.iscoroutinefunction(reward_function("code", code_url))
