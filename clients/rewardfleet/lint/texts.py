"""The answers that are tried on a row of the answers and the tools service."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rewardfleet.wire.answers import AnswersRequest
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.tools import ToolsRequest
from rewardfleet.wire.truth import choices_of, truth_text

from .findings import Plan, Tried

_NOTHING = Tried("anything-passes", "I cannot say.", "it says nothing")
#: The formats of a final answer.
_FINAL = (r"So it is \boxed{{{}}}.", "{}", "The final answer is {}.")


def final_answers(request: AnswersRequest, _: Mapping[str, Any]) -> Plan:
    """Return the reference in several formats; as it is, if it is a solution."""
    reference = request.references[0]
    if reference is None:  # a schema alone
        return Plan([_NOTHING])
    text = reference if isinstance(reference, str) else json.dumps(reference)
    if r"\boxed" in text or "####" in text:
        return Plan([Tried("solution", text), _NOTHING])
    return Plan([*(Tried("solution", e.format(text), "the reference") for e in _FINAL), _NOTHING])


def tool_answers(request: ToolsRequest, _: Mapping[str, Any]) -> Plan:
    """Return the right calls in several formats.

    Raises:
        InvalidRequest: The truth cannot be read.
    """
    try:
        text = truth_text(request.ground_truth)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
    texts = _written(json.loads(text)) if text.startswith("[") else [text]
    return Plan([*(Tried("solution", each, "the reference") for each in texts), _NOTHING])


def _written(calls: list[Any]) -> Iterator[str]:
    lines = [json.dumps(_call(each), ensure_ascii=False) for each in calls]
    if lines:
        together = "\n".join(lines)
        yield f"<think>I call it.</think>\n<tool_call>\n{together}\n</tool_call>"
        yield "\n".join(f"<tool_call>\n{each}\n</tool_call>" for each in lines)


def _call(call: Any) -> dict[str, Any]:
    """Return a call; of BFCL's allowed values, the first one."""
    found = choices_of(call)
    arguments = call["parameters"] if found is None else _chosen(found["parameters"])
    return {"name": (found or call)["name"], "arguments": arguments}


def _chosen(value: Any) -> Any:
    """Return a value with the first allowed value of each argument in it that must be there."""
    if isinstance(value, list):
        return [_chosen(each) for each in value]
    if not isinstance(value, dict):
        return value
    allowed = {name: v if isinstance(v, list) else [v] for name, v in value.items()}
    return {name: _chosen(v[0]) for name, v in allowed.items() if v and "" not in v}
