"""The process of a run that evaluates the tests, which the program cannot reach.

Names that the tests do not define are those of the program, which is on the other side of the
boundary.
"""

import ast
import builtins
import contextlib
import linecache
import os
import random
import resource
import sys
import traceback
import types
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NoReturn

from .answers import Report, plain
from .boundary import Gone, TestSide
from .confinement import Confine, limit
from .descriptors import ORDER, TESTS_MEMORY, Order, Script, read_script
from .names import PROGRAM_MODULES, STANDARD_NAMES, Names, imported_packages, seeds, standard
from .program import close_all_but, show
from .proxies import look_there
from .replacements import replaced_in
from .scripts import TestScript, UnsupportedTest, compiled

#: The descriptors of this process are the last ones.
_DESCRIPTORS = 5
#: By these, a test may be about the program without naming anything of it.
_REFLECTING = {
    "globals", "locals", "vars", "eval", "exec", "__import__",
    "importlib", "sys", "runpy", "inspect", "builtins", "gc",
}  # fmt: skip

#: Files of the guest in whose functions an exception is of the program, or of its use.
_OF_PROGRAM = {"boundary.py", "program.py", "proxies.py"}
#: Exceptions for which the program, or a busy machine, may be the reason; also after its first use.
_UNCERTAIN = (NameError, FileNotFoundError, TimeoutError)
_UNCERTAIN_LATER = (*_UNCERTAIN, AssertionError, AttributeError, TypeError)
#: Packages of tests that may look for files of the program without naming it.
_OF_FILES = {"os", "pathlib", "glob", "shutil"}


class Namespace(dict[str, Any]):
    """The variables of the tests. What they lack is looked up in the program."""

    def __init__(self, side: TestSide) -> None:
        super().__init__(__builtins__=builtins, __name__="program", __file__="program.py")
        #: Names that are the program's, whatever else has them: the entry point, and built-in or
        #: imported functions that the current test is about.
        self.own_names: AbstractSet[str] = set()
        #: Names that are those of the standard library.
        self.standard_names: AbstractSet[str] = set()
        self.program_has_run = False  #: whether there are names to look up
        self.is_alone = False  #: whether the current test ends where it uses the program
        self._side = side

    def __getitem__(self, name: str) -> Any:
        return self.__missing__(name) if name in self.own_names else super().__getitem__(name)

    def __missing__(self, name: str) -> Any:
        if name in self.standard_names:
            return standard(name)
        if not self.program_has_run or (hasattr(builtins, name) and name not in self.own_names):
            raise KeyError(name)
        if self.is_alone:
            self._side.refused = True
            raise Gone("the test is alone")
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


def program_module(namespace: Namespace) -> types.ModuleType:
    """Return the program, as tests import it."""

    def look_up(name: str) -> Any:
        try:
            return namespace[name]
        except KeyError:
            raise AttributeError(f"module 'program' has no attribute {name!r}") from None

    module = types.ModuleType("program")
    vars(module).update(__getattr__=look_up, __dir__=lambda: list(namespace))
    return module


def run_tests(confine: Confine, message: bytes, descriptors: Sequence[int]) -> NoReturn:
    """Evaluate the tests of a run; see `run_files.RunFiles` for the descriptors."""
    order = Order._make(ORDER.unpack(message))
    link, script_file, stdin, err, report = descriptors[-_DESCRIPTORS:]
    script = read_script(script_file)
    for number, file in enumerate((stdin, err, err)):
        os.dup2(file, number)
    close_all_but(link, report)
    # Not the state of the program's process, which is a copy of the same one.
    text = script.setup + "".join(check["source"] for check in script.checks)
    random.seed(text)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed(random.getrandbits(32))
        random.seed(text)
    confine(order.cpu_s, TESTS_MEMORY * order.memory_bytes)
    limit(resource.RLIMIT_FSIZE, max(order.output_bytes, order.report_bytes) + 1)
    with contextlib.suppress(Gone):  # the program has ended
        Tester(script, TestSide(link), Report(report, order.report_bytes)).run()
    sys.stdout.flush()
    os._exit(0)


