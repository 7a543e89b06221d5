"""The programs that are tried on a row of the code service."""

import ast
import copy
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from rewardfleet.lazy import Lazy
from rewardfleet.text.python import parse_source
from rewardfleet.wire.code import (
    AssertTests,
    CodeRequest,
    DatasetTests,
    FunctionalTests,
    PlainTests,
    StdioTests,
)
from rewardfleet.wire.errors import InvalidRequest

from .probes import Answers, Probe, Tried

# The service's own readers, which need no packages besides those of the client.
_READ_ROW = Lazy("rewardfleet_server.code.datasets.rows:read_row")
_SOLUTION = Lazy("rewardfleet_server.code.datasets.solutions:first_solution_of")

#: Mutants of a solution, at most.
_MUTANTS = 3
#: Words that are no answer.
_WORDS = "lint: no answer 7 zebra"
#: What each operator becomes in a mutant.
_OPPOSITE: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE,
    ast.LtE: ast.Gt, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def answers(request: CodeRequest, row: Mapping[str, Any]) -> Answers:
    """Return the programs that are tried on a row.

    Raises:
        InvalidRequest: The row cannot be read.
    """
    tests, limit = request.tests, None
    solution = ""
    if isinstance(tests, DatasetTests):
        found = _READ_ROW(tests)
        with suppress(InvalidRequest):
            solution = _READ_ROW(tests.model_copy(update={"check_reference": True})).solution
        tests, limit = found.tests, found.cpu_s
    else:
        with suppress(InvalidRequest):
            solution = _SOLUTION(dict(row))
    if limit is None or "cpu_s" in request.limits.model_fields_set:
        limit = request.limits.cpu_s
    program, tree = _parsed(solution, tests)
    pairs = _pairs(tests)
    probes = [
        Tried(Probe.EMPTY, "x = 1", "it does nothing"),
        Tried(Probe.ANYTHING, _giving(repr(_WORDS), tests, tree), f"it gives {_WORDS!r}"),
        Tried(Probe.ECHO, _echo(tests, tree), "it gives back its input"),
    ]
    if not isinstance(tests, StdioTests):
        for value in ("None", "True"):
            text = _giving(value, tests, tree)
            probes.append(Tried(Probe.CONSTANT, text, f"it always returns {value}"))
    if pairs:
        first = pairs[0][1]
        is_constant = len(pairs) > 1 and len({expected for _, expected in pairs}) == 1
        kind = Probe.CONSTANT if is_constant else Probe.FIRST_OUTPUT
        note = f"it always gives {first[:60]}; the row has {len(tests.cases)} tests"
        probes.append(Tried(kind, _giving(first, tests, tree), note))
    if program:
        probes += [
            Tried(Probe.SOLUTION, program),
            Tried(Probe.AGAIN, f"{program}\nlint_second_run = 1\n"),
            *(Tried(Probe.MUTANT, *each) for each in _mutants(tree)),
        ]
    return Answers(probes, limit, _conflict(tests, pairs))


def _parsed(solution: str, tests: PlainTests) -> tuple[str, ast.Module]:
    """Return a solution as a complete program, and its tree; an empty one if it is no Python."""
    prompt = "" if isinstance(tests, StdioTests) else tests.prompt
    for text in (solution, prompt + solution) if solution else ():
        with suppress(SyntaxError):
            return text, parse_source(text)
    return "", ast.Module([], [])


# What tests ask


def _pairs(tests: PlainTests) -> list[tuple[str, str]]:
    """Return the input and the expected value of tests, the latter as source code of Python."""
    if isinstance(tests, StdioTests):
        return [(each.stdin, repr(each.stdout)) for each in tests.cases]
    if isinstance(tests, FunctionalTests):
        return [(json.dumps(each.args), repr(each.expected)) for each in tests.cases]
    return [pair for case in tests.cases for pair in _compared(case)]


def _compared(case: str) -> Iterator[tuple[str, str]]:
    """Yield what a script of tests compares with a literal, and that literal."""
    try:
        nodes = [*ast.walk(parse_source(case))]
    except SyntaxError:
        return
    for node in nodes:
        match node:
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
                pair = left, right
            case ast.Call(func=ast.Attribute(attr="assertEqual"), args=[left, right, *_]):
                pair = left, right
            case _:
                continue
        for call, value in (pair, pair[::-1]):
            if isinstance(call, ast.Call) and not isinstance(call.func, ast.Attribute):
                with suppress(ValueError, TypeError):
                    ast.literal_eval(value)
                    yield ast.unparse(call), ast.unparse(value)


def _conflict(tests: PlainTests, pairs: list[tuple[str, str]]) -> str:
    """Return which input has two expected values; empty if none has, or a program decides."""
    if isinstance(tests, StdioTests) and tests.checker_program:
        return ""
    first: dict[str, str] = {}
    for given, expected in pairs if not isinstance(tests, AssertTests) else ():
        if (other := first.setdefault(given, expected)).split() != expected.split():
            return f"for {given[:80]!r}, tests expect {other[:60]} and {expected[:60]}"
    return ""


# Programs


def _giving(value: str, tests: PlainTests, tree: ast.Module) -> str:
    """Return a program that prints a value, or all of whose functions return it."""
    if isinstance(tests, StdioTests):
        return f"print({value})"
    return _with_bodies(tests, tree, lambda _: value)


def _echo(tests: PlainTests, tree: ast.Module) -> str:
    if isinstance(tests, StdioTests):
        return "import sys\nprint(sys.stdin.read())"
    return _with_bodies(tests, tree, _first_argument)


def _first_argument(function: _Function) -> str:
    given = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    names = [each for each in given if each not in {"self", "cls"}]
    return names[0] if names else "args[0]" if function.args.vararg else "None"


def _with_bodies(tests: PlainTests, tree: ast.Module, value: Callable[[_Function], str]) -> str:
    """Return the solution with other functions; without one, the function that tests call."""
    changed = copy.deepcopy(tree)
    functions = [each for each in ast.walk(changed) if isinstance(each, _Function)]
    if not functions:
        called = getattr(tests, "fn_name", "") or getattr(tests, "entry_point", "")
        name = called.rpartition(".")[2].removesuffix("()") or "solution"
        changed = parse_source(
            f"class Solution:\n def {name}(self, *args): 0\ndef {name}(*args): 0"
        )
        functions = [each for each in ast.walk(changed) if isinstance(each, _Function)]
    for function in functions:
        if not function.name.startswith("__"):
            function.body = [ast.Return(ast.parse(value(function), mode="eval").body)]
            function.decorator_list = [
                each
                for each in function.decorator_list
                if isinstance(each, ast.Name)
                and each.id in {"staticmethod", "classmethod", "property"}
            ]
    return ast.unparse(ast.fix_missing_locations(changed))


def _mutants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield programs with one change, and which one: spread evenly over the solution."""
    changes, source = [*_changes(tree)], ast.unparse(tree)
    for index in sorted({len(changes) * k // _MUTANTS for k in range(_MUTANTS)} if changes else ()):
        node, name, value = changes[index]
        kept = getattr(node, name)
        setattr(node, name, value)
        mutant = ast.unparse(tree)
        setattr(node, name, kept)
        lines = zip(source.splitlines(), mutant.splitlines(), strict=False)
        for number, (before, after) in enumerate(lines, 1):
            if before != after:
                note = f"line {number}: `{before.strip()[:100]}` became `{after.strip()[:100]}`"
                yield mutant, note
                break


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
