"""How functions on LeetCode's lists and trees, in place, and methods of classes are called."""

import ast
import builtins
import collections
import re
import typing
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rewardfleet.text.python import parse_source
from rewardfleet.wire.code import FunctionalCase, FunctionalTests, PlainTests
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet_server.code.sandboxes.jail.guest.nodes import NODES, Signature, build, built, flat

from .completion import parsed_prompt

#: Names of annotations whose values are those of JSON, or equal them.
_KNOWN = {*dir(builtins), *dir(typing), *dir(collections), "Decimal", "Fraction"}
#: A class that starter code describes in a comment or a docstring.
_DESCRIBED = re.compile(r"^[ \t]*(?:#[ \t]*)?class[ \t]+(\w+)[ \t]*[:(]", re.MULTILINE)
#: The last name of an import, a variable, and a class that is derived from another one.
_GIVEN = re.compile(
    r"^(?:(?:from|import)\b[^\n]*\b|class[ \t]+)?(\w+)(?=[ \t]*(?:=|$|\(\w))", re.MULTILINE
)
_IN_PLACE = re.compile(r"modify\s+`*(\w+)`*\s+in[- ]?place", re.IGNORECASE)
_RETURNS_NONE = re.compile(r":rtype:\s*(?:None|void)\b")


class CallForm(NamedTuple):
    """How a case is called; see `Check`."""

    signatures: tuple[Signature, ...]
    methods: tuple[str, ...] = ()


class _Function(NamedTuple):
    signature: Signature
    names: Sequence[str] = ()  #: of its parameters
    least: int = 0  #: arguments that it requires

    def of(self, args: Sequence[Any]) -> Signature:
        """Return the signature for so many arguments."""
        kinds = self.signature.kinds
        if self.names and not self.least <= len(args) <= len(kinds):
            raise ValueError(f"{len(args)} arguments, where the starter code has {len(kinds)}")
        return self.signature._replace(kinds=[*kinds, *[None] * len(args)][: len(args)])


def call_forms(tests: PlainTests, solution: str | None) -> tuple[PlainTests, Sequence[CallForm]]:
    """Return the tests with their values, and how each case is called, if not as any function.

    The solution of the row counts where the starter code says nothing.

    Raises:
        InvalidRequest: What the function takes or returns is not supported, or a case is not of it.
    """
    if not isinstance(tests, FunctionalTests):
        return tests, ()
    name, prompt = tests.fn_name, parsed_prompt(tests.prompt)[1] or []
    own = _statements(solution or "")
    is_class = all(_is_operations(each, name) for each in tests.cases)
    kind: Any = ast.ClassDef if is_class else ast.FunctionDef
    node = _defined(prompt, kind, name) or _defined(own, kind, name)
    known = _KNOWN | {*_GIVEN.findall(f"{tests.prompt}\n{solution}")}
    defined = node.body if is_class and node else [node]
    functions = {
        each.name: _function(each, known) for each in defined if isinstance(each, ast.FunctionDef)
    }
    function = functions.get(name, _Function(Signature([])))
    signature = function.signature
    if not is_class:
        helpers = {each.name for each in prompt if isinstance(each, ast.ClassDef)} - NODES.keys()
        used = str(signature)
        for each in {*_DESCRIBED.findall(tests.prompt)} - known - helpers:
            if each not in NODES or each not in used:
                raise _unsupported(name, f"{each}, which no annotation of it names")
        is_none = signature.result == "nothing" or _gives_nothing(
            None if node and node.returns else _defined(own, kind, name)
        )
        if tests.in_place or (is_none and any(each.expected is not None for each in tests.cases)):
            signature = signature._replace(changed=_changed(tests, function))
        elif not any([*signature.kinds, signature.result not in (None, "nothing")]):
            return tests, ()
    functions[name] = function._replace(signature=signature)
    cases, forms = [], []
    for number, case in enumerate(tests.cases):
        try:
            form, expected = _form(case, functions, is_class=is_class)
        except ValueError as error:
            raise InvalidRequest(f"tests.cases.{number}: {error}") from None
        forms.append(form)
        cases.append(case.model_copy(update={"expected": expected}))
    return tests.model_copy(update={"cases": cases}), forms


