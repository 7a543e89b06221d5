"""Columns of rows: values, and code that surrounds programs and tests."""

import ast
import base64
import json
import pickletools
import zlib
from typing import Any

from pydantic import JsonValue

from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.truth import is_missing
from rewardfleet_server.code.tests.asserts import parse
from rewardfleet_server.code.tests.completion import read_prompt

Row = dict[str, JsonValue]

MAX_DECOMPRESSED = 32 * 2**20  #: maximum bytes of a compressed column after decompression

#: The opcodes of a pickled string, and of a dictionary of strings.
_TEXT = {"UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
_DICT = {"EMPTY_DICT", "MARK", "SETITEM", "SETITEMS"}
_FRAMING = {"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "STOP"}

#: Where a row has the code that precedes the program: BigCodeBench (`code_prompt` has no
#: docstring); HumanEval and LeetCodeDataset; SandboxFusion.
_PROMPTS = ("code_prompt", "complete_prompt", "prompt", "content")
#: Source code has one of these statements. A question in English may be valid Python as well.
_CODE = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def json_of(value: Any, column: str) -> Any:
    """Return what a text is the JSON of, or another value; raise InvalidRequest for no JSON."""
    return read_json(value, column) if isinstance(value, str) else value


def read_json(text: Any, column: str) -> Any:
    """Parse JSON text; raise InvalidRequest if it is not valid JSON, or not text."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRequest(f"{column}: not valid JSON: {str(error)[:100]}") from None


def decode_column(value: Any, column: str) -> Any:
    """Decode a column; raise InvalidRequest if it cannot be, or exceeds `MAX_DECOMPRESSED`.

    Args:
        value: JSON as an object or as text; or base64 of zlib of a pickle: of JSON text, as in
            LiveCodeBench, or of a flat dictionary of strings, as in SandboxFusion.
        column: Its name, for error messages.
    """
    if not isinstance(value, str) or value.lstrip()[:1] in {"{", "["}:
        return json_of(value, column)
    texts, is_dict = _pickled_texts(decompress(value, column), column)
    if is_dict and len(texts) % 2 == 0:
        return dict(zip(texts[::2], texts[1::2], strict=True))
    if is_dict or len(texts) != 1:
        raise InvalidRequest(f"{column}: the pickle is not exactly one string")
    return read_json(texts[0], column)


def decompress(text: Any, column: str) -> bytes:
    """Undo base64 and zlib; raise InvalidRequest if that fails, or beyond `MAX_DECOMPRESSED`."""
    if not isinstance(text, str):
        raise InvalidRequest(f"{column}: must be text")
    try:
        compressed = base64.b64decode("".join(text.split()), validate=True)
    except ValueError:
        raise InvalidRequest(f"{column}: neither JSON nor base64") from None
    decompressor = zlib.decompressobj()
    try:
        content = decompressor.decompress(compressed, MAX_DECOMPRESSED + 1)
    except zlib.error as error:
        raise InvalidRequest(f"{column}: not compressed by zlib: {error}") from None
    if len(content) > MAX_DECOMPRESSED:
        limit = f"{MAX_DECOMPRESSED >> 20} MiB"
        raise InvalidRequest(f"{column}: larger than {limit} when decompressed")
    if not decompressor.eof:
        raise InvalidRequest(f"{column}: the compressed data is truncated")
    return content


def _pickled_texts(content: bytes, column: str) -> tuple[list[str], bool]:
    """Return the strings of a pickle, and whether they are in a dictionary. Nothing is unpickled.

    The opcodes are read, but not executed: Python's own unpickler can be made to take all memory,
    even if it is allowed no classes.
    """
    texts: list[str] = []
    is_dict = False
    try:
        for opcode, argument, _ in pickletools.genops(content):
            if opcode.name in _TEXT:
                texts.append(str(argument))
            elif opcode.name in _DICT:
                is_dict = True
            elif opcode.name not in _FRAMING:
                one = f"exactly one string ({opcode.name})"
                raise InvalidRequest(f"{column}: the pickle is not {one}")
    except (ValueError, IndexError, OverflowError, MemoryError) as error:
        raise InvalidRequest(f"{column}: not a valid pickle: {str(error)[:100]}") from None
    return texts, is_dict


def without_nan(row: Row) -> Row:
    """Return a row with null for NaN, as pandas has it; within values, it may be expected."""
    return {name: None if is_missing(each) else each for name, each in row.items()}


def first_of(row: Row, *columns: str) -> tuple[str, JsonValue]:
    """Return the name and value of the first of these columns that the row has."""
    return next(((name, row[name]) for name in columns if row.get(name) is not None), ("", None))


def list_of(value: Any, column: str) -> list[Any]:
    """Return a list, which may be JSON text; raise InvalidRequest if it is none."""
    items = json_of(value, column)
    if not isinstance(items, list):
        raise InvalidRequest(f"{column}: must be a list, or its JSON")
    return items


def labels_of(row: Row) -> Row:
    """Return the labels of a row of SandboxFusion; raise InvalidRequest if they are no object."""
    labels = json_of(row.get("labels") or {}, "labels")
    if not isinstance(labels, dict):
        raise InvalidRequest("labels: must be an object, or its JSON")
    return without_nan(labels)


def func_name_of(test: Row) -> Any:
    """Return the function that the metadata of LiveCodeBench name; None if they name none."""
    metadata = json_of(test.get("metadata") or {}, "metadata")
    return without_nan(metadata).get("func_name") if isinstance(metadata, dict) else None


def prompt_of(row: Row, entry_point: str) -> str:
    """Return the code that precedes a program: prompt, starter code and imports.

    Questions, and prompts that are lists of messages, are none.
    """
    imports = row.get("import_statement")  # ClassEval
    found = ["\n".join(map(str, imports))] if isinstance(imports, list) else []
    found += [text for name in _PROMPTS if (text := _code(row.get(name), entry_point))][:1]
    return "\n".join(filter(None, [*found, _code(row.get("starter_code"), entry_point)]))


def entry_point_of(row: Row) -> str:
    """Return what the tests of a row call; "" if it does not say."""
    for each in (row.get("entry_point"), labels_of(row).get("entry_point"), row.get("class_name")):
        if isinstance(each, str):
            return each
    match row.get("test_info"):  # KodCode
        case [{"function_name": str(name)}]:
            return name
    return ""


def _code(value: JsonValue, entry_point: str) -> str:
    if not isinstance(value, str) or not (prompt := read_prompt(value, entry_point)):
        return ""
    is_code = prompt.stub or any(isinstance(each, _CODE) for each in parse(prompt.setup, "prompt"))
    return value if is_code else ""