class Tester:
    def __init__(self, script: Script, side: TestSide, report: Report) -> None:
        self.script, self.side, self.report = script, side, report
        self.namespace = Namespace(side)
        self.names: set[str] = set()  #: what the program defined
        self.setup = ast.parse(script.setup)
        self.setup_names, self.setup_packages = Names(self.setup), imported_packages(self.setup)
        self.setup_replaced, self.setup_seeds = {*replaced_in(self.setup)}, seeds(self.setup)

    def run(self) -> None:
        """Run the setup, wait for the program, and do the checks."""
        err = sys.stderr
        sys.modules.update(dict.fromkeys(PROGRAM_MODULES, program_module(self.namespace)))
        sys.argv = ["program.py"]
        linecache.cache["setup.py"] = (lambda: self.script.setup,)
        counts = "assert" in self.script.setup
        try:
            exec(compiled(self.setup, "setup.py", counts=counts), self.namespace)
            for name, value in self.namespace.items():
                self.side.share_class(name, value)
        except BaseException as error:
            show(error, err)
            return
        self.names = {str(name) for name in self.side.receive().get("names", ())}
        self.namespace.program_has_run = True
        for check in self.script.checks:
            self.side.begin_test()
            answer = self.answer(check, err)
            root = _root(check["entry_point"])
            if len(self.side.looked_up - self.side.constructs - {root}) > (not root):
                self.side.decided_by.add("other functions of the program")
            answer["refused"] = self.side.refused
            if self.side.decided_by:
                answer["inside"] = min(self.side.decided_by)[:100]
            self.report.add(check["nonce"], answer)
            err.flush()

    def answer(self, check: dict[str, Any], err: Any) -> dict[str, Any]:  # noqa: PLR0911 - one for each end
        """Do one check, e.g. a script of several; return whether it held, or a value or error."""
        kind, source, entry_point = check["kind"], check["source"], check["entry_point"]
        linecache.cache["test.py"] = (lambda: source,)
        is_alone = kind == "alone"
        self.namespace.is_alone = False
        try:
            if kind == "inside":
                self.side.decided_by.add("the program's process")
                checks = self.side.request({"inside": source, "entry_point": entry_point})
                return {"held": True, "checks": int(checks)}
            tree = ast.parse(source)
            names_program = self.take_names(source, tree, entry_point)
            if is_alone and not names_program:
                return {"held": True}
            (_take_nothing if is_alone else self.share_imports)(tree)
            self.namespace.is_alone = is_alone
            script = TestScript(self.namespace, entry_point)
            if kind == "value":
                return {"value": plain(script.value_of(source))}
            script.run(tree)
        except UnsupportedTest as error:
            return {"raised": "UnsupportedTest", "message": str(error)[:300]}
        except Gone as gone:
            if not gone.args:
                raise
            return {"raised": "RuntimeError"}
        except SystemExit as error:
            show(error, err)
            return {"raised": "AssertionError" if error.code else "SystemExit"}
        except BaseException as error:
            # Whether a line of the test fails by itself, and not what the program did.
            uncertain = _UNCERTAIN if is_alone else _UNCERTAIN_LATER
            frames = traceback.walk_tb(error.__traceback__)
            is_of_program = _OF_PROGRAM & {frame.f_code.co_filename for frame, _ in frames}
            is_own = not (self.side.refused or is_of_program or isinstance(error, uncertain))
            show(error, err)
            return {"raised": type(error).__name__, "own": is_own and isinstance(error, Exception)}
        return {"held": True, "checks": script.checks}

    def take_names(self, source: str, tree: ast.Module, entry_point: str) -> bool:
        """Determine where the names come from that a test does not define.

        Those of the standard library come from there, unless they are all that the test is about.
        If it is about no name that only the program can have, it is about built-in or imported
        functions that the program has replaced. Return whether all that it asks of the program is
        by such a name.
        """
        names, root = Names(tree), _root(entry_point)
        used = (names.used | self.setup_names.used) - self.namespace.keys()
        free = {name for name in used if not hasattr(builtins, name)}
        modules = (names.modules | self.setup_names.modules) & free
        known: AbstractSet[str] = (free & STANDARD_NAMES.keys() | modules) - {root}
        known -= names.called_aliases
        tested: AbstractSet[str] = (free - known) | ({root} if root else set())
        if not tested and not known <= modules:
            tested, known = known - modules, modules
        packages = imported_packages(tree) | self.setup_packages
        is_named = tested or (names.used | packages) & _REFLECTING
        replaced = set() if is_named else {*filter(self.is_given, names.used & self.names)}
        self.namespace.own_names = replaced | ({root} if root else set())
        self.namespace.standard_names = known
        classes = names.classes if names.has_objects else names.classes - {root}
        self.side.constructs = tested & classes
        if any(isinstance(node, ast.ClassDef) for node in ast.walk(tree)):
            for name in free:  # Python does not look up the names in the body of a class
                with contextlib.suppress(KeyError):
                    self.namespace[name] = self.namespace[name]
        look_there(packages)
        self.side.replacements.watch({*replaced_in(tree), *self.setup_replaced})
        self.side.replacements.share(self.script.setup + source)
        self.side.uses_objects = bool(self.side.constructs) or names.has_objects
        self.side.predicates = names.predicates
        self.side.entry_names = names.methods | {entry_point.rpartition(".")[2]}
        if self.setup_seeds or seeds(tree):
            self.side.generators.watch(packages | names.modules)
        return bool(is_named) and packages.isdisjoint(_OF_FILES)

    def share_imports(self, tree: ast.Module) -> None:
        """Let the program have the imports of a test, if that does not import the program."""
        imports = [
            (ast.unparse(each), [alias.asname or alias.name.partition(".")[0] for alias in names])
            for each in tree.body
            if isinstance(each, (ast.Import, ast.ImportFrom)) and (names := each.names)
        ]
        if imports and imported_packages(tree).isdisjoint(PROGRAM_MODULES):
            self.side.request({"imports": imports})

    def is_given(self, name: str) -> bool:
        """Return whether a name is built in, or imported by the setup rather than defined."""
        if not dict.__contains__(self.namespace, name):
            return hasattr(builtins, name)
        value = dict.__getitem__(self.namespace, name)
        module = getattr(value, "__module__", None)
        return isinstance(value, types.ModuleType) or module not in (None, "program")


def _root(entry_point: str) -> str:
    return entry_point.partition(".")[0].removesuffix("()")


def _take_nothing(tree: ast.Module) -> None:
    """Remove what a script takes of the program before it uses it, so that it looks that up."""
    functions = {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=module) if module in PROGRAM_MODULES:
                node.module, node.names = "builtins", [ast.alias("Ellipsis")]  # changes nothing
            case ast.FunctionDef(name="check"):
                node.args = ast.arguments([], [], ast.arg("_args"), [], [], ast.arg("_named"), [])
            case ast.Call(func=ast.Name(id="check")) if "check" in functions:
                node.args, node.keywords = [], []
