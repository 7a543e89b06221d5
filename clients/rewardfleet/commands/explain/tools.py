"""The story of the score of an answer that calls tools."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from rewardfleet.tool_use import (
    GroundTruth,
    ParsedAnswer,
    ToolCall,
    parse_answer,
    parse_ground_truth,
)
from rewardfleet.wire.errors import InvalidRequest

from .texts import number, quoted

#: Calls that are shown.
_MAX_CALLS = 10


def story_of_answer(request: Mapping[str, Any], score: Mapping[str, Any]) -> Iterator[str]:
    """Yield which tags and calls were found, and which of them differ from the correct answer."""
    if "response" in request:
        try:
            truth = parse_ground_truth(request["ground_truth"])
        except InvalidRequest:
            truth = None
        if truth is not None:
            yield from _parsed(parse_answer(request["response"]), truth)
    components = score.get("components") or {}
    if not components:
        return
    parts = (f"{name} {number(components.get(name, 0.0))}" for name in _TASK)
    yield f"Decided by: {' + '.join(parts)} = task {number(components.get('task', 0.0))}"
    options = request.get("options") or {}
    if options.get("variant", "strict") == "strict":
        yield "The most is 1 for the format, and 3 for the calls if the correct answer has some."
    price, cost = components.get("lambda", 0.0), components.get("cost", 0.0)
    if price and cost:
        yield f"Minus the price of tools: lambda {number(price)} x cost {number(cost)}"


_TASK = ("format", "correctness", "length")


def _parsed(answer: ParsedAnswer, truth: GroundTruth) -> Iterator[str]:
    yield f"Tags of the answer: {_tags(answer.blocks)}; of the correct one: {_tags(truth.blocks)}"
    if not answer.is_clean:
        yield "  Something is outside of the tags, nested, not closed, or a call cannot be parsed."
    yield f"Calls of the answer: {len(answer.calls)}; of the correct one: {len(truth.calls)}"
    given, wanted = Counter(answer.calls), Counter(truth.calls)
    for what, calls in (("missing", wanted - given), ("not expected", given - wanted)):
        for call in list(calls.elements())[:_MAX_CALLS]:
            yield f"  {what}: {quoted(_call(call))}"


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
