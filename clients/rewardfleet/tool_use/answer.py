"""Parsing of answers and ground truths: `<think>`, `<tool_call>` and `<response>`.

The text of a policy is always parsed: what is malformed is part of the result, never an error. The
time is linear in the text.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from rewardfleet.wire.errors import InvalidRequest

#: Limit on the tool calls of a ground truth.
MAX_GROUND_TRUTH_CALLS = 64

_TAG = re.compile(r"<(/?)(think|tool_call|response)>")
#: What chat templates put after an answer.
_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|endoftext|>", "</s>")
_DECODER = json.JSONDecoder()
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,39})(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?")
_SPACE = re.compile(r"[\s,]*")


class Call(NamedTuple):
    """A tool call, in a form in which equal calls are equal.

    Attributes:
        name: The tool; empty if the call cannot be parsed.
        parameters: Names and values of its parameters; see `canonical`.
        keys: The names alone.
    """

    name: str
    parameters: frozenset[tuple[str, Any]]
    keys: frozenset[str]

    @property
    def weight(self) -> int:
        """1 for its name, 1 for the names of its parameters, and 1 for each of their values."""
        return 2 + len(self.parameters)


#: A call that cannot be parsed. It counts as the use of a tool.
MALFORMED = Call("", frozenset(), frozenset())


@dataclass(frozen=True)
class Answer:
    """A parsed answer.

    Attributes:
        blocks: The tags outside of others, in order.
        calls: The tool calls outside of `<think>`, `MALFORMED` for what cannot be parsed.
        think: The text in `<think>`.
        is_clean: Whether all tags are closed and not nested, nothing is outside of them, and all
            tool calls can be parsed.
    """

    blocks: tuple[str, ...]
    calls: tuple[Call, ...]
    think: str
    is_clean: bool


def parse_answer(text: str) -> Answer:
    """Parse an answer of a policy, whatever it contains."""
    text = _stripped(text)
    blocks: list[str] = []
    calls: list[Call] = []
    think, is_clean, outside = "", True, 0
    for name, start, end, after, is_closed in _blocks(text):
        is_clean = is_clean and is_closed and not text[outside : start - len(name) - 2].strip()
        blocks.append(name)
        content = text[start:end]
        if name == "think":
            think = think or content
        elif name == "tool_call":
            found = list(_calls(content)) if is_closed else [MALFORMED]
            is_clean = is_clean and bool(found) and MALFORMED not in found
            calls += found
        else:
            nested = _nested_calls(content)
            is_clean = is_clean and not nested and not _TAG.search(content)
            calls += nested
        outside = after
    is_clean = is_clean and not text[outside:].strip()
    return Answer(tuple(blocks), tuple(calls), think, is_clean)


def _stripped(text: str) -> str:
    text = text.strip()
    for end in _END_OF_TURN:
        text = text.removesuffix(end).rstrip()
    return text


def _blocks(text: str) -> Iterator[tuple[str, int, int, int, bool]]:
    """Yield name, start and end of the content, start of the rest, and whether it is closed.

    If `</think>` is not opened, the template of the chat did so: all before it is its content.
    """
    position, end = 0, text.find("</think>")
    if end >= 0 and "<think>" not in text[:end]:
        position = end + len("</think>")
        yield "think", 0, end, position, False
    while opening := _TAG.search(text, position):
        name = opening[2]
        if opening[1]:  # a closing tag that closes nothing
            yield "", opening.end(), opening.end(), opening.end(), False
            position = opening.end()
            continue
        closing = text.find(f"</{name}>", opening.end())
        if closing < 0:
            yield name, opening.end(), len(text), len(text), False
            return
        position = closing + len(name) + 3
        yield name, opening.end(), closing, position, True


def _nested_calls(content: str) -> list[Call]:
    """Return the calls of the `<tool_call>` blocks in another block."""
    if "<tool_call>" not in content:
        return []
    parts = content.split("<tool_call>")[1:]
    return [call for part in parts for call in _calls(part.partition("</tool_call>")[0])]


def _calls(content: str) -> Iterator[Call]:
    """Yield the calls in a block: JSON objects in lines, over several lines, or in one array."""
    position = _SPACE.match(content).end()  # type: ignore[union-attr] # it matches everywhere
    while position < len(content):
        try:
            value, position = _DECODER.raw_decode(content, position)
        except (ValueError, RecursionError):
            yield MALFORMED
            return
        position = _SPACE.match(content, position).end()  # type: ignore[union-attr] # likewise
        for each in value if isinstance(value, list) else [value]:
            yield _call(each)


def _call(value: Any) -> Call:
    """Return a decoded call; `MALFORMED` if it has no name, or no object of parameters."""
    if not isinstance(value, dict):
        return MALFORMED
    name, parameters = value.get("name"), value.get("parameters", value.get("arguments", {}))
    try:
        if isinstance(parameters, str):  # as OpenAI's interface has it
            parameters = json.loads(parameters)
        if not (isinstance(name, str) and name and isinstance(parameters, dict)):
            return MALFORMED
        values = frozenset((key, canonical(each)) for key, each in parameters.items())
        return Call(name, values, frozenset(parameters))
    except (ValueError, RecursionError):
        return MALFORMED


def canonical(value: Any) -> Any:
    """Return a value such that equal parameters are equal and hashable.

    A number or a truth value equals its JSON text: `3`, `3.0` and `"3"` are equal, as tools convert
    them. `"007"` is a text only. `true` and `1` differ.

    Raises:
        RecursionError: It is nested too deep.
    """
    if isinstance(value, str):
        return _of_text(value)
    if isinstance(value, bool):
        return ("bool", "true" if value else "false")
    if isinstance(value, list):
        return ("list", *map(canonical, value))
    if isinstance(value, dict):
        return ("dict", frozenset((key, canonical(each)) for key, each in value.items()))
    return ("null",) if value is None else value


def _of_text(text: str) -> Any:
    if text in {"true", "false"}:
        return ("bool", text)
    if not _NUMBER.fullmatch(text):
        return text
    return float(text) if {".", "e", "E"} & set(text) else int(text)


@dataclass(frozen=True)
class GroundTruth:
    """A parsed ground truth.

    Attributes:
        blocks: The tags that a correct answer has, in order.
        calls: Its tool calls.
        raw_calls: The same as they were written.
    """

    blocks: tuple[str, ...]
    calls: tuple[Call, ...]
    raw_calls: list[Any]


@lru_cache(maxsize=256)  # the answers of a group share one
def parse_ground_truth(text: str) -> GroundTruth:
    """Parse the ground truth of a row: the text of a correct answer, as ToolRL's datasets have it.

    Raises:
        InvalidRequest: It has none of the tags, a tag is not closed or repeated, a tool call is not
            a JSON object with a name and parameters, or it has too many.
    """
    names = {name for name in ("think", "tool_call", "response") if f"<{name}>" in text}
    if not names:
        raise InvalidRequest(
            "ground_truth: contains none of <think>, <tool_call> and <response>; give the text of "
            "a correct answer"
        )
    blocks = [block for block in _blocks(text.strip()) if block[0] != "think"]
    for name, _, _, _, is_closed in blocks:
        if not is_closed:
            raise InvalidRequest(f"ground_truth: <{name}> is not closed, or not opened")
    found = [name for name, *_ in blocks]
    if len(set(found)) < len(found):
        raise InvalidRequest("ground_truth: give <tool_call> and <response> at most once each")
    contents = {name: text.strip()[start:end] for name, start, end, *_ in blocks}
    raw = _raw_calls(contents["tool_call"]) if "tool_call" in contents else []
    return GroundTruth(("think", *found), tuple(map(_call, raw)), raw)


def _raw_calls(content: str) -> list[Any]:
    """Return the calls of a ground truth.

    Raises:
        InvalidRequest: One is malformed, or there are too many or none.
    """
    calls: list[Any] = []
    position = _SPACE.match(content).end()  # type: ignore[union-attr] # it matches everywhere
    while position < len(content):
        try:
            value, position = _DECODER.raw_decode(content, position)
        except (ValueError, RecursionError) as error:
            reason = error.args[0] if isinstance(error, ValueError) else "nested too deep"
            raise InvalidRequest(
                f"ground_truth: <tool_call>: not JSON: {reason} ({content[position:][:60]!r})"
            ) from None
        position = _SPACE.match(content, position).end()  # type: ignore[union-attr] # likewise
        calls += value if isinstance(value, list) else [value]
        if len(calls) > MAX_GROUND_TRUTH_CALLS:
            raise InvalidRequest(
                f"ground_truth: <tool_call>: give at most {MAX_GROUND_TRUTH_CALLS} tool calls"
            )
    for call in calls:
        if _call(call) == MALFORMED:
            raise InvalidRequest(
                "ground_truth: <tool_call>: each call is an object with a `name` and `parameters` "
                f"(got {content.strip()[:100]!r})"
            )
    if not calls:
        raise InvalidRequest("ground_truth: <tool_call> is empty")
    return calls
