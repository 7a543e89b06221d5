"""Asserts of a request: which process evaluates each, and what is compared with which literal."""

import ast
import builtins
import sys
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from rewardfleet.text.python import parse_source
from rewardfleet.wire.code import AssertTests
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet_server.code.sandboxes.jail.guest.names import (
    PROGRAM_MODULES,
    STANDARD_NAMES,
    Names,
    imported_packages,
)
from rewardfleet_server.code.sandboxes.jail.guest.scripts import functions_of, has_check

#: Modules, names and arguments of mocks by which tests look into the process of the program. The
#: last ones make mocks that call what they replace, or that are like an object of the program.
_MODULES_INSIDE = {"gc", "threading", "concurrent"}
_LOOKS_INSIDE = {
    *_MODULES_INSIDE, "Thread", "ThreadPoolExecutor", "_getframe", "settrace", "setrecursionlimit",
    "vars", "locals", "sys.modules", "create_autospec", "PropertyMock", "AsyncMock",
    "patch.multiple", "wraps=", "spec=", "spec_set=", "autospec=",
}  # fmt: skip
_MOCKS = {"patch", "object", "Mock", "MagicMock", "NonCallableMock", "NonCallableMagicMock"}
#: Special attributes that a test may not use of objects in another process.
_OF_PROCESS = {".__builtins__", ".__code__", ".__closure__", ".__globals__", ".__subclasses__"}
#: Packages whose objects cross the boundary as values, or that tests only run with.
_COMMON_PACKAGES = sys.stdlib_module_names - {"asyncio"} | {"numpy", "pytest", *PROGRAM_MODULES}
#: Functions of constants whose results a program cannot change.
_IMMUTABLE = {"bool", "bytes", "complex", "float", "frozenset", "int", "range", "str", "tuple"}
_BUILTINS = frozenset(dir(builtins))


@dataclass(frozen=True)
class ParsedAssert:
    """One case."""

    #: `eval`: the program evaluates `source`, its own call with constants. `value`: the process of
    #: the tests evaluates it. `assert`: that process evaluates the complete case. `inside`: the
    #: program's process does. `alone`: see `Check`.
    kind: Literal["eval", "value", "assert", "inside", "alone"]
    source: str  #: the case, or the expression to be compared with the literal
    #: The literal that is expected, in a tuple; None for a complete case.
    expected: tuple[Any] | None = None
    fails_alone: bool = False  #: whether it is known to fail without a program
    #: Whether it may need objects that cannot cross the boundary: then it is evaluated again in the
    #: program's process if it fails. The test alone decides that, and nothing that a program does.
    may_repeat: bool = False


def parsed_asserts(tests: AssertTests) -> list[ParsedAssert]:
    """Return the cases; raise InvalidRequest if one has no check, or is not valid Python."""
    setup = parse(tests.setup, "tests.setup")
    given = {name for statement in setup for name in _bound_names(statement)}
    given.discard(tests.entry_point.partition(".")[0].removesuffix("()"))
    classes = {each.name for each in setup if isinstance(each, ast.ClassDef)}
    checks = has_check(setup, functions_of(ast.Module(setup, [])))
    shared = _shared_state(setup)
    parsed = []
    for number, case in enumerate(tests.cases):
        field_name = f"tests.cases.{number}"
        body = parse(case, field_name)
        nodes = [node for statement in body for node in ast.walk(statement)]
        has_own = any(isinstance(node, ast.Assert) for node in nodes)
        if not (checks or has_own or has_check(body, functions_of(ast.Module(body, [])))):
            accepted = "give one assert statement, or a script with asserts"
            raise InvalidRequest(f"{field_name}: {accepted}: it has no check")
        names = _identifiers(nodes)
        if names & (_LOOKS_INSIDE | _OF_PROCESS) or _changes_inside(nodes, shared, classes):
            parsed.append(ParsedAssert("inside", case))
        else:
            may_repeat = _needs_objects([*setup, *body])
            parsed.append(ParsedAssert(*_parts(case, body, given), may_repeat))
    return parsed


def parse(source: str, field_name: str) -> list[ast.stmt]:
    """Parse source code that the caller wrote; raise InvalidRequest if it is not valid Python."""
    try:
        return parse_source(source).body
    except SyntaxError as error:
        raise InvalidRequest(f"{field_name}: not valid Python: {error}") from None


def _parts(
    case: str, statements: Sequence[ast.stmt], given: AbstractSet[str]
) -> tuple[Literal["eval", "value", "assert"], str, tuple[Any] | None, bool]:
    """Return what evaluates a case and its source, the literal, and whether it fails alone."""
    expression, literal = _compared_with_literal(statements) or (None, None)
    segment = expression and ast.get_source_segment(case, expression)
    if expression is None or segment is None:
        return "assert", case, None, _fails_alone(statements, given)
    if _is_call(expression, given):
        return "eval", f"({segment}\n)", (literal,), True
    return "value", f"({segment}\n)", (literal,), _fails_alone(statements, given)