def _form(
    case: FunctionalCase, functions: dict[str, _Function], *, is_class: bool
) -> tuple[CallForm, Any]:
    """Return how a case is called, and what is expected as `flat` has it."""
    unknown = _Function(Signature([]))
    if not is_class:
        (function,) = functions.values()
        signature, expected = _expected(function.of(case.args), case.expected)
        built(signature.kinds, case.args)
        return CallForm((signature,)), expected
    names, given = typing.cast(tuple[Any, Any], case.args)
    results = case.expected
    if not isinstance(results, list) or len(results) != len(names) or results[0] is not None:
        raise ValueError("of operations, a null and the result of each method are expected")
    first, *others = names
    called = []
    for name, args, result in zip(["__init__", *others], given, results, strict=True):
        function = functions.get(name, unknown)
        if function is unknown and functions.keys() - {first} and (args or name != "__init__"):
            raise ValueError(f"the starter code of {first!r} has no {name!r}")
        signature, value = _expected(function.of(args), result)
        built(signature.kinds, args)
        called.append((signature, value))
    signatures, values = zip(*called, strict=True)
    return CallForm(signatures, tuple(names)), [*values]


def _expected(signature: Signature, value: Any) -> tuple[Signature, Any]:
    kinds, result, changed = signature
    kind = result if changed is None else kinds[changed]
    if kind == "nothing":
        if value is not None:
            raise ValueError(f"{value!r:.40} is expected of what returns None")
        return signature, None
    if kind in ("ListNode", "TreeNode") and isinstance(value, int | float | str):
        return signature._replace(result="value"), value
    match value:
        case [list(only)] if kind in ("ListNode", "TreeNode"):  # as in APPS
            value = only
    return signature, flat(kind, build(kind, value))


def _is_operations(case: FunctionalCase, name: str) -> bool:
    match case.args:
        case [[str(first), *others], [*given]]:
            is_one = first == name and len(given) == len(others) + 1
            return is_one and all(isinstance(each, list) for each in given)
    return False


def _function(node: ast.FunctionDef, known: set[str]) -> _Function:
    parameters = [*node.args.posonlyargs, *node.args.args]
    if parameters and parameters[0].arg in {"self", "cls"}:
        del parameters[0]
    kinds = [_kind(each.annotation, node.name, known) for each in parameters]
    returned = node.returns
    is_none = isinstance(returned, ast.Constant) and returned.value is None
    is_none |= bool(_RETURNS_NONE.search(ast.get_docstring(node) or ""))
    result = "nothing" if is_none else _kind(returned, node.name, known)
    least = len(parameters) - len(node.args.defaults)
    return _Function(Signature(kinds, result), [each.arg for each in parameters], least)


def _kind(node: ast.expr | None, function: str, known: set[str]) -> Any:
    """Return the kind of an annotation; see `guest/nodes.py`."""
    match node:
        case ast.Constant(value=str(text)):
            value = getattr((*_statements(text), None)[0], "value", None)
            return _kind(value, function, known)
        case ast.Name(id=name) if name in NODES:
            return name
        case ast.Name(id=name) if name[:1].isupper() and name not in known:
            raise _unsupported(function, name)
        case ast.BinOp(left=left, right=right):
            return _kind(left, function, known) or _kind(right, function, known)
        case ast.Subscript(value=ast.Name(id=name) | ast.Attribute(attr=name), slice=inner):
            inners = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            kind = next((found for i in inners if (found := _kind(i, function, known))), None)
            if kind and name not in {"Optional", "Union", "List", "list"}:
                raise _unsupported(function, f"{name} of {kind}")
            return [kind] if kind and name in {"List", "list"} else kind
    return None


def _unsupported(function: str, what: str) -> InvalidRequest:
    return InvalidRequest(
        f"tests.prompt: {function!r} is about {what}: not supported; arguments and results are "
        "values of JSON, ListNode or TreeNode, or lists of these"
    )


def _changed(tests: FunctionalTests, function: _Function) -> int:
    """Return the argument that a function changes: which its text names, or the first list."""
    if (found := _IN_PLACE.search(tests.prompt)) and found[1] in function.names:
        return function.names.index(found[1])
    for index in range(min(len(each.args) for each in tests.cases)):
        is_node = any(function.signature.kinds[index : index + 1])
        if is_node or all(isinstance(each.args[index], list | dict) for each in tests.cases):
            return index
    raise InvalidRequest(f"tests: {tests.fn_name!r} has no argument that it can change in place")


def _defined(body: Sequence[ast.stmt], kind: type[Any], name: str) -> Any:
    nodes = ast.walk(ast.Module([*body], []))
    return next((each for each in nodes if isinstance(each, kind) and each.name == name), None)


def _gives_nothing(function: ast.FunctionDef | None) -> bool:
    values = (ast.Return, ast.Yield, ast.YieldFrom)
    found = [each for each in _own(function) if isinstance(each, values)] if function else [None]
    return all(isinstance(each, ast.Return) and each.value is None for each in found)


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of functions in it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.Lambda):
            yield child
            yield from _own(child)


def _statements(source: str) -> Sequence[ast.stmt]:
    try:
        return parse_source(source).body
    except SyntaxError:
        return []
