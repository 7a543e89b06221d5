"""Raw rows of data sets, read as tests.

Rows come as the data set has them, or as CTRL (`selected_uts`, `all_uts`) and SandboxFusion
(`test`) keep them; a column may be JSON, or JSON's text. What is the seed's is kept where it is
sound. Where it is not:

    output that is compared     word for word, by case; with a tolerance of 1e-5, relative or
                                absolute, where a number with a decimal point is expected. Theirs
                                takes `yes` for YES, and 1000001 for 1000000
    LiveCodeBench               one verdict a test, not one for all; the public tests come before
                                the private ones, as in its own runner. Nothing but the value
                                expected passes: not its first item, nor its words in any order
    MBPP+                       one verdict a comparison, all in one run of the program; the values
                                are compared outside. A row of another form than the usual is a
                                script, which runs beside the program: one verdict, by the jail
    APPS with a function        outputs are unwrapped where each of them is a list of one item
    a time limit                is of CPU
"""

import ast
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import JsonValue, ValidationError

from rewardfleet.wire.code import (
    MAX_TESTS,
    AssertTests,
    DatasetTests,
    FunctionalTests,
    PlainTests,
    StdioTests,
)
from rewardfleet.wire.errors import InvalidRequest

from .encoding import RowError, decode_column, json_of, read_json

#: What LiveCodeBench and APPS give to each program.
_MODULES = (
    "string re datetime collections heapq bisect copy math random statistics itertools functools "
    "operator io sys json"
)
_PRELUDE = "".join(
    f"from {module} import *\n" for module in f"{_MODULES} builtins typing".split()
) + (f"import {_MODULES.replace(' ', ', ')}\nsys.setrecursionlimit(50000)\n")

_DECIMAL = re.compile(r"\d\.\d|\d[eE]-?\d")
_TOLERANCE = 1e-5
_EVALPLUS_TOLERANCE = 1e-6
#: How EvalPlus's script compares.
_CALL = re.compile(r"(\w+)\(\*inp\), exp, 0")
_NUMBER = re.compile(r"\d+(?:\.\d*)?|\.\d+")


def read_row(given: DatasetTests) -> tuple[PlainTests, float | None]:
    """Read a row.

    Returns:
        Its tests; and its time limit in seconds of CPU, None where it has none.

    Raises:
        InvalidRequest: It cannot be read, or has no tests.
    """
    row = given.row
    try:
        _check_labels(row)
        tests = _READERS[given.dataset](row)
        tests["cases"] = _some(tests["cases"], given.first)
        return _KINDS[tests["kind"]].model_validate(tests), _time_limit(row)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, found["loc"]))
        raise InvalidRequest(
            f"tests.row: as {tests['kind']} tests, {where}: {found['msg']}"
        ) from None
    except RowError as error:
        raise InvalidRequest(f"tests.row: {error}") from None


_KINDS: dict[str, type[StdioTests | FunctionalTests | AssertTests]] = {
    "stdio": StdioTests,
    "functional": FunctionalTests,
    "asserts": AssertTests,
}


def _some(cases: list[Any], first: int | None) -> list[Any]:
    if not cases:
        raise RowError("it has no tests")
    if len(cases[:first]) > MAX_TESTS:
        raise RowError(f"it has {len(cases)} tests; ask for the `first` {MAX_TESTS} of them")
    return cases[:first]


def _check_labels(row: dict[str, JsonValue]) -> None:
    labels = json_of(row.get("labels") or {}, "labels")
    if not isinstance(labels, dict):
        raise RowError("labels: give an object, or its JSON")
    language = labels.get("programming_language", "python")
    if language != "python":
        raise RowError(f"labels: its programs are in {str(language)[:40]!r}, not in 'python'")


def _time_limit(row: dict[str, JsonValue]) -> float | None:
    given = row.get("time_limit")
    if isinstance(given, dict):  # as CodeContests has it
        seconds, nanos = given.get("seconds") or 0, given.get("nanos") or 0
        if isinstance(seconds, int | float) and isinstance(nanos, int | float):
            given = seconds + nanos / 1e9
    elif isinstance(given, str) and (number := _NUMBER.search(given[:100])):  # "2.0 seconds"
        given = float(number[0])
    if given is None or (isinstance(given, float) and math.isnan(given)):
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < 1e6:
        raise RowError(f"time_limit: give seconds, above 0 (got {str(given)[:40]!r})")
    return float(given)


