"""The programs that are tried on a row of the code service."""

import ast
import copy
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from rewardfleet.lazy import Lazy
from rewardfleet.text.python import parse_source
from rewardfleet.wire.code import CodeRequest, DatasetTests, FunctionalTests, StdioTests
from rewardfleet.wire.errors import InvalidRequest

from .findings import Plan, Tried

# The service's own readers, which need no packages besides those of the client.
_READ_ROW = Lazy("rewardfleet_server.code.datasets.rows:read_row")
_SOLUTION = Lazy("rewardfleet_server.code.datasets.solutions:first_solution_of")

#: Mutants of a solution, at most.
_MUTANTS = 3
#: Words that are no answer, as source code.
_WORDS = repr("lint: no answer 7 zebra")
_ECHO = "import sys\nprint(sys.stdin.read())"
#: What tests may call, and decorators that calls depend on.
_CALLED = "class Solution:\n def {0}(self, *args): 0\ndef {0}(*args): 0"
_KEPT = {"staticmethod", "classmethod", "property"}
#: What each operator becomes in a mutant.
_OPPOSITE: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE,
    ast.LtE: ast.Gt, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def answers(request: CodeRequest, row: Mapping[str, Any]) -> Plan:
    """Return the programs that are tried on a row.

    Raises:
        InvalidRequest: The row cannot be read.
    """
    tests, limit, solution = request.tests, None, ""
    if isinstance(tests, DatasetTests):
        tests, limit, _ = _READ_ROW(tests)
    with suppress(InvalidRequest):
        if isinstance(request.tests, DatasetTests):
            solution = _READ_ROW(request.tests.model_copy(update={"check_reference": True}))[2]
        else:
            solution = _SOLUTION(dict(row))
    if limit is None or "cpu_s" in request.limits.model_fields_set:
        limit = request.limits.cpu_s
    program, tree = _parsed(solution, tests)
    is_stdio, pairs = isinstance(tests, StdioTests), _pairs(tests)
    values = {} if is_stdio else dict.fromkeys(("None", "True"), "constant-passes")
    if pairs:
        is_constant = len({expected for _, expected in pairs}) == 1 < len(pairs)
        values.setdefault(pairs[0][1], "constant-passes" if is_constant else "first-output-passes")
    echo = _ECHO if is_stdio else _with_bodies(tests, tree, _first_argument)
    tried = [
        Tried("empty-passes", "x = 1", "it does nothing"),
        Tried("echo-passes", echo, "it gives back its input"),
    ]
    for value, finding in {**values, _WORDS: "anything-passes"}.items():
        text = f"print({value})" if is_stdio else _with_bodies(tests, tree, value)
        note = f"it always gives {value[:60]}; the row has {len(tests.cases)} tests"
        tried.append(Tried(finding, text, note))
    if program:
        tried += [Tried("solution", program), Tried("again", f"{program}\nlint_second_run = 1\n")]
        tried += [Tried("mutant-passes", *each) for each in _mutants(tree)]
    return Plan(tried, limit, _conflict(tests, pairs))


def _parsed(solution: str, tests: Any) -> tuple[str, ast.Module]:
    """Return a solution as a complete program, and its tree; an empty one if it is no Python."""
    for text in (solution, getattr(tests, "prompt", "") + solution) if solution else ():
        with suppress(SyntaxError):
            return text, parse_source(text)
    return "", ast.Module([], [])


def _pairs(tests: Any) -> list[tuple[str, str]]:
    """Return the inputs of tests, and the expected values as source code of Python."""
    if isinstance(tests, StdioTests):
        return [(each.stdin, repr(each.stdout)) for each in tests.cases]
    if isinstance(tests, FunctionalTests):
        return [(json.dumps(each.args), repr(each.expected)) for each in tests.cases]
    return [pair for case in tests.cases for pair in _compared(case)]


