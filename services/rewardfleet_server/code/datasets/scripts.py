"""Rows whose tests are source code: asserts, and scripts of them."""

import ast
import inspect
import re
from collections.abc import Sequence
from typing import Any

from rewardfleet.wire.errors import InvalidRequest
from rewardfleet_server.code.sandboxes.jail.guest import nodes
from rewardfleet_server.code.sandboxes.jail.guest.names import PROGRAM_MODULES, imported_packages
from rewardfleet_server.code.tests.asserts import parse

from .columns import Row, entry_point_of, first_of, labels_of, list_of, prompt_of

#: Modules that LiveCodeBench and APPS import for each program.
_MODULES = (
    "string re datetime collections heapq bisect copy math random statistics itertools functools "
    "operator io sys json"
)
PRELUDE = "".join(
    f"from {module} import *\n" for module in f"{_MODULES} builtins typing".split()
) + (f"import {_MODULES.replace(' ', ', ')}\nsys.setrecursionlimit(50000)\n")

#: The lists and trees of LeetCode, as the runners of LeetCodeDataset in code-r1 and DeepCoder
#: define them: constructors, conversions from lists (level by level), and comparisons.
_LEETCODE = f"""
{inspect.getsource(nodes.ListNode)}
{inspect.getsource(nodes.TreeNode)}

def list_node(values):
    head = None
    for value in reversed(values):
        head = ListNode(value, head)
    return head

def is_same_list(a, b):
    while a and b and a.val == b.val:
        a, b = a.next, b.next
    return a is None and b is None

def tree_node(values):
    nodes = [None if value is None else TreeNode(value) for value in values]
    children = iter(nodes[1:])
    for node in nodes:
        if node is not None:
            node.left, node.right = next(children, None), next(children, None)
    return nodes[0] if nodes else None

def is_same_tree(a, b):
    pairs = [(a, b)]
    while pairs:
        a, b = pairs.pop()
        if a is None and b is None:
            continue
        if a is None or b is None or a.val != b.val:
            return False
        pairs += [(a.left, b.left), (a.right, b.right)]
    return True
"""
_OF_LEETCODE = re.compile(
    r"\b(?:ListNode|list_node|is_same_list|TreeNode|tree_node|is_same_tree)\b"
)

#: Tolerance of EvalPlus for expected floating-point numbers.
_TOLERANCE = {"tolerance": 1e-6, "relative_tolerance": 1e-7}
#: What MBPP+ asks of a function that returns a match, or a boolean.
_IS_FOUND = "out = {call}\nassert (out if isinstance(out, bool) else out is not None) == {expected}"
#: The arguments of `assertion` in EvalPlus's usual script.
_ASSERTION_ARGS = re.compile(r"(\w+)\(\*inp\), exp, 0")


def read_tests(row: Row) -> dict[str, Any]:
    """Return the fields of `AssertTests` for a row; raise InvalidRequest if it cannot be read."""
    if row.get("plus_input") is not None:
        raise InvalidRequest(
            "plus_input: EvalPlus computes its expected outputs when it is installed; give a row "
            "with the complete tests, of the release `OriginFmt`"
        )
    column, tests = first_of(row, "selected_uts", "all_uts", "test", "test_code", "test_list")
    if tests is None:
        raise InvalidRequest("the row has no tests: no `selected_uts`, `test` or `test_list`")
    entry_point = entry_point_of(row)
    imports = [str(each) for each in list_of(row.get("test_imports") or [], "test_imports")]
    # What must run before each test, with the program's classes, unless it only imports.
    preparation = row.get("test_setup_code") or labels_of(row).get("test_setup_code") or ""
    if not isinstance(preparation, str):
        raise InvalidRequest("test_setup_code: must be text")
    statements = parse(preparation, "test_setup_code")
    if all(isinstance(each, ast.Import | ast.ImportFrom) for each in statements):
        imports.append(preparation)
        preparation = ""
    if isinstance(script := row.get("functional"), str):
        imported = imported_packages(ast.Module(parse(script, "functional"), []))
        if imported.isdisjoint(PROGRAM_MODULES):  # else it has the names that it needs
            imports.append(PRELUDE + _LEETCODE if _OF_LEETCODE.search(script) else PRELUDE)
    fields: dict[str, Any] = {
        "kind": "asserts",
        "setup": "\n".join(["from math import inf", *imports]),
        "prompt": prompt_of(row, entry_point),
        "entry_point": entry_point,
        "bool_is_int": True,
    }
    if isinstance(tests, str) and not tests.lstrip().startswith("["):
        fields |= _read_script(tests)
    else:
        fields["cases"] = list_of(tests, column)
    if preparation:
        fields["cases"] = [f"{preparation}\n{case}" for case in fields["cases"]]
    return fields


def _read_script(source: str) -> dict[str, Any]:
    """Return the fields of `AssertTests` that a script determines.

    A script of asserts, and the one that EvalPlus writes for MBPP+, become one case per comparison,
    so that each value is compared by itself. Any other script becomes one case.
    """
    body = parse(source, "tests")
    if not body:
        return {"cases": []}
    if all(isinstance(node, ast.Assert) for node in body):
        return {"cases": [ast.unparse(node) for node in body], "single_run": True}
    cases = _comparisons(body)
    if cases is None:
        return {"cases": [source]}
    return {"cases": cases, "single_run": True, **_TOLERANCE}


def _comparisons(body: Sequence[ast.stmt]) -> list[str] | None:
    """Return the comparisons of EvalPlus's usual script as asserts; None for another script."""
    values: dict[str, list[ast.expr]] = {}
    function, form = None, "assert {call} == {expected}"
    for node in body:
        match node:
            case ast.Import() | ast.ImportFrom() | ast.FunctionDef(name="is_floats"):
                pass
            case ast.FunctionDef(name="assertion"):
                source = ast.unparse(node)
                if "out == exp" in source and "set(" not in source and "None" not in source:
                    continue  # it compares values as they are; in some rows, it compares sets
                has_assert = any(isinstance(each, ast.Assert) for each in ast.walk(node))
                if has_assert or "exp == (out is not None)" not in source:
                    return None
                form = _IS_FOUND  # it forgets its assert, as in three rows
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
    pairs = zip(map(ast.unparse, inputs), map(ast.unparse, results), strict=True)
    return [form.format(call=f"{function}(*{args})", expected=result) for args, result in pairs]
