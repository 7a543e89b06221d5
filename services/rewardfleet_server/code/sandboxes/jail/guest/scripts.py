"""Scripts of tests: they run as their form requires, and their checks are counted.

A script is executed as the main module. Then `check`, functions and classes of tests that it
defines and has not called itself are called as their own runners do: `check` with the entry point,
functions and classes as pytest does (with `parametrize`, without fixtures), `unittest` classes with
their fixtures, coroutines in an event loop of their own.

A check is an assert, a call of a library's `assert…`, an exception that was expected, or a
condition that would raise. Only what was evaluated, and held, is counted.
"""

import ast
import contextlib
import functools
import importlib
import inspect
import itertools
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from .arrays import compare_sizes
from .exceptions import skips
from .proxies import completion, has_attribute, id_of, is_of, is_proxy, is_same, kind_of

#: The name of what scripts call once they are instrumented.
_OWN = "__rewardfleet_{}__"
#: Built-in functions that ask for attributes, classes and identity, and what is called instead.
_ASKING: dict[str, Callable[..., Any]] = {
    "hasattr": has_attribute,
    "id": id_of,
    "isinstance": functools.partial(is_of, isinstance),
    "issubclass": functools.partial(is_of, issubclass),
    "type": kind_of,
}
#: Contexts that expect an exception, a warning or a log line.
_EXPECTING = {
    "assertRaises", "assertRaisesRegex", "assertWarns", "assertWarnsRegex", "assertLogs",
    "assertNoLogs", "raises", "warns", "deprecated_call",
}  # fmt: skip
#: Functions that end a test that has failed.
_FAILING = {"fail", "exit", "_exit", "quit"}
#: Files whose exceptions are the program's.
_OF_PROGRAM = {"boundary.py", "program.py"}
#: Frames for a deeply nested expression, which the compiler accepts.
_MAX_DEPTH = 20_000
#: Parameters that are given the entry point.
_CANDIDATE = "candidate"


class UnsupportedTest(Exception):
    """A test cannot be called: what it needs is not supported."""