# The data sets


def _code_contests(row: dict[str, JsonValue]) -> dict[str, Any]:
    column, tests = _first_of(row, "selected_uts", "all_uts", "test")
    if tests is not None:
        return _stdio(
            _pair(test, f"{column}.{index}") for index, test in enumerate(_list(tests, column))
        )
    pairs: list[tuple[Any, Any]] = []
    for column in ("public_tests", "private_tests", "generated_tests"):
        tests = json_of(row.get(column) or {}, column)
        if not isinstance(tests, dict):
            raise RowError(f"{column}: give an object of `input` and `output`")
        pairs += _zip(tests.get("input") or [], tests.get("output") or [], column)
    return _stdio(pairs)


def _livecodebench(row: dict[str, JsonValue]) -> dict[str, Any]:
    column, packed = _first_of(row, "test")
    if packed is not None:
        tests = decode_column(packed, column)
        if not isinstance(tests, dict) or "input_output" not in tests:
            raise RowError("test: it has no `input_output`")
        inputs, outputs, fn_name = _input_output(tests["input_output"])
    else:
        listed = [
            test
            for column in ("public_test_cases", "private_test_cases")
            for test in _list(decode_column(row.get(column) or [], column), column)
        ]
        if not all(isinstance(test, dict) for test in listed):
            raise RowError("public_test_cases, private_test_cases: a test is an object")
        inputs, outputs = ([test.get(key) for test in listed] for key in ("input", "output"))
        metadata = json_of(row.get("metadata") or {}, "metadata")
        fn_name = metadata.get("func_name") if isinstance(metadata, dict) else None
        if not fn_name and any(test.get("testtype") == "functional" for test in listed):
            raise RowError("metadata: it has no `func_name`, and a test is functional")
    pairs = _zip(inputs, outputs, "its tests")
    if not fn_name:
        return {**_stdio(pairs), "setup": _PRELUDE}
    cases = [
        {"args": _arguments(given, index), "expected": read_json(expected, f"output {index}")}
        for index, (given, expected) in enumerate(pairs)
    ]
    return {"kind": "functional", "setup": _PRELUDE, "fn_name": fn_name, "cases": cases}


def _mbppplus(row: dict[str, JsonValue]) -> dict[str, Any]:
    column, tests = _first_of(row, "selected_uts", "all_uts", "test", "test_list")
    if tests is None:
        raise RowError("it has no tests: no `selected_uts`, `test` or `test_list`")
    imports = ["from math import inf", *_list(row.get("test_imports") or [], "test_imports")]
    setup = "\n".join(map(str, imports))
    if isinstance(tests, str) and not tests.lstrip().startswith("["):
        return {"kind": "asserts", "setup": setup, **_script(tests)}
    return {"kind": "asserts", "setup": setup, "cases": _list(tests, column)}


def _apps(row: dict[str, JsonValue]) -> dict[str, Any]:
    column, tests = _first_of(row, "selected_uts", "all_uts")
    if tests is not None:
        listed = _list(tests, column)
        is_stdio = any(isinstance(test, dict) for test in listed)
        return _code_contests(row) if is_stdio else _mbppplus(row)
    if not row.get("input_output"):
        raise RowError("it has no tests: no `input_output` or `selected_uts`")
    inputs, outputs, fn_name = _input_output(row["input_output"])
    pairs = _zip(inputs, outputs, "input_output")
    if not fn_name:
        return {**_stdio(pairs), "setup": _PRELUDE}
    wrapped = all(isinstance(output, list) and len(output) == 1 for output in outputs)
    cases = [
        {"args": _arguments(given, index), "expected": expected[0] if wrapped else expected}
        for index, (given, expected) in enumerate(pairs)
    ]
    return {"kind": "functional", "setup": _PRELUDE, "fn_name": fn_name, "cases": cases}


_READERS: dict[str, Callable[[dict[str, JsonValue]], dict[str, Any]]] = {
    "code_contests": _code_contests,
    "livecodebench": _livecodebench,
    "mbppplus": _mbppplus,
    "apps": _apps,
}


# Columns


