"""The answers that are tried on a row of the answers and the tools service."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rewardfleet.wire.answers import AnswersRequest
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.tool_truths import choices_of, truth_text
from rewardfleet.wire.tools import ToolsRequest

from .probes import REFERENCE, Answers, Probe, Tried

_NOTHING = Tried(Probe.ANYTHING, "I cannot say.", "it says nothing")
#: The formats of a final answer.
_FINAL = (r"So it is \boxed{{{}}}.", "{}", "The final answer is {}.")
#: References that are tried, of several right ones.
_MOST = 3


def final_answers(request: AnswersRequest, row: Mapping[str, Any]) -> Answers:  # noqa: ARG001 - as of all services
    """Return the answers that are tried on a row: the reference in several formats."""
    own: list[Tried] = []
    for reference in request.references[:_MOST]:
        if reference is None:  # a schema alone
            continue
        text = reference if isinstance(reference, str) else json.dumps(reference)
        if r"\boxed" in text or "####" in text:
            own.append(Tried(Probe.SOLUTION, text))
        else:
            own += [Tried(Probe.SOLUTION, each.format(text), REFERENCE) for each in _FINAL]
    return Answers([*own, _NOTHING])


def tool_answers(request: ToolsRequest, row: Mapping[str, Any]) -> Answers:  # noqa: ARG001 - as of all services
    """Return the answers that are tried on a row: the right calls in several formats."""
    own = [*_written(request.ground_truth)]
    return Answers([*(Tried(Probe.SOLUTION, each, REFERENCE) for each in own), _NOTHING])


def _written(truth: Any) -> Iterator[str]:
    try:
        text = truth_text(truth)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
    if text.lstrip()[:1] != "[":
        yield text
        return
    calls = [json.dumps(_call(each), ensure_ascii=False) for each in json.loads(text)]
    if not calls:
        yield "<think>No tool helps.</think>\n<response>I cannot do that.</response>"
        yield "I cannot do that."
        return
    together = "\n".join(calls)
    yield f"<think>I call it.</think>\n<tool_call>\n{together}\n</tool_call>"
    yield "\n".join(f"<tool_call>\n{each}\n</tool_call>" for each in calls)


def _call(call: Any) -> dict[str, Any]:
    """Return a call; of BFCL's allowed values, the first one."""
    found = choices_of(call)
    if found is None:
        return {"name": call["name"], "arguments": call["parameters"]}
    return {"name": found["name"], "arguments": _chosen(found["parameters"])}


def _chosen(value: Any) -> Any:
    """Return a value with the first allowed value of each argument in it, if it must be there."""
    if isinstance(value, list):
        return [_chosen(each) for each in value]
    if not isinstance(value, dict):
        return value
    allowed = {name: v if isinstance(v, list) else [v] for name, v in value.items()}
    return {name: _chosen(v[0]) for name, v in allowed.items() if v and "" not in v}