class TestScript:
    """A script of tests."""

    def __init__(self, namespace: dict[str, Any], entry_point: str = "") -> None:
        self.checks = 0  #: how many checks were evaluated and held
        self._namespace = namespace
        self._entry_point = entry_point  #: an expression for what `check` is called with, or ""
        self._called: set[str] = set()
        self._failures: list[BaseException] = []

    def prepare(self) -> None:
        """Let instrumented code count its checks here."""
        functions: dict[str, Any] = {"check": self._check, "count": self._count, **_ASKING}
        functions |= {"caught": self._caught, "test": self._test, "same": is_same}
        self._namespace.update({_OWN.format(name): each for name, each in functions.items()})

    def run(self, tree: ast.Module, filename: str = "test.py") -> None:
        """Run a script and its tests. Raise what a check or the script does, or UnsupportedTest."""
        self.prepare()
        names, kinds, own = set[str](), set[type](), {*_defined(tree)}
        for node in ast.walk(tree):
            kinds.add(type(node))
            names.add(getattr(node, "id", "") or getattr(node, "attr", ""))
            if isinstance(getattr(node, "ctx", None), ast.Store):
                own.add(getattr(node, "id", ""))
            elif isinstance(node, ast.arg):
                own.add(node.arg)
        compare_sizes(names)
        asks = bool(kinds & {ast.Is, ast.IsNot} or names & {*_ASKING, "__class__"})
        asks &= not own & _ASKING.keys()  # they are its own
        match tree.body:
            case [ast.Assert(test=test)] if not isinstance(test, ast.Constant):  # as most tests are
                exec(compiled(tree, filename, counts=False, asks=asks), self._namespace)
                self.checks += 1
                return
        if names & {"unittest", "TestCase", "pytest"}:
            _disarm_runners()
        if "asyncio" in names:
            _run_any_awaitable()
        exec(compiled(tree, filename, asks=asks), self._namespace)
        self._call_tests(tree)
        if self._failures:
            raise self._failures[0]

    def value_of(self, source: str) -> Any:
        self.prepare()
        tree = _Objects().visit(ast.parse(source, "test.py", "eval"))
        return eval(compile(tree, "test.py", "eval"), self._namespace)

    # What instrumented code calls

    def _check(self, value: Any) -> bool:
        held = bool(value)
        self.checks += held
        return held

    def _count(self, value: Any = None) -> Any:
        self.checks += 1
        return value

    def _caught(self, lines: tuple[int, ...], is_any: bool) -> None:
        """Remember that the script ignores a check that did not hold, or that did not end.

        Args:
            lines: The lines of checks. Elsewhere, an AssertionError of the program may be expected.
            is_any: Whether the script ignores any error, so that it expects none.
        """
        error = sys.exception()
        if error is not None and error.__traceback__ is not None:
            is_in_check = error.__traceback__.tb_lineno in lines
            *_, (last, _) = traceback.walk_tb(error.__traceback__)
            is_of_test = last.f_code.co_filename not in _OF_PROGRAM
            is_missing = isinstance(error, NameError) and is_of_test  # there may be no program
            is_other = is_in_check and is_any and not is_missing
            if is_in_check or is_of_test if isinstance(error, AssertionError) else is_other:
                self._failures.append(error)

    def _test(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Remember the calls of a test, and failures that its runner only reports."""

        @functools.wraps(function)
        async def async_test(*args: Any, **kwargs: Any) -> Any:
            with self._recorded(function.__qualname__):
                return await function(*args, **kwargs)

        is_async = inspect.iscoroutinefunction(function)
        return async_test if is_async else self._recorded(function.__qualname__)(function)

    @contextlib.contextmanager
    def _recorded(self, name: str) -> Iterator[None]:
        self._called.add(name)
        try:
            yield
        except BaseException as error:
            if not isinstance(error, skips()):
                self._failures.append(error)
            raise

    # Calling tests

    def _call_tests(self, tree: ast.Module) -> None:
        own = {name: dict.get(self._namespace, name) for name in _defined(tree)}
        _hook(types.SimpleNamespace(**own), "setUpModule", "setup_module")
        for name, value in own.items():
            if isinstance(value, type):
                self._call_class(name, value)
            elif not callable(value) or name in self._called:
                continue
            elif name == "check" or name.startswith("test"):
                self._call(value, name)

    def _call_class(self, name: str, kind: Any) -> None:
        unittest = sys.modules.get("unittest")
        if unittest is not None and issubclass(kind, unittest.TestCase):
            self._call_test_case(unittest, kind)
            return
        if not name.startswith("Test") or "__init__" in vars(kind):
            return
        _hook(kind, "setup_class")
        for method in _test_methods(kind):
            if f"{name}.{method}" in self._called:
                continue
            instance = kind()
            _hook(instance, "setup_method", "setup")
            marks = [*getattr(kind, "pytestmark", ())]
            self._call(getattr(instance, method), f"{name}.{method}", marks)
            _hook(instance, "teardown_method", "teardown")
        _hook(kind, "teardown_class")

    def _call_test_case(self, unittest: Any, kind: Any) -> None:
        tests = unittest.defaultTestLoader.loadTestsFromTestCase(kind)
        if not tests.countTestCases() or getattr(kind, "__unittest_skip__", False):
            return
        if any(f"{kind.__qualname__}.{name}" in self._called for name in _test_methods(kind)):
            return
        kind.setUpClass()
        for test in tests:
            method = getattr(test, test._testMethodName)
            marks = ("__unittest_skip__", "__unittest_expecting_failure__")
            if not any(getattr(method, name, False) for name in marks):
                with _skipping():
                    test.debug()
        kind.tearDownClass()
        kind.doClassCleanups()

    def _call(self, function: Any, name: str, marks: Iterable[Any] = ()) -> None:
        """Call a test function once for each of its parameters."""
        marks = [*marks, *getattr(function, "pytestmark", ())]
        required = _required(function)
        if any(_is_left_out(mark) for mark in marks):
            return
        for arguments in _parameters(marks):
            missing = [each for each in required if each not in arguments]
            takes_entry = name == "check" or missing == [_CANDIDATE]
            if self._entry_point and takes_entry and len(missing) == 1:
                found = eval(self._entry_point, self._namespace)
                if is_proxy(found):  # it may be called like a method of a built-in type
                    object.__setattr__(found, "_p_name", "")
                arguments[missing.pop()] = found
            if missing and name == "check":  # nothing says what it is for
                return
            fixtures = missing or [a for m in marks if m.name == "usefixtures" for a in m.args]
            if fixtures:
                raise UnsupportedTest(
                    f"`{name}` needs {', '.join(map(repr, fixtures))}: fixtures of pytest are not "
                    "supported"
                )
            with _skipping():
                result = function(**arguments)
                if inspect.iscoroutine(result):
                    importlib.import_module("asyncio").run(result)


@contextlib.contextmanager
def _skipping() -> Iterator[None]:
    """Let a test end itself without a failure; it may import what it raises for that."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, skips()):
            raise


def _defined(tree: ast.Module) -> Iterator[str]:
    """Yield the functions and classes that a script defines, also below conditions."""
    for node in tree.body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.If() | ast.Try() | ast.With():
                yield from _defined(ast.Module([*node.body, *getattr(node, "orelse", ())], []))


def _test_methods(kind: type) -> list[str]:
    names = itertools.chain.from_iterable(vars(each) for each in reversed(kind.__mro__))
    tests = dict.fromkeys(name for name in names if name.startswith("test"))
    return [name for name in tests if callable(getattr(kind, name))]


def _hook(owner: Any, *names: str) -> None:
    for name in names:
        hook = getattr(owner, name, None)
        if callable(hook):
            hook(*[None] * len(_required(hook)))


def _required(function: Any) -> list[str]:
    """Return the parameters of a function that have no default."""
    variable = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variable]


