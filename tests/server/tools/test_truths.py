"""Ground truths in the forms of data sets get the same score through every door."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rewardfleet import RewardFleet, tools_request
from rewardfleet.adapters import trl, verl
from rewardfleet.commands.main import main
from rewardfleet.tool_use import score_answer
from rewardfleet.wire.digest import request_id
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.tools import ToolsRequest
from rewardfleet_server.testing import serving
from rewardfleet_server.tools.app import create_app
from rewardfleet_server.tools.settings import ToolsSettings

from ...conftest import table
from .conftest import answer, call

RIGHT, WRONG = (answer(call("f", a=value)) for value in (1, 7))
OTHER, BARE = answer(call("g", b="z")), RIGHT.split("\n", 1)[1]


def forms(name: str, **parameters: Any) -> dict[str, Any]:
    text = {"name": name, "arguments": json.dumps(parameters)}
    return {
        "ToolRL": answer(call(name, **parameters)),
        "OpenAI": [{"id": "c", "type": "function", "function": text}],
        "message": {"role": "assistant", "content": None, "tool_calls": [{"function": text}]},
        "TRL": [{"name": name, "arguments": parameters}],
        "one call": {"name": name, "parameters": parameters},
        "BFCL": [{name: {key: [value] for key, value in parameters.items()}}],
        "Gym": {"type": "function_call", **text},
        "Gym batch": {"type": "function_call_batch", "calls": [text]},
    }


FORMS = forms("f", a=1)


def task_of(text: str, truth: Any, variant: Any = "strict") -> float:
    request = tools_request(text, truth, options={"variant": variant})
    again = ToolsRequest.model_validate_json(request.model_dump_json())
    assert request_id(again) == request_id(request), "replay sends what was logged"
    return score_answer(text, request.ground_truth, request.options).task


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(create_app(ToolsSettings())) as url:
        yield url


def scores(url: str, text: str, truth: Any) -> Iterator[float]:
    def post(path: str, body: dict[str, Any]) -> Any:
        answered = httpx.post(url + path, json=body)
        assert answered.status_code == 200, answered.text
        return answered.json()

    async def reward() -> float:
        async with RewardFleet(tools=url) as fleet:
            return await fleet.tools.reward(text, truth)

    item, row = {"response": text, "ground_truth": truth}, {"expected_action": truth}
    yield post("/score", item)["score"]
    yield post("/score/batch", {"items": [item]})["results"][0]["score"]
    yield post("/get_reward", {"query": [text], "prompts": [""], "labels": [truth]})["rewards"][0]
    yield post("/slime", {"prompt": "", "response": text, "label": truth})
    output = [{"type": "message", "role": "assistant", "content": [{"text": text}]}]
    rollout = {"responses_create_params": {}, "response": {"output": output}}
    yield post("/verify", {**rollout, **row})["reward"]
    yield post("/step", {"action": {"response": text, **row}})["reward"]
    yield asyncio.run(reward())
    by_trl = trl.reward_function("tools", url, column="reward_model", is_async=False)
    yield by_trl([text], reward_model=[truth])[0]
    yield verl.compute_score("rlla", text, truth, {}, url=url, service="tools")["score"]


@pytest.mark.parametrize("form", FORMS)
def test_a_truth_is_read_in_each_form_through_each_door(url: str, form: str):
    truth, low = FORMS[form], task_of(WRONG, FORMS["BFCL" if form == "BFCL" else "ToolRL"])
    assert low < 3
    nested = {"data_source": "x", "reward_model": {"style": "rule", "ground_truth": truth}}
    for each in (truth, truth if form == "ToolRL" else json.dumps(truth), nested):
        for text, expected in ((RIGHT, 4.0), (WRONG, low)):
            assert {*scores(url, text, each)} == {expected}


@pytest.mark.parametrize("form", FORMS)
def test_a_parquet_file_of_rows_needs_no_option(url: str, tmp_path: Path, form: str):
    """Arrow adds a null for each key of another row, such as the other function's."""
    rows = [
        {"response": text, "reward_model": {"ground_truth": forms(name, **parameters)[form]}}
        for text, name, parameters in ((RIGHT, "f", {"a": 1}), (OTHER, "g", {"b": "z"}))
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    assert (
        main(["score", "tools", f"{tmp_path}/rows.parquet", "--url", url, "-o", f"{tmp_path}/o"])
        == 0
    )
    found = pq.read_table(tmp_path / "o/part-00000.parquet").column("score").to_pylist()
    assert found == [4.0, 4.0]


@pytest.mark.parametrize("case", table("truths_of_bfcl"), ids=lambda case: str(case)[:70])
def test_allowed_values(case: list[Any]):
    truth, calls, is_right = case
    text = answer(*map(json.dumps, calls))
    assert (task_of(text, truth) == 4.0) is is_right
    with pytest.raises(InvalidRequest, match="need `variant: strict`"):
        task_of(text, truth, "toolrl")


@pytest.mark.parametrize(
    ("truth", "text", "variant", "expected"),
    [
        ([], "It is sunny.", "strict", 1.0), ("[]", "<think>x</think>Yes.", "strict", 1.0),
        ([], "", "strict", 0.0), ([], "<think>x", "strict", 0.0), ([], BARE, "strict", -1.8),
        ({"type": "message", "content": "Hi."}, "Yes.", "strict", 1.0),
        (FORMS["TRL"], f"I do it.\n{BARE}", "strict", 4.0), (FORMS["TRL"], "No.", "strict", -3.0),
        (FORMS["TRL"], RIGHT, "toolrl", 4.0), (FORMS["TRL"], BARE, "toolrl", 3.0),
    ],
)  # fmt: skip
def test_calls_ask_for_no_tags_but_an_answer(truth: Any, text: str, variant: str, expected: float):
    """The published reward asks for its tags all the same."""
    assert task_of(text, truth, variant) == pytest.approx(expected)


@pytest.mark.parametrize("truth", ["x", 5, None, {}, {"x": 1}, ["f(a=1)"], [{"arguments": {}}]])
def test_another_form_is_refused_with_those_that_are_read(truth: Any):
    with pytest.raises(InvalidRequest, match=r"ground_truth: give .*<think>.*tool_calls.*BFCL"):
        tools_request(RIGHT, truth)
