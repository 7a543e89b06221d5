"""Tool calls in the models' own dialects, as their chat templates write them.

Hermes' dialect is read in `answer.py`. The time is linear in the text: what is read is not searched
again, and a call that cannot be read takes the rest of the text.
"""

import ast
import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from rewardfleet.text.python import parse_source
from rewardfleet.wire.tools import ToolDescription

_DECODER = json.JSONDecoder()
#: Longer lists of Python calls are malformed, in characters, as Python's parser is slow.
_MAX_PYTHON = 20_000
#: What is left of calls: a block without any.
_EMPTY = "<tool_call></tool_call>"
#: Values as Jinja writes them, which renders chat templates.
_OF_PYTHON = {"True": "true", "False": "false", "None": "null"}
_KINDS = {
    str: "string", bool: "boolean", int: "number", float: "number", list: "array", dict: "object",
    type(None): "null",
}  # fmt: skip


class Untyped(str):
    """A value that a dialect writes as text, and whose type no schema says."""

    __slots__ = ()


class _Grammar(NamedTuple):
    """Expressions of a dialect."""

    begin: str  #: before a call; the group is the tool, empty if it follows
    end: str  #: after it
    key: str = ""  #: before a value between tags; the group is its name
    value_end: str = ""  #: after it; the same tag is text elsewhere in a value


_NAME = r"(?!(?:null|true|false)\b)([^\W\d][\w.:/-]{0,999})"
_SEP = "<\uff5ctool\u2581sep\uff5c>"
_GRAMMARS = {
    "qwen3_coder": _Grammar(
        r"(?:<tool_call>\s*)?<function=([^<>\n]{1,999})>\s*", r"</function>(?:\s*</tool_call>)?",
        r"<parameter=([^<>\n]{1,999})>\n?", r"\n?</parameter>\s*(?=<parameter=|</function>)",
    ),
    "glm": _Grammar(
        rf"<tool_call>\n?{_NAME}\s*(?=<arg_key>|</tool_call>|\Z)", r"</tool_call>|\Z",
        r"<arg_key>([^<>]{1,999})</arg_key>\s*<arg_value>",
        r"</arg_value>\s*(?=<arg_key>[^<>]{1,999}</arg_key>|</tool_call>|\Z)",
    ),
    "minimax_m2": _Grammar(
        r"<invoke name=\"([^\"\n]{1,999})\">\s*", r"</invoke>",
        r"<parameter name=\"([^\"\n]{1,999})\">",
        r"</parameter>\s*(?=<parameter name=|</invoke>)",
    ),
    "mistral": _Grammar(
        r"\[TOOL_CALLS\]\s*([\w.:/-]{0,999})(?:\[CALL_ID\]\w{0,99})?(?:\[ARGS\])?\s*(?=[\[{]|\Z)",
        "",
    ),
    "kimi_k2": _Grammar(
        r"<\|tool_call_begin\|>\s*(?:functions\.)?([^\s<>:]{1,999})(?::\d{1,9})?\s*"
        r"<\|tool_call_argument_begin\|>\s*", r"\s*(?:<\|tool_call_end\|>|\Z)",
    ),
    "deepseek": _Grammar(
        rf"<\uff5ctool\u2581call\u2581begin\uff5c>\s*(?:function{_SEP})?([^\s<>]{{1,999}})"
        rf"(?:{_SEP}\s*|\n```json\n)", r"\s*(?:```)?(?:<\uff5ctool\u2581call\u2581end\uff5c>|\Z)",
    ),
    "harmony": _Grammar(
        r"(?:<\|(?:start\|>assistant(?:<\|channel\|>\w{1,12})?|channel\|>\w{1,12})\s|\A\s?)to="
        rf"(?:functions\.)?{_NAME}[^<]{{0,80}}(?:<\|(?:channel|constrain)\|>[^<]{{0,80}}){{0,2}}"
        r"<\|message\|>\s*", r"\s*(?:<\|call\|>|\Z)",
    ),
    "llama_json": _Grammar(r"()<\|python_tag\|>\s*(?=\{)", r"\s*\Z"),
    "pythonic": _Grammar(r"()<\|python_start\|>", r"\Z"),
}  # fmt: skip
#: A block in Hermes' dialect, in which there are no other calls; or the beginning of a call.
_BEGIN = re.compile(
    r"(?P<hermes><tool_call>\s*[\[{][^<]*(?:<(?!/tool_call>)[^<]*)*)|"
    + "|".join(f"(?P<{name}>{each.begin})" for name, each in _GRAMMARS.items())
)
#: The beginning of an answer that is nothing but calls, without a mark.
_BARE = re.compile(r"\s*(?:(?P<llama_json>()(?=\{))|(?P<pythonic>()(?=\[\s*[^\W\d][\w.]*\s*\()))")
#: Every text with such calls has it; it takes a tenth of the time.
_HINT = re.compile(r"\[TOOL_CALLS\]|<(?:function=|invoke |[|\uff5c]|tool_call>\n?[^\s{\[<])")
#: Marks around all calls of an answer.
_SECTION = re.compile(
    "<(?:\\|tool_calls_section_\\w+\\||\uff5ctool\u2581calls\u2581\\w+\uff5c|/?minimax:tool_call)>"
)


