"""Test scripts of MBPP+, taken apart so that values can be compared outside the sandbox."""

import ast
import re
from typing import Any

from rewardfleet_server.code.parser import exclusive_parser

from .encoding import RowError

#: Tolerance of EvalPlus for expected floating-point numbers.
_TOLERANCE = {"tolerance": 1e-6, "relative_tolerance": 1e-7}
#: The arguments of `assertion` in EvalPlus's usual script.
_ASSERTION_ARGS = re.compile(r"(\w+)\(\*inp\), exp, 0")


def read_script(source: str) -> dict[str, Any]:
    """Return the fields of `AssertTests` for a script.

    A script of asserts, and EvalPlus's usual script, become one case per comparison. Any other
    script becomes one case, which runs in the sandbox.

    Raises:
        RowError: The script is not valid Python.
    """
    try:
        with exclusive_parser():
            body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise RowError(f"the tests are not valid Python: {str(error)[:100]}") from None
    if not body:
        return {"cases": []}
    if all(isinstance(node, ast.Assert) for node in body):
        return {"cases": [ast.unparse(node) for node in body], "single_run": True}
    cases = _comparisons(body)
    if cases is None:
        return {"cases": [source]}
    return {"cases": cases, "single_run": True, **_TOLERANCE}


def _comparisons(body: list[ast.stmt]) -> list[str] | None:
    """Return the comparisons of EvalPlus's usual script as asserts; None for another script."""
    values: dict[str, list[ast.expr]] = {}
    function = None
    for node in body:
        match node:
            case ast.Import() | ast.ImportFrom() | ast.FunctionDef(name="is_floats"):
                pass
            case ast.FunctionDef(name="assertion") if _compares_plain_values(node):
                pass
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.List(elts=items)):
                values[name] = items
            case ast.For(body=[ast.Expr(value=ast.Call(func=ast.Name("assertion"), args=args))]):
                called = _ASSERTION_ARGS.fullmatch(", ".join(map(ast.unparse, args)))
                if called is None or function is not None:
                    return None
                function = called[1]
            case _:
                return None
    inputs, results = values.get("inputs", []), values.get("results", [])
    if function is None or len(inputs) != len(results) or len(values) != 2:
        return None
    return [
        f"assert {function}(*{ast.unparse(args)}) == {ast.unparse(expected)}"
        for args, expected in zip(inputs, results, strict=True)
    ]


def _compares_plain_values(function: ast.FunctionDef) -> bool:
    """Return whether `assertion` compares values as they are; in some rows, it compares sets."""
    source = ast.unparse(function)
    return "out == exp" in source and "set(" not in source and "None" not in source
