"""Parsing of answers and ground truths: `<think>`, `<tool_call>` and `<response>`.

The text of a policy is always parsed: what is malformed is part of the result, never an error. The
time is linear in the text.
"""

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

from rewardfleet.text import Thought, marks, read
from rewardfleet.text.reading import has_hint
from rewardfleet.wire.causes import ToolsCause
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.tools import ToolDescription, ToolsOptions
from rewardfleet.wire.truth import choices_of, parsed, truth_text

from .dialects import Untyped, decoded_text, take_calls

#: Limit on the tool calls of a ground truth.
_MAX_GROUND_TRUTH_CALLS = 64

_DEFAULT, _NO_THOUGHT = ToolsOptions(), Thought(0, 0, 0, 0)
#: A block, which ends with the text if nothing closes it; or a tag that closes nothing.
_BLOCK = re.compile(
    r"<(?P<name>think|tool_call|response)>(?P<content>[^<]*(?:<(?!/(?P=name)>)[^<]*)*)"
    r"(?P<end></(?P=name)>)?|</(?:think|tool_call|response)>"
)
_CALLS = re.compile(r"<tool_call>([^<]*(?:<(?!/tool_call>)[^<]*)*)(</tool_call>)?")
#: A thought and a block, or a block, without other marks that begin with `<`: most answers that
#: call tools are that.
_PLAIN = re.compile(
    rf"\s*(?:<think>({marks.TEXT})</think>\s*)?<tool_call>\s*+([{{[][^<]*)</tool_call>\s*"
)
#: The tag in a sentence: words follow in its line, and neither JSON nor the tags of other dialects.
_MENTION = re.compile(
    r"<tool_call>(?=[^\S\n]+[^\s{[<]|[^\w\s{[<])[^{[<]*+(?![{[]|<(?!/?(?:tool_call|response)>))"
    r"(?:</tool_call>)?"
)
_TAG = re.compile(f"{_MENTION.pattern}|{_CALLS.pattern}")
_DECODER = json.JSONDecoder()
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,39})(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?")
_SPACE = re.compile(r"[\s,]*")
#: Parameters that are nested deeper are malformed, wherever Python's own limit is.
_MAX_DEPTH = 100
#: Calls in longer blocks are not kept, in characters.
_MAX_KNOWN = 4_000
#: Integers below this are exact as floats, and hash as themselves.
_MAX_EXACT = 2**53


class ToolCall(NamedTuple):
    """A tool call, in a form in which equal calls are equal."""

    name: str  #: the tool; empty if the call cannot be parsed
    parameters: frozenset[tuple[str, Any]]  #: names and values of its parameters; see `_canonical`
    keys: frozenset[str]  #: the names alone
    has_choices: bool = False  #: whether each value is a list of those that are right, as in BFCL

    @property
    def weight(self) -> int:
        """1 for its name, 1 for the names of its parameters, and 1 for each of their values."""
        return 2 + len(self.parameters)


def by_name(calls: Iterable[ToolCall]) -> dict[str, list[ToolCall]]:
    """Return calls by the name of the tool, in order."""
    found: dict[str, list[ToolCall]] = {}
    for call in calls:
        found.setdefault(call.name, []).append(call)
    return found


#: A call that cannot be parsed. It counts as the use of a tool.
MALFORMED = ToolCall("", frozenset(), frozenset())


class ParsedAnswer(NamedTuple):
    """A parsed answer."""

    blocks: tuple[str, ...]  #: the tags outside of others, in order; calls of any dialect are one
    #: The tool calls outside of the first thought of each turn, `MALFORMED` for what cannot be
    #: parsed.
    calls: tuple[ToolCall, ...]
    think: str  #: the text in the first thought of each turn
    #: Whether all tags are closed and not nested, nothing is outside of them, and all tool calls
    #: can be parsed.
    is_clean: bool
    is_silent: bool  #: whether nothing is outside of these thoughts
    dialect: str | None = None  #: of the calls
    fault: ToolsCause | None = None  #: why a call that can be parsed is malformed or missing
    untyped: int = 0  #: how many values are `Untyped`


def parse_answer(
    text: str, options: ToolsOptions = _DEFAULT, tools: Iterable[ToolDescription] = ()
) -> ParsedAnswer:
    """Parse an answer of a policy, whatever it contains: all its turns, as if they were one.

    Args:
        options: `dialect` and `as_executed`.
        tools: Those with the types of values, for dialects that have none.
    """
    demanded = "hermes" if options.variant == "toolrl" else options.dialect
    plain = None if options.as_executed else _PLAIN.fullmatch(text)
    if plain and demanded in ("auto", "hermes") and not has_hint(text, marks.OTHER_HINTS):
        tags = ("tool_call",) if plain[1] is None else ("think", "tool_call")
        known = tuple(_calls_in(plain[2]))
        is_clean, dialect = bool(known) and MALFORMED not in known, "hermes" if known else None
        return ParsedAnswer(tags, known, plain[1] or "", is_clean, False, dialect)
    blocks: list[str] = []
    hermes: list[ToolCall] = []
    foreign: dict[str, list[Any]] = {}
    thoughts: list[str] = []
    is_clean, is_silent, fault = True, True, None
    for turn in read(text, code=True).turns:
        if turn.role not in {"assistant", "thought", "call", "end"}:
            continue
        # What follows the end of a turn is no answer, and an executor may run it.
        is_clean = is_clean and turn.role != "end" and not turn.unended
        thought = turn.thoughts[0] if turn.thoughts else _NO_THOUGHT
        before = turn.text[: thought.start]
        if "<tool_call>" in before or "<response>" in before:
            thought, before = _NO_THOUGHT, ""  # an executor runs what is in it
        after = turn.text[thought.end :]
        if thought.end:
            # An executor that skips one thought runs what is in a second one.
            is_whole = thought.start < thought.begin and thought.close < thought.end
            is_clean = is_clean and (is_whole or turn.role == "thought") and not before.strip()
            blocks.append("think")
            thoughts.append(turn.text[thought.begin : thought.close])
        after = take_calls(after, foreign, tools)
        if _MENTION.search(after):  # it may be in the arguments of a call
            after = _TAG.sub(lambda tag: "tool_call" if tag[1] is None else tag[0], after)
        is_silent = is_silent and not after.strip()
        names, is_tagged = _tags(after)
        blocks += names
        is_clean = is_clean and is_tagged
        others = [take_calls(part, foreign, tools) for part in (before, turn.unended) if part]
        for part in (after, *others):
            hermes += _calls(part)
            fault = fault or (_fault_of(part) if options.as_executed else None)
    think = "\n".join(thoughts)
    calls: dict[str, list[ToolCall]] = {"hermes": hermes} if hermes else {}
    calls |= {name: [*map(call_of, each)] for name, each in foreign.items()}
    own = demanded if demanded in calls else next(iter(calls), None)
    found = calls[own] if own and demanded in {"auto", own} and not fault else []
    if wrong := sum(map(len, calls.values())) - len(found):
        found = [*found, *[MALFORMED] * wrong]
        fault = fault or ToolsCause.OTHER_DIALECT
    elif options.as_executed and not own and any(each.name for each in parse_answer(think).calls):
        fault = ToolsCause.CALL_IN_THOUGHT
    has_calls = MALFORMED not in found and bool(found) == ("tool_call" in blocks)
    is_clean = is_clean and bool(blocks) and has_calls
    values = [value for call in found for _, value in call.parameters] if foreign else []
    untyped = sum(isinstance(value, Untyped) for value in values)
    return ParsedAnswer(
        tuple(blocks), tuple(found), think, is_clean, is_silent, own, fault, untyped
    )


def _fault_of(text: str) -> ToolsCause | None:
    """Return why vLLM runs no call in Hermes' dialect: each block has to have one object."""
    for content, _ in _CALLS.findall(text):
        values, _, error = _decoded(content)
        if len(values) > 1 or content.lstrip().startswith("["):
            return ToolsCause.SEVERAL_CALLS
        if not error and any(isinstance(each, dict) and "arguments" not in each for each in values):
            return ToolsCause.NO_ARGUMENTS
    return None


def _tags(text: str) -> tuple[list[str], bool]:
    """Return the tags of a text, and whether they are closed, not nested, and all there is."""
    names: list[str] = []
    is_clean, outside = True, 0
    for block in _BLOCK.finditer(text):
        # Engines strip the text at which they stop; `_calls` sees whether the call is whole.
        is_closed = bool(block["end"]) or block["name"] == "tool_call"
        is_clean = is_clean and is_closed and not text[outside : block.start()].strip()
        if is_clean and block["name"] != "tool_call":
            is_clean = not _BLOCK.search(block["content"])
        names.append(block["name"] or "")
        outside = block.end()
    return names, is_clean and not text[outside:].strip()


def _calls(text: str) -> list[ToolCall]:
    """Return the calls in all `<tool_call>` blocks, as an executor finds them: also nested ones."""
    blocks = _CALLS.findall(text)
    return [call for content, end in blocks for call in _calls_in(content, is_closed=bool(end))]


def _calls_in(content: str, *, is_closed: bool = True) -> list[ToolCall]:
    lines = content.strip().split("\n") if len(content) <= _MAX_KNOWN else [""]
    found = [call for line in lines if (call := _known_call(line))]
    if len(found) == len(lines):
        return found
    values, end, error = _decoded(content)
    if not is_closed and (error or not values):
        return [MALFORMED]  # a call that was cut
    calls = [*map(call_of, values)]
    if error:  # after which an executor that reads lines still runs calls
        found = [call for line in content[end:].split("\n")[1:] if (call := _call_in(line))]
        calls += [MALFORMED, *[call for call in found if call.name]]
    return calls


def _call_in(line: str) -> ToolCall | None:
    """Return the call that a line is; None if it is not a JSON object."""
    line = line.strip(" \t\r")
    try:
        value, end = _DECODER.raw_decode(line)
    except (ValueError, RecursionError):
        return None
    return call_of(value) if end == len(line) and isinstance(value, dict) else None


_known_call = lru_cache(maxsize=1024)(_call_in)  # the answers of a group repeat calls


def _decoded(content: str) -> tuple[list[Any], int, Exception | None]:
    """Return the values in a block, where what is malformed begins, and what is wrong with it.

    They are JSON objects in lines, over several lines, or in one array.
    """
    values: list[Any] = []
    position = _SPACE.match(content).end()  # type: ignore[union-attr] # it matches everywhere
    try:
        while position < len(content):
            value, position = _DECODER.raw_decode(content, position)
            values += value if isinstance(value, list) else [value]
            position = _SPACE.match(content, position).end()  # type: ignore[union-attr] # likewise
    except (ValueError, RecursionError) as error:
        return values, position, error
    return values, position, None


def call_of(value: Any) -> ToolCall:
    """Return a decoded call; `MALFORMED` if it has no name, or no object of parameters."""
    if not isinstance(value, dict):
        return MALFORMED
    name, parameters = value.get("name"), value.get("parameters", value.get("arguments"))
    try:
        if isinstance(parameters, str):  # as OpenAI's interface has it, also "" for none
            parameters = json.loads(parameters.strip() or "{}")
        parameters = {} if parameters is None else parameters
        if not (isinstance(name, str) and name and isinstance(parameters, dict)):
            return MALFORMED
        values = frozenset([(key, _canonical(each)) for key, each in parameters.items()])
        return ToolCall(name, values, frozenset(parameters))
    except (ValueError, RecursionError):
        return MALFORMED


def _canonical(value: Any, depth: int = _MAX_DEPTH) -> Any:
    """Return a value such that equal parameters are equal and hashable.

    3 and 3.0 are equal, `true` and `1` are not. RecursionError if it is nested deeper.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return ("bool", "true" if value else "false")
    if depth == 0 and isinstance(value, list | dict):
        raise RecursionError
    if isinstance(value, list):
        return ("list", *[_canonical(each, depth - 1) for each in value])
    if isinstance(value, dict):
        return ("dict", frozenset([(k, _canonical(each, depth - 1)) for k, each in value.items()]))
    return ("null",) if value is None else _of_number(value)


def with_type(value: Any) -> Any:
    """Return a canonical value; of an `Untyped` one, that of which it is the JSON."""
    try:
        return _canonical(decoded_text(value)) if isinstance(value, Untyped) else value
    except RecursionError:
        return str(value)


def is_same(one: Any, other: Any) -> bool:
    """Return whether two canonical values are equal, with numbers as texts where one is a text.

    A number or a truth value equals its JSON text, as tools convert them: 3 equals "3" and "3.0",
    which differ from each other. "007" is a text only. `Untyped` text equals what it is in JSON.
    """
    if one == other:
        return True
    if isinstance(one, str) and not isinstance(other, str):
        typed = with_type(one) if isinstance(one, Untyped) else _of_text(one)
        return bool(typed == other) or (not isinstance(typed, str) and is_same(typed, other))
    if isinstance(other, str):
        return not isinstance(one, str) and is_same(other, one)
    match one, other:
        case ("list", *values), ("list", *others):
            return len(values) == len(others) and all(map(is_same, values, others))
        case ("dict", values), ("dict", others):
            found, by_name = dict(values), dict(others)
            is_like = found.keys() == by_name.keys()
            return is_like and all(is_same(found[name], by_name[name]) for name in found)
    return False


def _of_text(text: str) -> Any:
    if text in {"true", "false"}:
        return ("bool", text)
    number = _NUMBER.fullmatch(text)
    if number is None:
        return text
    exact = int(text) if number.lastindex == 1 else Fraction(text)
    return _of_number(exact.numerator if exact.denominator == 1 else float(text))


def _of_number(number: float) -> Any:
    """Return a number, as a text where its hash can be chosen: n and n + 2^61 - 1 have the same.

    With such hashes, to count equal calls would take quadratic time.
    """
    if isinstance(number, float) and not math.isfinite(number):
        return ("number", str(number))  # and NaN equals itself
    return number if abs(number) < _MAX_EXACT else ("number", hex(int(number)))


@dataclass(frozen=True)
class GroundTruth:
    """A parsed ground truth."""

    blocks: tuple[str, ...]  #: the tags that a correct answer has, in order
    calls: tuple[ToolCall, ...]  #: its tool calls
    raw_calls: list[Any]  #: the same as they were written
    has_tags: bool = True  #: whether it was written with these tags, which `strict` then asks for


@lru_cache(maxsize=256)  # the answers of a group share one
def parse_ground_truth(text: str) -> GroundTruth:
    """Parse the ground truth of a row: the text of a correct answer, or the JSON of its calls.

    Raises:
        InvalidRequest: It has none of the tags, a tag is not closed or repeated, a tool call is not
            a JSON object with a name and parameters, or it has too many.
    """
    try:
        text = truth_text(text)
    except ValueError as error:
        raise InvalidRequest(f"ground_truth: {error}") from None
    if isinstance(found := parsed(text), list):
        tags = ("think", "tool_call" if found else "response")
        return GroundTruth(tags, _wanted_calls(found), found, has_tags=False)
    turn = read(text, code=True).last
    if turn.cut:
        raise InvalidRequest("ground_truth: <think> is not closed")
    text = turn.answer
    blocks = list(_BLOCK.finditer(text))
    for block in blocks:
        if not block["end"]:
            name = block["name"] or block[0].strip("</>")
            raise InvalidRequest(f"ground_truth: <{name}> is not closed, or not opened")
    contents = {block["name"]: block["content"] for block in blocks}
    if len(contents) < len(blocks):
        raise InvalidRequest("ground_truth: give <tool_call> and <response> at most once each")
    if "<tool_call>" in contents.get("response", ""):
        raise InvalidRequest("ground_truth: <tool_call> is in <response>; put it before")
    raw, _, failure = _decoded(contents.get("tool_call", ""))
    if failure or ("tool_call" in contents and not raw):
        raise InvalidRequest(f"ground_truth: <tool_call>: not JSON of calls: {failure or 'got 0'}")
    return GroundTruth(("think", *contents), _wanted_calls(raw), raw)


def _wanted_calls(raw: list[Any]) -> tuple[ToolCall, ...]:
    if len(raw) > _MAX_GROUND_TRUTH_CALLS:
        raise InvalidRequest(
            f"ground_truth: at most {_MAX_GROUND_TRUTH_CALLS} calls (got {len(raw)})"
        )
    calls = tuple(map(_wanted_call, raw))
    if MALFORMED in calls:
        raise InvalidRequest(
            "ground_truth: each call is an object with a `name` and `parameters` "
            f"(got {str(raw[calls.index(MALFORMED)])[:100]})"
        )
    return calls


def _wanted_call(value: Any) -> ToolCall:
    choices = choices_of(value)
    call = call_of(choices or value)
    return call._replace(has_choices=True) if choices and call != MALFORMED else call
