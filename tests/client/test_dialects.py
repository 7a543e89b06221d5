"""Tool calls in the dialects of models: outputs as their chat templates write them."""

import json
from pathlib import Path
from typing import Any

import pytest

from rewardfleet.tool_use import score_answer
from rewardfleet.tool_use.score import ToolUseReward
from rewardfleet.wire.tools import ToolsRequest

DATA = json.loads((Path(__file__).parents[1] / "data" / "client" / "dialects.json").read_text())
CASES: list[list[tuple[str, dict[str, Any]]]] = DATA["cases"]
KINDS = {
    str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object",
    type(None): "null",
}  # fmt: skip
RIGHT = '[{"name": "f", "arguments": {"a": 1}}]'
#: How an answer begins that thinks.
THOUGHTS = {"harmony": "<|channel|>analysis<|message|>plan<|end|>"}


def written(calls: list[tuple[str, dict[str, Any]]], way: dict[str, Any]) -> str:
    """Return calls as a chat template writes them."""
    texts = []
    for index, (name, arguments) in enumerate(calls):
        inner = json.dumps(arguments, ensure_ascii=False)
        if "value" in way:
            values = [
                way["value"] % {"key": key, "value": text_of(value, way), "repr": repr(value)}
                for key, value in arguments.items()
            ]
            inner = way.get("joint", "").join(values)
        texts.append(way["call"] % {"name": name, "arguments": inner, "index": index})
    return way.get("before", "") + way.get("between", "").join(texts) + way.get("after", "")


def text_of(value: Any, way: dict[str, Any]) -> str:
    """Return a value as text: JSON if it is none, by Qwen's template only of lists and objects."""
    is_text = isinstance(value, str) or ("python" in way and not isinstance(value, dict | list))
    return str(value) if is_text else json.dumps(value, ensure_ascii=False)


def tools_of(calls: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the tools that calls need, in OpenAI's form."""
    types: dict[str, dict[str, Any]] = {name: {} for name, _ in calls}
    for name, arguments in calls:
        types[name] |= {key: {"type": KINDS[type(each)]} for key, each in arguments.items()}
    schemas = {name: {"type": "object", "properties": each} for name, each in types.items()}
    return [
        {"type": "function", "function": {"name": name, "parameters": schema, "strict": True}}
        for name, schema in schemas.items()
    ]


def scored(text: str, truth: str, tools: Any = (), **options: Any) -> ToolUseReward:
    fields = {"response": text, "ground_truth": truth, "options": options, "tools": [*tools]}
    request = ToolsRequest.model_validate(fields)
    return score_answer(text, truth, request.options, tools=request.tools)


def cases_of(way: str) -> list[tuple[list[tuple[str, dict[str, Any]]], str]]:
    """Return calls that can be written so, with their text."""
    texts = [(calls, written(calls, DATA["dialects"][way])) for calls in CASES]
    if way.startswith("pythonic"):
        return [(calls, text) for calls, text in texts if "-" not in calls[0][0]]
    if way == "hermes":  # a block ends with the first `</tool_call>`, wherever it is
        return [each for each in texts if each[1].count("</tool_call>") == len(each[0])]
    return texts


def truth_of(calls: list[tuple[str, dict[str, Any]]]) -> str:
    return json.dumps([{"name": name, "arguments": each} for name, each in calls])


@pytest.mark.parametrize("way", DATA["dialects"])
def test_valid_outputs_are_right_with_and_without_schemas(way: str):
    dialect = way.split(maxsplit=1)[0]
    thought = THOUGHTS.get(dialect, "<think>plan</think>\n")
    for calls, text in cases_of(way):
        truth = truth_of(calls)
        for begin, tools in ((thought, tools_of(calls)), ("", ())):
            reward = scored(begin + text, truth, tools, dialect=dialect)
            assert reward == scored(begin + text, truth, tools), "any dialect"
            assert (reward.task, reward.answer.dialect) == (4.0, dialect), (calls, reward)
            assert not (tools and reward.answer.untyped)
        if len(calls) == 1 and "<" not in truth:
            tagged = f"<think>x</think>\n<tool_call>\n{truth}\n</tool_call>"
            assert scored(thought + text, tagged).task == 4.0, calls
    assert len(cases_of(way)) >= 40


@pytest.mark.parametrize("way", DATA["dialects"])
def test_a_call_in_another_dialect_than_demanded_is_named_and_costs(way: str):
    for calls, text in cases_of(way):
        other = {"dialect": "glm"} if way == "hermes" or len(calls) > 1 else {"variant": "toolrl"}
        if not way.startswith("glm") or "variant" in other:
            reward = scored(text, truth_of(calls), **other, cost="calls")
            assert (reward.cause, reward.cost) == ("other_dialect", len(calls)), calls


@pytest.mark.parametrize(("text", "dialect", "calls", "cause"), DATA["texts"])
def test_other_outputs(text: str, dialect: str | None, calls: int, cause: str | None):
    reward = scored(text, RIGHT, cost="calls")
    assert (reward.answer.dialect, reward.cost, reward.cause) == (dialect, calls, cause)


@pytest.mark.parametrize(("text", "cause"), DATA["executed"])
def test_what_vllm_does_not_run_is_named(text: str, cause: str | None):
    reward = scored(text, RIGHT, as_executed=True)
    assert reward.cause == cause
    assert (reward.task == 4.0) is (cause is None)
    if cause in ("several_calls", "no_arguments"):
        assert scored(text, RIGHT).cause != cause
        assert reward.correctness == -3.0


@pytest.mark.parametrize(("text", "schema", "value", "is_right", "untyped"), DATA["typed"])
def test_schemas_decide_on_values_without_types(
    text: str, schema: Any, value: Any, is_right: bool, untyped: int
):
    answer = f"<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>"
    truths = [[{"name": "f", "arguments": {"a": value}}], [{"f": {"a": ["other", value]}}]]
    tools = [{"name": "f", "parameters": {"properties": {"a": schema}}}]
    for truth in truths:
        reward = scored(answer, json.dumps(truth), tools)
        assert ((reward.task == 4.0), reward.answer.untyped) == (is_right, untyped)


def test_schemas_of_any_form_are_no_error():
    for schema in (None, {}, {"properties": 3}, {"properties": {"a": {"type": {"b": 1}}}}):
        tools = [{"name": "f", "parameters": schema}]
        text = "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"
        assert scored(text, RIGHT, tools).answer.untyped == 1
