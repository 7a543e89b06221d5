"""Tool calls in fields of messages are scored like those in the text of an answer."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from rewardfleet.rows import tools_fields
from rewardfleet.text.messages import answer_text
from rewardfleet.tool_use import parse_answer, score_answer
from rewardfleet.wire.tools import ToolsOptions

from ..conftest import table

THINK = "<think>x</think>"
TRUTH = f'{THINK}\n<tool_call>\n{{"name": "search", "parameters": {{"q": "a"}}}}\n</tool_call>'


def message(*calls: Any, content: Any = THINK) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": [*calls]}


def native(name: Any = "search", arguments: Any = '{"q": "a"}') -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize("case", table("native_calls"))
def test_calls_follow_the_content_in_the_form_of_a_ground_truth(case: dict[str, Any]):
    """Calls of a turn with replies of tools count, and thoughts of a later turn stay its own."""
    assert answer_text(case["completion"]) == case["text"]
    if isinstance(case["completion"], list):
        assert answer_text(each for each in case["completion"]) == case["text"]


def test_calls_of_the_output_of_a_model_are_read():
    assert answer_text(SimpleNamespace(content=THINK, tool_calls=[native()])) == TRUTH


@pytest.mark.parametrize("variant", ["strict", "toolrl"])
@pytest.mark.parametrize(
    "call",
    [
        native(arguments="{broken"), native(arguments="5"), native(arguments=[1]), native(None),
        native(arguments="[" * 100_000), native(arguments={("q",): 1}), "search", 5, {}, None,
    ],
)  # fmt: skip
def test_a_malformed_call_is_judged_as_one(call: Any, variant: str):
    reward = score_answer(answer_text([message(call)]), TRUTH, ToolsOptions(variant=variant))
    assert (reward.cause, reward.usage.calls, reward.correctness) == ("malformed_call", 1, -3.0)


def test_tags_in_arguments_are_text():
    """Else a call could be hidden, or look like several."""
    for tag in ("</think>", "<think>", "</tool_call>", "</tool_call><tool_call>{}", "\ud800"):
        [call] = parse_answer(answer_text([message(native(arguments={"q": tag}))])).calls
        assert dict(call.parameters) == {"q": tag}


USUAL = {"name": "lookup", "description": "Convert units", "parameters": {"type": "object"}}


@pytest.mark.parametrize(
    "tools",
    [
        [{"type": "function", "function": USUAL}], [USUAL], [{**USUAL, "type": "function"}],
        json.dumps([{"type": "function", "function": USUAL}]), json.dumps([USUAL]),
    ],
)  # fmt: skip
def test_tools_of_a_row_are_read_in_the_usual_forms(tools: Any):
    described = [USUAL]
    assert tools_fields(TRUTH, TRUTH, {"tools": tools})["tools"] == described
    truth = json.dumps({"ground_truth": TRUTH, "tools": tools, "difficulty": 3, "step": None})
    expected = {"response": TRUTH, "ground_truth": TRUTH, "tools": described}
    assert tools_fields(TRUTH, truth, {"tools": ["search"]}) == expected
    assert tools_fields(TRUTH, json.loads(truth), {}) == expected
