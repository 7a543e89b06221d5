"""The text of an answer of a policy that may call tools, whatever form a trainer has it in."""

import contextlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.policy_text import text_of
from rewardfleet.wire.truth import choices_of, parsed, truth_text

from .answer import parse_ground_truth


def answer_of(completion: Any, ground_truth: Any) -> str | None:
    """Return the text of a completion, with its calls as `answer_text` writes them; None if null.

    A null in an object of arguments is absent, unless it is null in a right call of the same tool:
    tables give each object the keys of all rows.

    Raises:
        InvalidRequest: The completion has no text that can be read.
    """
    if not isinstance(completion, str):
        with contextlib.suppress(RecursionError):  # what is nested so deep is a malformed call
            completion = _without_added(completion, _right_nulls(ground_truth))
    return text_of(completion, with_calls=True)


def _without_added(value: Any, kept: Collection[Any], tool: str = "") -> Any:
    """Return messages without nulls in the objects that are arguments of calls to a tool.

    Those are kept of tools, and names of their arguments, that are null in the right calls.
    """
    if isinstance(value, Mapping):
        own = str(value.get("name") or "")  # which a policy wrote: it may be anything
        return {
            name: _without_added(each, kept, tool or (own if name == "arguments" else ""))
            for name, each in value.items()
            if not tool or each is not None or (tool, name) in kept
        }
    if isinstance(value, list | tuple | np.ndarray):
        return [_without_added(each, kept, tool) for each in value]
    return value


def _right_nulls(truth: Any) -> set[tuple[str, str]]:
    try:
        calls = parse_ground_truth(truth_text(truth)).raw_calls
    except (InvalidRequest, ValueError):  # the request says so
        return set()
    found = [choices_of(each) or each for each in calls]
    return {
        (each["name"], name)
        for each in found
        for name in _null_names(parsed(each.get("parameters", each.get("arguments"))))
    }


def _null_names(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _null_names(each, key)
    elif isinstance(value, list):  # of allowed values, or a value
        for each in value:
            yield from _null_names(each, name)
    elif value is None:
        yield name
