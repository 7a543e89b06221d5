"""The text of a completion: what a trainer has as a text, messages, parts of content, or calls.

Messages and parts are mappings, or objects with attributes.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from .reading import read, without_end_tokens

#: Types of content parts with thoughts, or with what a tool answered.
_NO_ANSWER = ("think", "reason", "tool")
_POLICY = ("assistant", "model")  # no set, as a role may be of any type
#: Fields with what a policy wrote: an answer, calls, thoughts, or a refusal.
_WRITTEN = (
    "code", "content", "text", "tool_calls", "function_call", "reasoning_content", "reasoning",
    "thinking", "refusal",
)  # fmt: skip


def is_null(completion: Any) -> bool:
    """Return whether a policy wrote nothing, as its rollout was aborted; "" was written.

    None and an empty list are null. So are messages if there is none of the assistant, or if those
    of its last turn have neither content nor calls, thoughts or a refusal.
    """
    if completion is None or isinstance(completion, str | Iterator):  # which is read once
        return completion is None
    if (items := _items(completion)) is not None:
        turns = groupby(items, lambda item: field_of(item, "role") in (None, *_POLICY))
        own = [list(turn) for is_own, turn in turns if is_own]
        return not own or all(map(is_null, own[-1]))
    fields = [field_of(completion, name, default=completion) for name in _WRITTEN]
    found = [each for each in fields if each is not completion]
    is_message = bool(found) or field_of(completion, "role") is not None
    return is_message and all(map(is_null, found))


def completion_text(completion: Any) -> str:
    """Return the text of a completion, without the special tokens at its end.

    Args:
        completion: A text; a message; a list of messages, of which the last turn of the assistant
            counts that has content: all its messages in a row; a list of content parts, of which
            those with `text` count, except thoughts; or `{"code": …}`. One without content is the
            empty text; `is_null` says whether it is an answer.

    Raises:
        TypeError: It is none of these. As a text, it would be scored as what nobody wrote.
    """
    return without_end_tokens(_text(completion))


def answer_text(completion: Any) -> str:
    r"""Return the text of an answer that may call tools.

    It has, in their order, the contents of all messages of the assistant, each as
    `completion_text` reads it, and their tool calls. Calls without content between them are one
    block, as models write it:

        <tool_call>\n{"name": …, "parameters": …}\n…\n</tool_call>

    A call is an object of `tool_calls`, with `name` and `arguments`, or with a `function` that has
    them; or that of a message's `function_call`. Arguments are an object, or its JSON as text. A
    malformed call is written as it is, so that it is judged as one.

    Raises:
        TypeError: The completion is none of the forms of `completion_text`.
    """
    items = _items(completion)
    messages = [completion] if items is None else items
    if messages and all(field_of(item, "role") is not None for item in messages):
        return _joined(item for item in messages if field_of(item, "role") in _POLICY)
    if items is None and any(_calls_of(completion)):  # a model's output
        return _joined(messages)
    return completion_text(completion if items is None else items)


def field_of(item: Any, name: str, default: Any = None) -> Any:
    """Return a field of a message: a mapping, or an object with attributes."""
    is_mapping = isinstance(item, Mapping)
    return item.get(name, default) if is_mapping else getattr(item, name, default)


def _items(value: Any) -> list[Any] | None:
    """Return the items of a list; None for anything else, such as a model, which has fields."""
    is_list = isinstance(value, Iterable) and not isinstance(value, str | Mapping)
    return list(value) if is_list and not hasattr(value, "model_fields") else None


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    items = _items(value)
    if items is None and field_of(value, "role") is None:
        for name in ("code", "content"):  # of an agent's answer, of a model's output
            if (found := field_of(value, name, default=value)) is not value:
                return _text(found)
    messages = [value] if items is None else items
    if all(field_of(item, "role") is not None for item in messages):
        return _last_turn(messages)
    if items is not None and all(map(_is_part, items)):
        return _in_lines(
            _text(field_of(part, "text"))
            for part in items
            if not str(field_of(part, "type")).startswith(_NO_ANSWER)
        )
    forms = 'a text, messages, content parts or {"code": …}'
    raise TypeError(f"a completion is {forms} (got {value!r:.60})")


def _last_turn(messages: list[Any]) -> str:
    turns = groupby(messages, lambda item: field_of(item, "role") in _POLICY)
    contents = [[field_of(each, "content") for each in turn] for mine, turn in turns if mine]
    # A turn without content only calls tools, which is no answer.
    answers = [each for each in contents if any(content is not None for content in each)]
    return _in_lines(map(_text, answers[-1])) if answers else ""


def _in_lines(texts: Iterable[str]) -> str:
    """Return texts as one, each in lines of its own: the fences of two would become one."""
    joined = ""
    for text in filter(None, texts):
        is_apart = not joined or joined.endswith("\n") or text.startswith("\n")
        joined += text if is_apart else f"\n{text}"
    return joined


def _is_part(item: Any) -> bool:
    named = field_of(item, "type") is not None or field_of(item, "text") is not None
    return named and field_of(item, "content") is None  # else a message of an unknown role


def _joined(messages: Iterable[Any]) -> str:
    parts = [part for message in messages for part in _parts_of(message)]
    if len(parts) == 1 and not parts[0][0]:
        return parts[0][1]
    lines: list[str] = []
    is_open = False
    for is_call, group in groupby(parts, lambda part: part[0]):
        if is_call:
            # Marks in a text do not change whose the calls after it are.
            lines += ["<|im_start|>assistant"] if is_open else []
            lines += ["<tool_call>", *(text for _, text in group), "</tool_call>"]
            is_open = False
            continue
        for _, text in group:
            reading = read(text, code=True)
            is_plain = reading.last.answer.strip() == text.strip()
            lines += ["<|im_start|>assistant"] if is_open or (lines and not is_plain) else []
            lines.append(text.strip())
            is_open = not is_plain and (len(reading.turns) != 1 or reading.last.cut)
    return "\n".join(lines)


def _parts_of(message: Any) -> Iterator[tuple[bool, str]]:
    """Yield the content of a message and its calls, each with whether it is a call."""
    text = completion_text(field_of(message, "content"))
    if text.strip():
        yield False, text
    for call in _calls_of(message):
        yield True, _call_text(call)


def _calls_of(message: Any) -> Iterator[Any]:
    calls = field_of(message, "tool_calls")
    if calls is None:
        calls = field_of(message, "function_call")  # of older interfaces
    items = _items(calls)
    yield from ([] if calls is None else [calls]) if items is None else items


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
    parameters = {} if arguments is None else arguments
    try:
        call = {"name": field_of(function, "name"), "parameters": parameters}
        line = json.dumps(call, default=str)
    except (TypeError, ValueError, RecursionError):
        line = "null"  # a malformed call
    # Tags in arguments are not those of the answer: `</think>` would hide the call.
    return line.replace("<", "\\u003c")
