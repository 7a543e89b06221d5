"""The text of an answer whose tool calls are fields of messages, as the tools service reads it."""

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple

from pydantic import BaseModel

from .query import completion_text, field_of


class _Part(NamedTuple):
    """A part of an answer."""

    is_call: bool
    text: str


def answer_text(completion: Any) -> str:
    r"""Return the text of an answer that may call tools.

    It has, in their order, the contents of the assistant's messages after the last one of a user,
    each as `completion_text` reads it, and their tool calls. Calls without content between them are
    one block, as models write it:

        <tool_call>\n{"name": …, "parameters": …}\n…\n</tool_call>

    A call is an object of `tool_calls`, with `name` and `arguments`, or with a `function` that has
    them; or that of a message's `function_call`. Arguments are an object, or its JSON as text. A
    malformed call is written as it is, so that it is judged as one.

    Args:
        completion: As for `completion_text`.

    Raises:
        InvalidRequest: The completion is none of its forms.
    """
    is_list = isinstance(completion, Iterable) and not isinstance(
        completion, str | Mapping | BaseModel
    )
    items = list(completion) if is_list else [completion]
    roles = [field_of(item, "role") for item in items]
    if items and None not in roles:
        since = len(roles) - roles[::-1].index("user") if "user" in roles else 0
        return _joined(
            items[place] for place in range(since, len(items)) if roles[place] == "assistant"
        )
    if not is_list and any(_calls_of(completion)):  # a model's output
        return _joined(items)
    return completion_text(items if is_list else completion)


def _joined(messages: Iterable[Any]) -> str:
    parts = [part for message in messages for part in _parts_of(message)]
    if len(parts) == 1 and not parts[0].is_call:
        return parts[0].text
    lines: list[str] = []
    for is_call, group in groupby(parts, lambda part: part.is_call):
        texts = [part.text if is_call else part.text.strip() for part in group]
        lines += ["<tool_call>", *texts, "</tool_call>"] if is_call else texts
    return "\n".join(lines)


def _parts_of(message: Any) -> Iterator[_Part]:
    text = completion_text(field_of(message, "content"))
    if text.strip():
        yield _Part(False, text)
    for call in _calls_of(message):
        yield _Part(True, _call_text(call))


def _calls_of(message: Any) -> Iterator[Any]:
    calls = field_of(message, "tool_calls")
    if calls is None:
        calls = field_of(message, "function_call")  # of older interfaces
    if isinstance(calls, Iterable) and not isinstance(calls, str | Mapping | BaseModel):
        yield from calls
    elif calls is not None:
        yield calls


def _call_text(call: Any) -> str:
    """Return a call as a line of JSON."""
    function = field_of(call, "function", default=call)
    arguments = field_of(function, "arguments")
    if isinstance(arguments, str):
        try:
            decoded = json.loads(arguments)
        except (ValueError, RecursionError):
            decoded = None
        arguments = decoded if isinstance(decoded, dict) else arguments
    given = {
        "name": field_of(function, "name"),
        "parameters": {} if arguments is None else arguments,
    }
    try:
        line = json.dumps(given, default=str)
    except (TypeError, ValueError, RecursionError):
        line = "null"  # a malformed call
    # Tags in arguments are not those of the answer: `</think>` would hide the call.
    return line.replace("<", "\\u003c")
