"""The process of a run that evaluates the tests, which the program cannot reach.

Names that the tests do not define are those of the program, which is on the other side of the
boundary.
"""

import ast
import builtins
import contextlib
import linecache
import os
import resource
import sys
import traceback
import types
from typing import Any, NoReturn

from .answers import Report, plain
from .boundary import Gone, TestSide
from .confinement import Confinement, limit
from .descriptors import Order, Script, read_script
from .program import close_others, show
from .proxies import Proxy

#: The descriptors of this process are the last ones.
_DESCRIPTORS = 5


#: What `unittest` calls in a module.
HOOKS = {"load_tests", "setUpModule", "tearDownModule"}


class Namespace(dict[str, Any]):
    """The variables of the tests. What they lack is looked up in the program.

    Attributes:
        program_has_run: Whether there are names to look up.
        own_names: Names of built-in or imported functions that the program has replaced, and that
            the current test is about.
    """

    def __init__(self, side: TestSide) -> None:
        super().__init__(__builtins__=builtins, __name__="program", __file__="program.py")
        self.own_names: set[str] = set()
        self.program_has_run = False
        self._side = side

    def __getitem__(self, name: str) -> Any:
        return self.__missing__(name) if name in self.own_names else super().__getitem__(name)

    def __missing__(self, name: str) -> Any:
        if not self.program_has_run or (hasattr(builtins, name) and name not in self.own_names):
            raise KeyError(name)
        try:
            return self._side.look_up(name)
        except NameError:
            raise KeyError(name) from None

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (
            isinstance(name, str) and self.get(name, self) is not self
        )

    def get(self, name: str, default: Any = None) -> Any:
        """Return a variable, of the program as well."""
        try:
            return self[name]
        except KeyError:
            return default


class ProgramModule(types.ModuleType):
    """The program, as tests import it; `unittest.main` also finds the tests in it."""

    def __init__(self, namespace: Namespace) -> None:
        super().__init__("program")
        self.__dict__["_namespace"] = namespace

    def __dir__(self) -> list[str]:
        return list(self.__dict__["_namespace"])

    def __getattr__(self, name: str) -> Any:
        namespace = self.__dict__["_namespace"]
        try:
            if name in HOOKS:  # of the tests only
                return dict.__getitem__(namespace, name)
            return namespace[name]
        except KeyError:
            raise AttributeError(f"module 'program' has no attribute {name!r}") from None


def run_tests(confinement: Confinement, order: Order, descriptors: tuple[int, ...]) -> NoReturn:
    """Evaluate the tests of a run; see `run_files.RunFiles` for the descriptors."""
    link, script_file, stdin, err, report = descriptors[-_DESCRIPTORS:]
    script = read_script(script_file)
    # The values that cross are in the memory of both processes, and here also as JSON.
    order = order._replace(memory_bytes=2 * order.memory_bytes)
    for number, file in enumerate((stdin, err, err)):
        os.dup2(file, number)
    close_others((link, report))
    confinement.apply(order.cpu_s, order.memory_bytes)
    limit(resource.RLIMIT_FSIZE, max(order.output_bytes, order.report_bytes) + 1)
    with contextlib.suppress(Gone):  # the program has ended
        Tester(script, TestSide(link), Report(report, order.report_bytes)).run()
    sys.stdout.flush()
    os._exit(0)