def _is_left_out(mark: Any) -> bool:
    """Return whether pytest does not run a test, or does not expect it to pass."""
    is_true = bool(mark.args) and mark.args[0] is True
    return mark.name in {"skip", "xfail"} or (mark.name == "skipif" and is_true)


def _parameters(marks: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Yield the arguments of each call, as `pytest.mark.parametrize` gives them."""
    choices = []
    for mark in marks:
        if mark.name == "parametrize":
            given = {**dict(zip(("argnames", "argvalues"), mark.args, strict=False)), **mark.kwargs}
            names = given["argnames"]
            names = names.split(",") if isinstance(names, str) else names
            names = [name.strip() for name in names if name.strip()]
            choices.append([_arguments(names, each) for each in given["argvalues"]])
    for chosen in itertools.product(*choices):
        arguments: dict[str, Any] = {}
        for each in chosen:
            arguments |= each or {}
        if None not in chosen:
            yield arguments


def _arguments(names: list[str], value: Any) -> dict[str, Any] | None:
    """Return the arguments of one parameter set; None if it is skipped."""
    if type(value).__name__ == "ParameterSet":  # of `pytest.param`
        if any(_is_left_out(getattr(mark, "mark", mark)) for mark in value.marks):
            return None
        value = value.values if len(names) > 1 else value.values[0]
    return dict(zip(names, value if len(names) > 1 else [value], strict=True))


def _run_any_awaitable() -> None:
    """Let `asyncio.run` accept a coroutine that is in another process."""
    asyncio: Any = importlib.import_module("asyncio")
    run = asyncio.run
    # `completion` makes a coroutine of one as well.
    asyncio.run = lambda main, **options: run(completion(main), **options)


def _disarm_runners() -> None:
    """Let `unittest.main` and `pytest.main` do nothing: their tests are called anyway."""
    unittest: Any = importlib.import_module("unittest")
    unittest.main = lambda *_, **__: 0
    # A runner would only report what fails in it.
    unittest.TestCase.subTest = lambda *_, **__: contextlib.nullcontext()
    unittest.TestCase.assertIs = _assert_is
    unittest.TestCase.assertIsNot = functools.partialmethod(_assert_is, held=False)
    with contextlib.suppress(ImportError):
        vars(importlib.import_module("pytest"))["main"] = unittest.main


def _assert_is(case: Any, first: Any, second: Any, msg: Any = None, *, held: bool = True) -> None:
    if is_same(first, second) is not held:
        case.fail(msg or f"{first!r} is {'not ' if held else ''}{second!r}")


# Instrumentation


def compiled(
    tree: ast.Module, filename: str, *, counts: bool = True, asks: bool = False
) -> types.CodeType:
    """Compile a script, which is changed in place.

    Args:
        counts: Whether it counts its checks.
        asks: Whether it asks for the identity or the class of objects.
    """
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(_MAX_DEPTH)
    try:
        if asks:
            tree = _Objects().visit(tree)
        if counts:
            body = _Instrument(functions_of(tree)).block(tree.body)
            tree = ast.fix_missing_locations(ast.Module(body, []))
        return compile(tree, filename, "exec")
    finally:
        sys.setrecursionlimit(limit)


class _Objects(ast.NodeTransformer):
    """Lets scripts ask for the identity and the class of objects in the other process."""

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.Compare(ops=[ast.Is() | ast.IsNot() as operator], comparators=[right]):
                if not any(isinstance(each, ast.Constant) for each in (node.left, right)):
                    same: ast.expr = _call("same", node.left, right)
                    same = ast.UnaryOp(ast.Not(), same) if isinstance(operator, ast.IsNot) else same
                    return _placed(same, node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _ASKING:
                if name != "type" or len(args) == 1:
                    return _placed(_call(name, *args), node)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        is_read = isinstance(node.ctx, ast.Load) and node.attr == "__class__"
        return _placed(_call("type", node.value), node) if is_read else node


def _placed(node: ast.expr, place: ast.expr) -> ast.expr:
    return ast.fix_missing_locations(ast.copy_location(node, place))


class _Instrument(ast.NodeTransformer):
    """Inserts calls that count the checks of a script.

    Calls of its own functions do not count as checks: what they assert does.
    """

    def __init__(self, own: Mapping[str, bool]) -> None:
        self._own = own
        self._in_handler = False

    def visit_Name(self, node: ast.Name) -> ast.expr:
        is_main = node.id == "__name__" and isinstance(node.ctx, ast.Load)
        return ast.copy_location(ast.Constant("__main__"), node) if is_main else node

    def visit_Assert(self, node: ast.Assert) -> ast.Assert:
        is_constant = isinstance(node.test, ast.Constant) and not self._in_handler
        self.generic_visit(node)
        if not is_constant:
            node.test = ast.copy_location(_call("check", node.test), node.test)
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        name = _called_name(node)
        if name in self._own:
            return node
        if name.startswith("assert") or (name in _EXPECTING and len(node.args) > 1):
            return ast.copy_location(_call("count", node), node)
        return node

    def visit_With(self, node: Any) -> Any:
        called = [_called_name(each.context_expr) for each in node.items]
        for item, name in zip(node.items, called, strict=True):
            if name in _EXPECTING:
                self.generic_visit(item.context_expr)
            else:
                self.visit(item)
        lines = self._lines(node.body)
        node.body = self.block(node.body)
        if lines and "suppress" in called:
            failed = ast.Name("AssertionError", ast.Load())
            note = _statement(node, "caught", lines, False)
            handler = ast.ExceptHandler(failed, None, [note, ast.Raise()])
            node.body = [ast.Try(node.body, [handler], [], [])]
            ast.fix_missing_locations(node)
        return node if _EXPECTING.isdisjoint(called) else [node, _statement(node, "count")]

    visit_AsyncWith = visit_With  # noqa: N815 - as `ast` calls it; below as well

    def visit_Try(self, node: Any) -> Any:
        direct = [*node.body, *node.orelse]
        expects = any(_fails(each) for each in direct)
        lines = self._lines(direct)
        ignores = [not has_check(each.body, self._own) for each in node.handlers]
        node.body, node.orelse = self.block(node.body), self.block(node.orelse)
        before, self._in_handler = self._in_handler, True
        for handler, is_ignoring in zip(node.handlers, ignores, strict=True):
            handler.body = self.block(handler.body)
            if expects:
                handler.body.insert(0, _statement(handler, "count"))
            elif lines and is_ignoring:
                kind = handler.type and ast.unparse(handler.type)
                is_any = kind in {None, "Exception", "BaseException"}
                handler.body.insert(0, _statement(handler, "caught", lines, is_any))
        self._in_handler = before
        node.finalbody = self.block(node.finalbody)
        return node

    visit_TryStar = visit_Try  # noqa: N815

    def visit_If(self, node: ast.If) -> ast.If:
        is_check = any(map(_fails, node.body))
        self.generic_visit(node)
        if is_check and not (node.orelse and isinstance(node.orelse[0], ast.If)):
            node.orelse.insert(0, _statement(node, "count"))
        return node

    def visit_FunctionDef(self, node: Any) -> Any:
        self.generic_visit(node)
        if node.name == "check" or node.name.startswith("test"):
            test = ast.Name(_OWN.format("test"), ast.Load())
            node.decorator_list.append(ast.copy_location(test, node))
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_List(self, node: Any) -> Any:
        """Leave data as it is, of which some scripts have megabytes."""
        return node if _is_data(node) else self.generic_visit(node)

    visit_Tuple = visit_Set = visit_List  # noqa: N815

    def _lines(self, statements: Iterable[ast.stmt]) -> tuple[int, ...]:
        """Return the lines of the checks in statements."""
        found: set[int] = set()
        for node in itertools.chain.from_iterable(map(ast.walk, statements)):
            if isinstance(node, (ast.stmt, ast.expr)) and _is_check(node, self._own):
                found.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        return tuple(found)

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        block: list[ast.stmt] = []
        for each in statements:
            found = self.visit(each)
            block += found if isinstance(found, list) else [found]
        return block


def _is_data(node: Any) -> bool:
    first = node.elts[0] if node.elts else None
    while isinstance(first, (ast.List, ast.Tuple, ast.Set)) and first.elts:
        first = first.elts[0]
    return isinstance(first, (ast.Constant, ast.Dict))


def _called_name(node: ast.AST) -> str:
    match node:
        case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
            return name
    return ""


def _fails(node: ast.stmt) -> bool:
    """Return whether a statement always ends a test as failed."""
    match node:
        case ast.Raise() | ast.Assert(test=ast.Constant(value=None | False | 0)):
            return True
        case ast.Expr(value=ast.Call() as call):
            return _called_name(call) in _FAILING
    return False


def functions_of(tree: ast.AST) -> dict[str, bool]:
    """Return the functions that a script defines, and whether they do checks, or call others."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    functions = dict.fromkeys((node.name for node in nodes), False)
    while more := [n for n in nodes if not functions[n.name] and has_check(n.body, functions)]:
        functions |= dict.fromkeys((node.name for node in more), True)
    return functions


def has_check(statements: Iterable[ast.stmt], own: Mapping[str, bool]) -> bool:
    """Return whether statements of a script, with its `functions_of`, can find a program wrong."""
    nodes = itertools.chain.from_iterable(map(ast.walk, statements))
    return any(_is_check(node, own) for node in nodes)


def _is_check(node: ast.AST, own: Mapping[str, bool]) -> bool:
    name = _called_name(node)
    is_known = name.startswith("assert") or name in {"fail", *_EXPECTING}
    return isinstance(node, (ast.Assert, ast.Raise)) or own.get(name, is_known)


def _call(name: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(_OWN.format(name), ast.Load()), list(args), [])


def _statement(place: ast.AST, name: str, *args: Any) -> ast.stmt:
    statement = ast.Expr(_call(name, *map(ast.Constant, args)))
    return ast.fix_missing_locations(ast.copy_location(statement, place))