def _identifiers(nodes: Sequence[ast.AST]) -> set[str]:
    """Return the names and attributes that a test uses, like `sys.modules`; no words of texts."""
    found, variables = set(), set()
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                variables.add(name)
            case ast.Name(id=name):  # a function of the program may be named like a module
                found |= {name} - _MODULES_INSIDE
            case ast.Attribute(value=ast.Name(id=name)) if name in _MODULES_INSIDE:
                found.add(name)
            case ast.Attribute(value=ast.Name(id="sys"), attr="modules"):
                found.add("sys.modules")
            case ast.Attribute(value=ast.Name(id="patch") | ast.Attribute(attr="patch"), attr=name):
                found.add(f"patch.{name}")
            case ast.Attribute(attr=name):
                found.add(f".{name}" if name.startswith("__") else name)
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), keywords=keywords) if (
                name in _MOCKS
            ):
                found |= {f"{each.arg}=" for each in keywords}
            case ast.alias(name=name):
                found |= {*name.split(".")}
    return found - variables


def _fails_alone(statements: Sequence[ast.stmt], given: AbstractSet[str]) -> bool:
    """Return whether an assert uses a name that nothing defines, whatever else is true."""
    match statements:
        case [ast.Assert(test=test)]:
            known = _BUILTINS | given | STANDARD_NAMES.keys()
            with suppress(RecursionError):
                return any(name not in known for name in _always_evaluated(test))
    return False


def _always_evaluated(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Load()):
            yield name
        case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            pass
        case ast.BoolOp(values=[first, *_]) | ast.IfExp(test=first):
            yield from _always_evaluated(first)
        case ast.Compare(left=left, comparators=[right, *_]):
            yield from _always_evaluated(left)
            yield from _always_evaluated(right)
        case _:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    yield from _always_evaluated(child)


def _needs_objects(statements: Sequence[ast.stmt]) -> bool:
    """Return whether a test derives from or matches classes, or uses foreign packages."""
    tree = ast.Module([*statements], [])
    free = Names(tree).used - _BUILTINS - STANDARD_NAMES.keys()
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(bases=bases) if free & {getattr(each, "id", "") for each in bases}:
                return True
            case ast.MatchMapping():
                return True
            case ast.MatchClass(cls=ast.Name(id=name)) if name in free:
                return True
    return not _COMMON_PACKAGES.issuperset(imported_packages(tree))


def _shared_state(setup: Sequence[ast.stmt]) -> set[str]:
    """Return the variables of a setup that the program may change, and those of its functions."""
    changeable, variables, used = set(), set(), set()
    for statement in setup:
        match statement:
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                names = set(_bound_names(statement))
                variables |= names
                if not _is_immutable(value):
                    changeable |= names
            case ast.FunctionDef() | ast.ClassDef():
                used |= {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    return changeable | (variables & used)


def _is_immutable(node: ast.expr) -> bool:
    match node:
        case ast.List() | ast.Dict() | ast.Set():
            return False
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return name in _IMMUTABLE and all(map(_literal, args))
        case ast.Attribute(value=ast.Name(id="math")):
            return True
        case ast.UnaryOp(operand=operand):
            return _is_immutable(operand)
        case ast.BinOp(left=left, right=right):
            return _is_immutable(left) and _is_immutable(right)
    return _literal(node) is not None


def _changes_inside(
    nodes: Sequence[ast.AST], shared: AbstractSet[str], classes: AbstractSet[str]
) -> bool:
    """Return whether a test uses state that a setup shares, or changes a class of the program."""
    own = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    own |= {
        each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    }
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id=name), ctx=ast.Store()) if name[:1].isupper():
                if name not in own:
                    return True
            case ast.Name(id=name) if name in shared:
                return True
            case ast.Attribute(value=ast.Name(id=name)) if name in classes:
                return True  # an attribute of a class of the setup, which the program may change
    return False


def _compared_with_literal(statements: Sequence[ast.stmt]) -> tuple[ast.expr, Any] | None:
    match statements:
        case [ast.Assert(test=ast.Compare(left=left, ops=[operator], comparators=[right]))]:
            for expression, known in ((left, right), (right, left)):
                if (literal := _literal(known)) is not None:
                    is_singleton = literal[0] is None or isinstance(literal[0], bool)
                    if isinstance(operator, ast.Eq | ast.Is if is_singleton else ast.Eq):
                        return expression, literal[0]
    return None


def _literal(node: ast.expr) -> tuple[Any] | None:
    """Return the value of a literal, in a tuple; None if the expression is not a literal."""
    try:
        return (ast.literal_eval(node),)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None


def _is_call(node: ast.expr, given: AbstractSet[str]) -> bool:
    """Return whether it is a call of the program with constants: nothing else computes its value.

    So that may be done in the program's process.
    """
    match node:
        case ast.Call(func=function, args=args, keywords=keywords):
            constants = all(_literal(each) for each in (*args, *(each.value for each in keywords)))
            return constants and _is_of_program(function, given)
    return False


def _is_of_program(node: ast.expr, given: AbstractSet[str]) -> bool:
    match node:
        case ast.Name(id=name):
            return name not in _BUILTINS and name not in given
        case ast.Attribute(value=ast.Name() as value):
            return _is_of_program(value, given)
        case ast.Attribute(value=value):
            return _is_call(value, given)
    return False


def _bound_names(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        match each:
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield each.name
            case ast.alias(name=name, asname=alias):
                yield alias or name.partition(".")[0]