class Tester:
    """Evaluates the tests of a run.

    Args:
        script: Setup and checks.
        side: Leads to the program.
        report: For the answers.
    """

    def __init__(self, script: Script, side: TestSide, report: Report) -> None:
        self.script = script
        self.side = side
        self.report = report
        self.namespace = Namespace(side)
        self.names: set[str] = set()
        self.used_by_setup: set[str] = set()

    def run(self) -> None:
        """Run the setup, wait for the program, and do the checks."""
        err = sys.stderr
        sys.modules["program"] = sys.modules["__main__"] = ProgramModule(self.namespace)
        sys.argv = ["program.py"]
        linecache.cache["setup.py"] = (lambda: self.script.setup,)
        try:
            exec(compile(self.script.setup, "setup.py", "exec"), self.namespace)
        except BaseException as error:
            show(error, err)
            return
        for name, value in self.namespace.items():
            if isinstance(value, type) and value.__module__ == "program":
                self.side.classes[name] = value
                self.side.class_names[value] = name
        self.used_by_setup = used_names(self.script.setup)
        self.names = set(self.side.wait_for_program())
        self.namespace.program_has_run = True
        for check in self.script.checks:
            self.side.decided_by.clear()
            self.side.objects_crossed = False
            self.side.raised.clear()
            self.side.uses.clear()
            answer = self.answer(check, err)
            answer["objects"] = self.side.objects_crossed
            if self.side.decided_by:
                answer["inside"] = min(self.side.decided_by)[:100]
            self.report.add(check["nonce"], answer)
            err.flush()

    def answer(self, check: dict[str, Any], err: Any) -> dict[str, Any]:  # noqa: PLR0911 - one for each end
        """Do one check; return whether it held, or a value, or what was raised."""
        source = check.get("value") or check.get("assert") or ""
        linecache.cache["test.py"] = (lambda: source,)
        try:
            if "inside" in check:
                self.side.run_inside(check["inside"])
                return {"held": True}
            self.take_tested_names(source)
            if "value" in check:
                value = eval(compile(source, "test.py", "eval"), self.namespace)
                if isinstance(value, Proxy):
                    return {"value": {"other": object.__getattribute__(value, "_kind")}}
                return {"value": plain(value)}
            exec(compile(source, "test.py", "exec"), self.namespace)
        except Gone as gone:
            if not gone.args:
                raise
            self.side.objects_crossed = True  # e.g. a value that is nested too deep
            return {"raised": "RuntimeError"}
        except SystemExit as error:
            if not is_passed_by_unittest(error):
                show(error, err)
                return {"raised": "AssertionError" if error.code else "SystemExit"}
        except BaseException as error:
            if is_of_boundary(error) or any(name in source for name in self.side.raised):
                self.side.objects_crossed = True  # the test may expect more of an exception
            show(error, err)
            return {"raised": type(error).__name__}
        return {"held": True}

    def take_tested_names(self, source: str) -> None:
        """Determine which built-in or imported functions a test takes from the program.

        None if it uses any other name that only the program can have: then that is what it tests.
        """
        tree = ast.parse(source)
        used = used_names(source)
        free = {name for name in used | self.used_by_setup if self.is_free(name)}
        self.side.tests_others = len(free) > 1
        replaced = set() if free else {name for name in used & self.names if self.is_given(name)}
        self.namespace.own_names = replaced
        if any(isinstance(node, ast.ClassDef) for node in ast.walk(tree)):
            for name in free:  # Python does not look up the names in the body of a class
                with contextlib.suppress(KeyError):
                    self.namespace[name] = self.namespace[name]
        if len(replaced) > 1:
            self.side.decided_by.add("the program's own functions")

    def is_given(self, name: str) -> bool:
        """Return whether a name is built in, or imported by the setup."""
        if dict.__contains__(self.namespace, name):
            return is_imported(dict.__getitem__(self.namespace, name))
        return hasattr(builtins, name)

    def is_free(self, name: str) -> bool:
        """Return whether only the program can have a name."""
        return not hasattr(builtins, name) and not dict.__contains__(self.namespace, name)


def is_of_boundary(error: BaseException) -> bool:
    """Return whether an error is due to the boundary itself, and not of the program."""
    if hasattr(error, "_text") or isinstance(error.__cause__, StopIteration):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    is_inside = any(each.filename == "boundary.py" for each in frames)
    return is_inside or isinstance(error, (NameError, RecursionError))


def is_passed_by_unittest(error: SystemExit) -> bool:
    """Return whether `unittest.main` has run tests, and all of them passed."""
    traceback_ = error.__traceback__
    while traceback_ is not None and traceback_.tb_next is not None:
        traceback_ = traceback_.tb_next
    main: Any = None if traceback_ is None else traceback_.tb_frame.f_locals.get("self")
    unittest = sys.modules.get("unittest")
    if unittest is None or type(main) is not unittest.TestProgram:
        return False
    result = main.result
    return bool(result.wasSuccessful() and result.testsRun > len(result.skipped))


def used_names(source: str) -> set[str]:
    """Return the names that a test uses and does not bind itself."""
    used, bound = set(), set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                used.add(name)
            case ast.Name(id=name) | ast.arg(arg=name):
                bound.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                bound.add(name)
            case ast.ClassDef(name=name) | ast.ExceptHandler(name=str(name)):
                bound.add(name)
            case ast.ImportFrom(module="program") | ast.Import(names=[ast.alias(name="program")]):
                used.add("program")
            case ast.alias(name=name, asname=alias) if name != "program":
                bound.add(alias or name.partition(".")[0])
    return used - (bound - {"program"})


def is_imported(value: Any) -> bool:
    """Return whether a setup imported what a variable refers to, rather than define it."""
    module = getattr(value, "__module__", None)
    return isinstance(value, types.ModuleType) or (module is not None and module != "program")
