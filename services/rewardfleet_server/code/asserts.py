"""Asserts of a request: which process evaluates each, and what is compared with which literal."""

import ast
import builtins
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rewardfleet.wire.code import AssertTests
from rewardfleet.wire.errors import InvalidRequest

from .parser import exclusive_parser

#: Tests that look into the process of the program, or need its event loop.
_LOOKS_INSIDE = re.compile(
    r"\b(?:inspect|doctest|gc|_getframe|settrace|asyncio|await|threading|concurrent|Thread\w*|patch|mock"
    r"|Mock|MagicMock|__main__|__code__|seed|environ|warnings|assertWarns|setrecursionlimit)\b"
    r"|\bsys\s*\.\s*modules\b|\.__(?!init__|name__|enter__|exit__)\w+__|\b(?:dir|vars|locals)\("
)
#: Tests that ask for the types or the identity of objects.
_SENSITIVE = re.compile(
    r"\b(?:isinstance|issubclass|hasattr|type|id|callable|copy|deepcopy|pickle|match|__class__)\b"
    r"|\bis\b(?!\s+(?:not\s+)?(?:None|True|False)\b)"
)
_BUILTINS = frozenset(dir(builtins))
#: What a test may replace: the program gets it for each call.
_STREAMS = {("sys", "stdin"), ("sys", "stdout"), ("sys", "stderr"), ("builtins", "input")}


@dataclass(frozen=True)
class ParsedAssert:
    """One case.

    Attributes:
        kind: `eval`: the program evaluates `source`, its own call with constants. `value`: the
            process of the tests evaluates it. `assert`: that process evaluates the complete case.
            `inside`: the program's process does.
        source: The case, or the expression to be compared with the literal.
        expected: The literal that is expected, in a tuple; None for a complete case.
        is_sensitive: Whether it may notice which objects are in another process.
        asks_identity: Whether it asks for the identity of values, which do not keep theirs: `is`
            for the same, `is not` for different ones.
    """

    kind: Literal["eval", "value", "assert", "inside"]
    source: str
    expected: tuple[Any] | None = None
    is_sensitive: bool = False
    asks_identity: Literal["", "is", "is not"] = ""


def parsed_asserts(tests: AssertTests) -> list[ParsedAssert]:
    """Return the cases of the tests.

    Raises:
        InvalidRequest: A case is not an assert, is not valid Python, or looks into the program's
            process although the tests are strict.
    """
    setup = parse(tests.setup, "tests.setup")
    given = {name for statement in setup for name in _bound_names(statement)}
    classes = {each.name for each in setup if isinstance(each, ast.ClassDef)}
    shared = _shared_state(setup), classes
    found = [_parsed(case, f"tests.cases.{n}", given, shared) for n, case in enumerate(tests.cases)]
    if tests.strict:
        setup_looks_inside = _LOOKS_INSIDE.search(tests.setup) is not None
        for index, each in enumerate(found):
            if each.kind == "inside" or setup_looks_inside:
                raise InvalidRequest(
                    f"tests.cases.{index}: it looks into the program's process, where the program "
                    "can tamper with it, which `strict` does not allow"
                )
    return found


def parse(source: str, field_name: str) -> list[ast.stmt]:
    """Return the statements of source code that the caller wrote.

    Raises:
        InvalidRequest: It is not valid Python.
    """
    try:
        with exclusive_parser():
            return ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidRequest(f"{field_name}: not valid Python: {error}") from None


def _parsed(
    case: str, field_name: str, given: set[str], shared: tuple[set[str], set[str]]
) -> ParsedAssert:
    statements = parse(case, field_name)
    if not any(isinstance(node, ast.Assert) for each in statements for node in ast.walk(each)):
        raise InvalidRequest(f"{field_name}: give one assert statement, or a script with asserts")
    if _LOOKS_INSIDE.search(case) or _changes_inside(statements, *shared):
        return ParsedAssert("inside", case)
    is_sensitive = _SENSITIVE.search(case) is not None
    identity = _identity(statements)
    compared = _compared_with_literal(statements)
    if compared is not None:
        expression, literal = compared
        source = ast.get_source_segment(case, expression)
        if source is not None:
            kind: Literal["eval", "value"] = "eval" if _is_call(expression, given) else "value"
            return ParsedAssert(kind, f"({source}\n)", (literal,), is_sensitive, identity)
    return ParsedAssert("assert", case, None, is_sensitive, identity)