def _compared(case: str) -> Iterator[tuple[str, str]]:
    """Yield the calls that a script of tests compares with a literal, and that literal."""
    nodes: list[ast.AST] = []
    with suppress(SyntaxError):
        nodes = [*ast.walk(parse_source(case))]
    for node in nodes:
        match node:
            case (
                ast.Compare(left=left, ops=[ast.Eq()], comparators=[right])
                | ast.Call(func=ast.Attribute(attr="assertEqual"), args=[left, right, *_])
            ):
                for call, value in ((left, right), (right, left)):
                    if isinstance(call, ast.Call) and not isinstance(call.func, ast.Attribute):
                        with suppress(ValueError, TypeError):
                            ast.literal_eval(value)
                            yield ast.unparse(call), ast.unparse(value)


def _conflict(tests: Any, pairs: list[tuple[str, str]]) -> str:
    """Return which input has two expected values; empty if none has, or that may be."""
    is_plain = isinstance(tests, StdioTests | FunctionalTests)
    first: dict[str, str] = {}
    for given, expected in pairs:
        other = first.setdefault(given, expected)
        if other.split() != expected.split() and is_plain:
            return f"for {given[:80]!r}, tests expect {other[:60]} and {expected[:60]}"
    return ""


def _first_argument(function: _Function) -> str:
    given = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    names = [each for each in given if each not in {"self", "cls"}]
    return names[0] if names else "args[0]" if function.args.vararg else "None"


def _with_bodies(tests: Any, tree: ast.Module, value: str | Callable[[_Function], str]) -> str:
    """Return the solution, or else the function that tests call, whose functions give a value."""
    changed = copy.deepcopy(tree)
    if not any(isinstance(each, _Function) for each in ast.walk(changed)):
        called = getattr(tests, "fn_name", "") or tests.entry_point
        name = called.rpartition(".")[2].removesuffix("()") or "solution"
        changed = parse_source(_CALLED.format(name))
    for each in ast.walk(changed):
        if isinstance(each, _Function) and not each.name.startswith("__"):
            source = value if isinstance(value, str) else value(each)
            each.body = [ast.Return(ast.parse(source, mode="eval").body)]
            each.decorator_list = [d for d in each.decorator_list if ast.unparse(d) in _KEPT]
    return ast.unparse(ast.fix_missing_locations(changed))


def _mutants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield programs with one change, and which one: spread evenly over the solution."""
    changes, source = [*_changes(tree)], ast.unparse(tree)
    chosen = {len(changes) * each // _MUTANTS for each in range(_MUTANTS) if changes}
    for node, name, value in (changes[index] for index in sorted(chosen)):
        kept = getattr(node, name)
        setattr(node, name, value)
        mutant = ast.unparse(tree)
        setattr(node, name, kept)
        lines = enumerate(zip(source.splitlines(), mutant.splitlines(), strict=False), 1)
        number, (before, after) = next(each for each in lines if each[1][0] != each[1][1])
        yield mutant, f"line {number}: `{before.strip()[:100]}` became `{after.strip()[:100]}`"


def _changes(node: ast.AST) -> Iterator[tuple[Any, str, Any]]:
    """Yield nodes with a field and another value of it, in the order of the program.

    Loops that might never end are left out, and what has no effect in tests.
    """
    match node:
        case ast.While() | ast.Raise() | ast.AnnAssign() | ast.JoinedStr():
            return
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
            return
        case ast.Call(func=ast.Attribute(attr="setrecursionlimit")):
            return
        case ast.Compare(ops=[operator, *rest]) if type(operator) in _OPPOSITE:
            yield node, "ops", [_OPPOSITE[type(operator)](), *rest]
        case ast.BinOp(op=operator) | ast.BoolOp(op=operator) if type(operator) in _OPPOSITE:
            yield node, "op", _OPPOSITE[type(operator)]()
        case ast.Constant(value=bool() as value):
            yield node, "value", not value
        case ast.Constant(value=int() as value) if abs(value) < 1000:
            yield node, "value", value + 1
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield node, "value", ast.Constant(None)
    parts = node.body if isinstance(node, _Function | ast.ClassDef) else ast.iter_child_nodes(node)
    for part in parts:
        yield from _changes(part)