def take_calls(
    text: str, calls: dict[str, list[Any]], tools: Iterable[ToolDescription] = ()
) -> str:
    """Return a text with an empty `<tool_call>` instead of calls, which are added by dialect.

    They are objects with a name and arguments; None for what cannot be read. Values that a dialect
    writes as text have the types of `tools`, or are `Untyped`.
    """
    if bare := _BARE.match(text):
        found, end = _read(bare, {})
        if found and end == len(text):
            calls.setdefault(str(bare.lastgroup), []).extend(found)
            return _EMPTY
    if not _HINT.search(text):
        return text
    schemas = {tool.name: tool.parameters or {} for tool in tools}
    parts: list[str] = []
    kept = end = 0
    while begin := _BEGIN.search(text, max(kept, end)):
        end = begin.end()
        if begin.lastgroup != "hermes":
            parts.append(_SECTION.sub("", text[kept : begin.start()]))
            found, kept = _read(begin, schemas)
            if not found:  # which takes the rest of the text, with all calls that begin in it
                found, kept = [None, *(None for _ in _BEGIN.finditer(text, end))], len(text)
            calls.setdefault(str(begin.lastgroup), []).extend(found)
    # Calls that follow each other are one block, whatever their dialect has around each.
    between = [part for part in parts[1:] if part.strip()]
    rest = _SECTION.sub("", text[kept:]) if parts else text
    return _EMPTY.join([*parts[:1], *between, rest])


def _read(begin: re.Match[str], schemas: dict[str, Any]) -> tuple[list[Any], int]:
    """Return the calls that begin there, and their end; no calls if they cannot be read."""
    text, position = begin.string, begin.end()
    grammar, name = _GRAMMARS[str(begin.lastgroup)], begin[(begin.lastindex or 0) + 1]
    try:
        if begin.lastgroup == "pythonic":
            values, position = _python_calls(text[position:]), len(text)
        elif grammar.key:
            properties = schemas.get(name, {}).get("properties")
            values, position = _tagged_call(text, position, grammar, properties)
        else:
            values, position = _json_values(text, position)
    except (ValueError, TypeError, RecursionError, SyntaxError):
        return [], 0
    if name:
        values = [{"name": name, "arguments": each} for each in values]
    elif values and isinstance(values[0], list):
        values = values[0]
    are_calls = all(isinstance(v, dict) and {"arguments", "parameters"} & v.keys() for v in values)
    end = re.compile(grammar.end).match(text, position)
    return (values, end.end()) if end and are_calls else ([], 0)


def _json_values(text: str, position: int) -> tuple[list[Any], int]:
    """Return a value, or those between semicolons."""
    value, position = _DECODER.raw_decode(text, position)
    values = [value]
    while more := re.compile(r"\s*;\s*(?=\{)").match(text, position):
        value, position = _DECODER.raw_decode(text, more.end())
        values.append(value)
    return values, position


def _tagged_call(text: str, position: int, grammar: _Grammar, schemas: Any) -> tuple[Any, int]:
    """Return the arguments of a call; none if a value never ends."""
    arguments: dict[str, Any] = {}
    while key := re.compile(grammar.key).match(text, position):
        end = re.compile(grammar.value_end).search(text, key.end())
        if end is None:
            return [], position
        schema = schemas.get(key[1]) if isinstance(schemas, dict) else None
        arguments[key[1]] = _typed(text[key.end() : end.start()], schema)
        position = end.end()
    return [arguments], position


def _typed(text: str, schema: Any) -> Any:
    """Return the value that a text is by a schema; the text if it has another type."""
    any_of = schema.get("anyOf") if isinstance(schema, dict) else None
    options = [schema, *(any_of if isinstance(any_of, list) else ())]
    given = [each.get("type") for each in options if isinstance(each, dict)]
    types = [kind for each in given for kind in (each if isinstance(each, list) else [each])]
    types = ["number" if each == "integer" else each for each in types]
    if not any(each in types for each in _KINDS.values()):
        return Untyped(text)
    value = decoded_text(text)
    return value if _KINDS[type(value)] in types else text


def decoded_text(text: str) -> Any:
    """Return the JSON value that a text is, also of Python's `True` and `None`; or the text."""
    try:
        value = json.loads(_OF_PYTHON.get(text, text))
    except (ValueError, RecursionError):
        return str(text)
    return str(text) if isinstance(value, str) else value


def _python_calls(text: str) -> Any:
    """Return the calls of a list in Python, which is parsed and not run."""
    source = text.strip().removesuffix("<|python_end|>") if len(text) <= _MAX_PYTHON else ""
    values = []
    match parse_source(source).body:
        case [ast.Expr(value=ast.List(elts=nodes))]:
            values = [_python_call(each) for each in nodes]
    return json.loads(json.dumps(values))  # not what JSON does not have, such as sets


def _python_call(node: ast.expr) -> Any:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("no call with names of arguments")
    arguments = {each.arg or "**": ast.literal_eval(each.value) for each in node.keywords}
    return {"name": ast.unparse(node.func), "arguments": arguments}