def _identity(statements: Sequence[ast.stmt]) -> Literal["", "is", "is not"]:
    found: set[type[ast.cmpop]] = set()
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Compare):
                for operator, operand in zip(node.ops, node.comparators, strict=True):
                    if not isinstance(operand, ast.Constant):
                        found.add(type(operator))
    return "is not" if ast.IsNot in found else "is" if ast.Is in found else ""


def _shared_state(setup: Sequence[ast.stmt]) -> set[str]:
    """Return the variables of a setup that the program may change, and those of its functions."""
    changeable, variables, used = set(), set(), set()
    for statement in setup:
        match statement:
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                names = set(_bound_names(statement))
                variables |= names
                if _literal(value) is None or isinstance(value, ast.List | ast.Dict | ast.Set):
                    changeable |= names
            case ast.FunctionDef() | ast.ClassDef():
                used |= {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    return changeable | (variables & used)


def _changes_inside(statements: Sequence[ast.stmt], shared: set[str], classes: set[str]) -> bool:
    """Return whether a test replaces parts of modules, or uses state that a setup shares."""
    nodes = [node for statement in statements for node in ast.walk(statement)]
    own = {node.id for node in nodes if isinstance(node, ast.Name) and _is_stored(node)}
    own |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attribute, ctx=ast.Store()):
                if name not in own and (name, attribute) not in _STREAMS:
                    return True
            case ast.Name(id=name) if name in shared:
                return True
            case ast.Attribute(value=ast.Name(id=name)) if name in classes:
                return True  # an attribute of a class of the setup, which the program may change
    return False


def _is_stored(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _compared_with_literal(statements: Sequence[ast.stmt]) -> tuple[ast.expr, Any] | None:
    match statements:
        case [ast.Assert(test=ast.Compare(left=left, ops=[operator], comparators=[right]))]:
            for expression, known in ((left, right), (right, left)):
                literal = _literal(known)
                if literal is not None and _is_equality(operator, literal[0]):
                    return expression, literal[0]
    return None


def _literal(node: ast.expr) -> tuple[Any] | None:
    """Return the value of a literal, in a tuple; None if the expression is not a literal."""
    try:
        return (ast.literal_eval(node),)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None


def _is_equality(operator: ast.cmpop, literal: object) -> bool:
    is_singleton = literal is None or isinstance(literal, bool)
    return isinstance(operator, ast.Eq) or (isinstance(operator, ast.Is) and is_singleton)


def _is_call(node: ast.expr, given: set[str]) -> bool:
    """Return whether an expression is a call of the program with constants.

    Nothing but the program computes its value, so it may be computed in the program's process.
    """
    match node:
        case ast.Call(func=function, args=args, keywords=keywords):
            constants = all(_literal(each) for each in (*args, *(each.value for each in keywords)))
            return constants and _is_of_program(function, given)
    return False


def _is_of_program(node: ast.expr, given: set[str]) -> bool:
    match node:
        case ast.Name(id=name):
            return name not in _BUILTINS and name not in given
        case ast.Attribute(value=ast.Name() as value):
            return _is_of_program(value, given)
        case ast.Attribute(value=value):
            return _is_call(value, given)
    return False


def _bound_names(node: ast.AST) -> Iterator[str]:
    """Return the names that a statement binds, in whatever scope."""
    for each in ast.walk(node):
        match each:
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name):
                yield name
            case ast.alias(name=name, asname=alias):
                yield alias or name.partition(".")[0]