def _first_of(row: dict[str, JsonValue], *columns: str) -> tuple[str, JsonValue]:
    """Return the first column that the row has, and what is in it."""
    return next(((name, row[name]) for name in columns if row.get(name) is not None), ("", None))


def _list(given: Any, column: str) -> list[Any]:
    listed = json_of(given, column)
    if not isinstance(listed, list):
        raise RowError(f"{column}: give a list, or its JSON")
    return listed


def _zip(inputs: Any, outputs: Any, column: str) -> list[tuple[Any, Any]]:
    if not (isinstance(inputs, list) and isinstance(outputs, list) and len(inputs) == len(outputs)):
        raise RowError(f"{column}: give a list of inputs, and one of as many outputs")
    return list(zip(inputs, outputs, strict=True))


def _pair(test: Any, where: str) -> tuple[Any, Any]:
    """Return what SandboxFusion's test gives and expects."""
    try:
        return test["input"]["stdin"], test["output"]["stdout"]
    except (TypeError, KeyError):
        raise RowError(f"{where}: give input.stdin and output.stdout") from None


def _input_output(given: Any) -> tuple[list[Any], list[Any], str | None]:
    """Read the form that APPS made known."""
    read = json_of(given, "input_output")
    if not isinstance(read, dict):
        raise RowError("input_output: give an object of `inputs` and `outputs`")
    return read.get("inputs") or [], read.get("outputs") or [], read.get("fn_name")


def _arguments(given: Any, index: int) -> list[Any]:
    """Return arguments: a list of them, or a text of JSON, one a line."""
    if isinstance(given, list):
        return given
    if not isinstance(given, str):
        raise RowError(f"input {index}: give arguments, as a list or as lines of JSON")
    return [read_json(line, f"input {index}") for line in given.strip().split("\n") if line.strip()]


def _stdio(pairs: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    cases = [{"stdin": _text(stdin), "stdout": _text(stdout)} for stdin, stdout in pairs]
    is_decimal = any(
        isinstance(case["stdout"], str) and _DECIMAL.search(case["stdout"]) for case in cases
    )
    checker = "float" if is_decimal else "tokens"
    return {"kind": "stdio", "checker": checker, "tolerance": _TOLERANCE, "cases": cases}


def _text(given: Any) -> Any:
    """Return a text, of which APPS keeps some as lists of lines."""
    if isinstance(given, list) and all(isinstance(line, str) for line in given):
        return "\n".join(given)
    return given


# Scripts of asserts


def _script(source: str) -> dict[str, Any]:
    """Take a script of tests apart, so that values are compared outside; else leave it whole."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise RowError(f"its tests are no Python: {str(error)[:100]}") from None
    if not body:
        return {"cases": []}
    if all(isinstance(node, ast.Assert) for node in body):
        return {"cases": [ast.unparse(node) for node in body], "single_run": True}
    cases = _comparisons(body)
    if cases is None:
        return {"cases": [source]}
    return {"cases": cases, "single_run": True, "tolerance": _EVALPLUS_TOLERANCE}


def _comparisons(body: list[ast.stmt]) -> list[str] | None:
    """Return the comparisons of EvalPlus's usual script; None where it is another."""
    values: dict[str, list[ast.expr]] = {}
    function = None
    for node in body:
        match node:
            case ast.Import() | ast.ImportFrom() | ast.FunctionDef(name="is_floats"):
                pass
            case ast.FunctionDef(name="assertion") if _is_plain_assertion(node):
                pass
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.List(elts=items)):
                values[name] = items
            case ast.For(body=[ast.Expr(value=ast.Call(func=ast.Name("assertion"), args=args))]):
                called = _CALL.fullmatch(", ".join(map(ast.unparse, args)))
                if called is None or function is not None:
                    return None
                function = called[1]
            case _:
                return None
    inputs, results = values.get("inputs", []), values.get("results", [])
    if function is None or len(inputs) != len(results) or len(values) != 2:
        return None
    return [
        f"assert {function}(*{ast.unparse(given)}) == {ast.unparse(expected)}"
        for given, expected in zip(inputs, results, strict=True)
    ]


def _is_plain_assertion(function: ast.FunctionDef) -> bool:
    """Whether the two values are compared as they are: for some rows they are made sets before."""
    written = ast.unparse(function)
    return "out == exp" in written and "set(" not in written and "None" not in written
