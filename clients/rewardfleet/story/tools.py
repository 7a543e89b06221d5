"""The story of the score of an answer that calls tools."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from rewardfleet.tool_use import GroundTruth, ToolCall, parse_answer, parse_ground_truth
from rewardfleet.tool_use.correctness import MAX_CORRECTNESS, strict_correctness
from rewardfleet.tool_use.usage import reported_name
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.score import figures_of
from rewardfleet.wire.tools import ToolsOptions

from .texts import Part, Table, Text, number, quoted

#: Calls that a terminal shows.
_MAX_CALLS = 10
_TASK = ("format", "correctness", "length")


def story_of_answer(request: Mapping[str, Any], score: Mapping[str, Any]) -> Iterator[Part]:
    """Yield which tags and calls were found, and which of them differ from the correct answer."""
    if "response" in request:
        with suppress(InvalidRequest, ValidationError):
            yield from _parsed(request, score, parse_ground_truth(request["ground_truth"]))
    figures = figures_of(score)
    if not figures:
        return
    parts = (f"{name} {number(figures.get(name, 0.0))}" for name in _TASK)
    yield f"Decided by: {' + '.join(parts)} = task {number(figures.get('task', 0.0))}"
    options = request.get("options") or {}
    if options.get("variant", "strict") == "strict":
        yield "The most is 1 for the format, and 3 for the calls if the correct answer has some."
    price, cost = figures.get("lambda", 0.0), figures.get("cost", 0.0)
    if price and cost:
        left = number(figures.get("task", 0.0) - price * cost)
        yield f"Minus the price of tools: lambda {number(price)} x cost {number(cost)} = {left}"
    if violation := figures.get("violation"):  # without a budget, nothing violates it
        yield f"The cost is {number(cost)}; the budget is {number(cost - violation)} per answer."


def _parsed(
    request: Mapping[str, Any], score: Mapping[str, Any], truth: GroundTruth
) -> Iterator[Part]:
    options = ToolsOptions.model_validate(request.get("options") or {})
    answer = parse_answer(request["response"] or "", options)
    correct = request["ground_truth"]
    yield Text("What the policy wrote", request["response"] or "")
    yield Text("The correct answer", correct if isinstance(correct, str) else json.dumps(correct))
    tags = _tags(truth.blocks) if truth.has_tags else "any"
    yield f"Tags of the answer: {_tags(answer.blocks)}; of the correct one: {tags}"
    if truth.has_tags and not answer.is_clean:
        yield "  Something is outside of the tags, nested, not closed, or a call cannot be parsed."
    yield f"Calls of the answer: {len(answer.calls)}; of the correct one: {len(truth.calls)}"
    calls = list(_calls(answer.calls, truth.calls, options, score))
    for what in ("missing", "not expected"):
        for call in [each["call"] for each in calls if each["state"] == what][:_MAX_CALLS]:
            yield f"  {what}: {quoted(call)}"
    yield Table("Calls", calls)


def _calls(
    calls: Iterable[ToolCall],
    expected: Iterable[ToolCall],
    options: ToolsOptions,
    score: Mapping[str, Any],
) -> Iterator[dict[str, str]]:
    """Yield the calls of an answer in order, then those of the correct answer that it lacks.

    Those of the answer have the family of their tool, and their part of the answer's cost.
    """
    families = {
        name: family for family, tools in (score.get("tools") or {}).items() for name in tools
    }
    missing, paid = [*expected], set()
    for call in calls:
        family = families.get(reported_name(call.name), "other")
        # What is paid for once, unless each call costs.
        use = "any_tool" if options.cost == "any_tool" else family
        is_free = use in paid and options.cost != "calls"
        paid.add(use)
        right = (each for each in missing if strict_correctness([call], [each]) == MAX_CORRECTNESS)
        if wanted := next(right, None):
            missing.remove(wanted)
        cost = 0.0 if is_free else getattr(options.cost_weights, use, 0.0)
        state = "expected" if wanted else "not expected"
        yield {"call": _call(call), "state": state, "family": family, "cost": number(cost)}
    for call in missing:
        yield {"call": _call(call), "state": "missing", "family": "", "cost": ""}


def _tags(blocks: tuple[str, ...]) -> str:
    return ", ".join(blocks) or "none"


def _call(call: ToolCall) -> str:
    if not call.name:
        return "what cannot be parsed"
    parameters = sorted((name, _text(value)) for name, value in call.parameters)
    return f"{call.name}({', '.join(f'{name}={value}' for name, value in parameters)})"


def _text(value: Any) -> str:
    """Return a value of a parsed call as JSON; see `ToolCall`."""
    match value:
        case ("list", *items):
            return f"[{', '.join(map(_text, items))}]"
        case ("dict", pairs):
            return f"{{{', '.join(f'{name}: {_text(each)}' for name, each in pairs)}}}"
        case ("null",):
            return "null"
        case ("bool" | "number", text):
            return str(text)
        case _:
            return json.dumps(value)
