"""Ground truths of the tools service: the forms that data sets have, as one text."""

import json
import re
from collections.abc import Iterator
from typing import Any

from .truth import given, parsed, plain, truth_of_row

_TAG = re.compile("<(?:think|tool_call|response)>")
_FORMS = (
    "give a correct answer with <think>, <tool_call> or <response>; or its calls, also as JSON: "
    '{"name": …, "arguments": …}, {"function": …}, a message with `tool_calls`, BFCL\'s '
    '{"FUNCTION": {"ARGUMENT": [allowed values]}}, NeMo Gym\'s `expected_action`, a list of these'
)


def truth_text(truth: Any) -> str:
    """Return a ground truth as text: tags as they are, and calls as a JSON list in one form.

    It may be in a row. A null in an object is missing, as Parquet files have one for each key of
    other rows. In a text it is a value.

    Raises:
        ValueError: It has no known form.
    """
    try:
        found = parsed(truth) if isinstance(truth, str) else plain(truth, nulls=False)
        while isinstance(found, dict) and (inner := parsed(truth_of_row(found))) != found:
            found = inner
        if isinstance(found, str) and _TAG.search(found):
            return found
        return json.dumps([*_calls(found)], ensure_ascii=False)
    except (RecursionError, TypeError) as error:
        raise ValueError(f"{_FORMS}: {error}") from None


def choices_of(call: Any) -> dict[str, Any] | None:
    """Return the name and parameters of a call in the form of BFCL; None of any other.

    A parameter is a list of the values that are right, with "" if it may be missing.
    """
    match [*call.items()] if isinstance(call, dict) else []:
        case [(name, dict(found))] if name not in ("parameters", "arguments"):
            is_of_bfcl = all(isinstance(each, list) for each in found.values())
            return {"name": name, "parameters": found} if is_of_bfcl else None
    return None  # also a call without a name


def _calls(truth: Any) -> Iterator[dict[str, Any]]:
    """Yield the calls of a truth, each with `name` and `parameters`, or in the form of BFCL."""
    found = parsed(truth)
    match given(found) if isinstance(found, dict) else found:
        case [*calls] | {"tool_calls": calls} | {"type": "function_call_batch", "calls": calls}:
            for call in parsed(calls):
                yield from _calls(call)
        case {"function_call": call} | {"function": {"name": str()} as call}:
            yield from _calls(call)
        case {"name": str(name), **fields}:
            arguments = parsed(fields.get("parameters", fields.get("arguments")))
            yield {"name": name, "parameters": {} if arguments in ("", None) else arguments}
        case {"role": "assistant"} | {"type": "message"}:
            return  # which calls no tool
        case call if choices_of(call):
            yield call
        case _:
            raise ValueError(_FORMS)
