"""Columns of rows: values that may be JSON text, and code that surrounds programs and tests."""

import ast
from collections.abc import Sequence
from typing import Any

from pydantic import JsonValue

from rewardfleet_server.code.completion import read_prompt
from rewardfleet_server.code.parser import parse_source

from .encoding import RowError, json_of

Row = dict[str, JsonValue]

#: Where a row has the code that precedes the program: BigCodeBench (`code_prompt` has no
#: docstring); HumanEval and LeetCodeDataset; SandboxFusion.
_PROMPTS = ("code_prompt", "complete_prompt", "prompt", "content")
#: Source code has one of these statements. A question in English may be valid Python as well.
_CODE = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def first_of(row: Row, *columns: str) -> tuple[str, JsonValue]:
    """Return the name and value of the first of these columns that the row has."""
    return next(((name, row[name]) for name in columns if row.get(name) is not None), ("", None))


def list_of(value: Any, column: str) -> list[Any]:
    """Return a list, which may be JSON text.

    Raises:
        RowError: It is none.
    """
    items = json_of(value, column)
    if not isinstance(items, list):
        raise RowError(f"{column}: must be a list, or its JSON")
    return items


def labels_of(row: Row) -> Row:
    """Return the labels of a row of SandboxFusion.

    Raises:
        RowError: They are not an object.
    """
    labels = json_of(row.get("labels") or {}, "labels")
    if not isinstance(labels, dict):
        raise RowError("labels: must be an object, or its JSON")
    return labels


def prompt_of(row: Row, entry_point: str) -> str:
    """Return the code that precedes a program: prompt, starter code and imports.

    Questions, and prompts that are lists of messages, are none.
    """
    found = [text for name in _PROMPTS if (text := _code(row.get(name), entry_point))][:1]
    found += [_code(row.get("starter_code"), entry_point)]
    imports = row.get("import_statement")  # ClassEval
    if isinstance(imports, list):
        found = ["\n".join(map(str, imports)), *found]
    return "\n".join(filter(None, found))


def entry_point_of(row: Row) -> str:
    """Return what the tests of a row call; "" if it does not say."""
    for each in (row.get("entry_point"), labels_of(row).get("entry_point"), row.get("class_name")):
        if isinstance(each, str):
            return each
    functions = row.get("test_info")  # KodCode
    match functions:
        case [{"function_name": str(name)}]:
            return name
    return ""


def is_imports(source: str) -> bool:
    """Return whether source code only imports.

    Raises:
        RowError: It is not valid Python.
    """
    return all(isinstance(each, ast.Import | ast.ImportFrom) for each in statements_of(source))


def statements_of(source: str) -> Sequence[ast.stmt]:
    """Return the statements of source code of tests.

    Raises:
        RowError: It is not valid Python.
    """
    try:
        return parse_source(source).body
    except SyntaxError as error:
        raise RowError(f"the tests are not valid Python: {str(error)[:100]}") from None


def _code(value: JsonValue, entry_point: str) -> str:
    if not isinstance(value, str) or not value.strip():
        return ""
    prompt = read_prompt(value, entry_point)
    if prompt is None:
        return ""
    if prompt.stub:
        return value
    statements = statements_of(prompt.setup)
    return value if any(isinstance(each, _CODE) for each in statements) else ""
