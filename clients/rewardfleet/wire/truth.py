"""Rows of data sets: which columns have the ground truth, and which values are missing."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

#: Columns with a ground truth in rows of trainers; the first that a row has counts.
TRUTH_COLUMNS = (
    "tests", "ground_truth", "expected_action", "expected_answer", "label", "reference_answer",
    "verification_info", "unit_tests", "answer",
)  # fmt: skip
#: Columns that contain a row with such columns.
NESTED_COLUMNS = ("verifier_metadata", "reward_model", "reward_spec", "metadata")
#: Those of all these that hold something else in rows of data sets.
AMBIGUOUS_COLUMNS = frozenset(
    {"expected_answer", "label", "reference_answer", "answer", "metadata"}
)

#: Columns that contain tests of any form, or a row; the first that a row has counts.
CONTAINERS = tuple(
    name
    for name in dict.fromkeys(("tests", "test", *TRUTH_COLUMNS, *NESTED_COLUMNS))
    if name not in AMBIGUOUS_COLUMNS
)

#: How JSON begins. To find that out by the parser's error takes ten times as long.
_JSON = re.compile(r'\s*[\[{"\-\dtfnNI]')


def is_missing(value: Any) -> bool:
    """Return whether a value is null, or NaN, as pandas has it for a null among numbers."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def given(row: Mapping[str, Any], names: Iterable[str] | None = None) -> dict[str, Any]:
    """Return the columns of a row that are not missing; of some names, or all."""
    names = row if names is None else names
    return {name: row[name] for name in names if name in row and not is_missing(row[name])}


def parsed(value: Any) -> Any:
    """Return what a text is the JSON of; the value itself if it is no text, or not JSON."""
    if not (isinstance(value, str) and _JSON.match(value)):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def plain(value: Any, *, nulls: bool = True) -> Any:
    """Return dicts and lists for all that is like them, such as arrays, with or without nulls."""
    if isinstance(value, Mapping):
        columns = value if nulls else given(value)
        return {name: plain(each, nulls=nulls) for name, each in columns.items()}
    if hasattr(value, "tolist"):  # numpy's arrays and numbers
        value = value.tolist()
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    return [plain(each, nulls=nulls) for each in value] if is_list else value


def truth_of_row(row: Mapping[str, Any]) -> Any:
    """Return the ground truth in a row; all columns if none is known to have it."""
    rows = list(_rows(row))
    for each in rows:
        for name in given(each, TRUTH_COLUMNS):
            # `tests` are of this project; without its name, `unit_tests` may be those of others.
            return dict(each) if name in {"tests", "unit_tests"} else each[name]
    return {name: value for each in reversed(rows) for name, value in each.items()}


def objects_around_tests(row: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the objects that lead to the tests of a row, and those if they are one."""
    found = parsed(row)
    while isinstance(found, Mapping):
        yield found
        found = parsed(next(iter(given(found, CONTAINERS).values()), None))


def _rows(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a row, and the rows within it."""
    yield row
    for name in NESTED_COLUMNS:
        nested = parsed(row.get(name))
        if isinstance(nested, dict):
            yield from _rows(nested)


# Ground truths of the tools service

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
