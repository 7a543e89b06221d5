"""What tests replace while they call a program, e.g. by `patch`: it is replaced there as well.

So are the environment, and what shows warnings and log records, if a test asks for these; and the
program draws the random numbers of generators that a test seeds.
"""

import ast
import contextlib
import importlib
import os
import pkgutil
import random
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from types import ModuleType
from typing import Any

from .names import MODULES, PROGRAM_MODULES, imports_of, path_of
from .proxies import is_proxy

#: What a test may replace without naming it, to give input to a program and to see its output.
_STREAMS = (("sys", "stdin"), ("sys", "stdout"), ("sys", "stderr"), ("builtins", "input"))
_MISSING = object()
#: Words of tests that ask for the environment, for warnings, and for log records.
_ENVIRONMENT = re.compile(r"\b(?:environ|getenv)\b")
_WARNINGS = re.compile(r"\b(?:warnings|assertWarns|assertWarnsRegex|warns|deprecated_call)\b")
_LOGS = re.compile(r"\b(?:assertLogs|assertNoLogs|addHandler)\b")


def replaced_in(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield what a test may replace: the paths of modules or classes, and names in these."""
    aliases = MODULES | {n: n for n in sys.stdlib_module_names} | dict(imports_of(ast.walk(tree)))
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Name(id="patch") | ast.Attribute(attr="patch"),
                args=[ast.Constant(value=str(path)), *_],
            ):
                owner, _, name = path.rpartition(".")
                yield owner, name
            case ast.Call(
                func=ast.Attribute(attr="object"),
                args=[target, ast.Constant(value=str(name)), *_],
            ):
                yield path_of(target, aliases), name
            case ast.Attribute(value=target, attr=name, ctx=ast.Store()):
                yield path_of(target, aliases), name


class Replacements:
    """What the current test has replaced, of what it may replace."""

    def __init__(self) -> None:
        #: Where each is, and what was there.
        self._watched: dict[tuple[str, str], tuple[Any, Any]] = {}
        self._shared: dict[tuple[str, str], Any] = {}
        self.watch(_STREAMS)

    def share(self, source: str) -> None:
        """Share the environment, warnings and log records if a test asks for these."""
        if _ENVIRONMENT.search(source):
            vars(os)["environ"] = dict(os.environ)  # which both sides may change
            self._shared["os", "environ"] = os.environ
        if _WARNINGS.search(source):
            self._shared["warnings", "showwarning"] = _warn
            self._shared["warnings", "filters"] = [("always", None, Warning, None, 0)]
        if _LOGS.search(source):
            self._shared["logging.Logger", "isEnabledFor"] = lambda _: True  # `_log` decides it
            self._shared["logging.Logger", "handle"] = _log

    def watch(self, targets: Iterable[tuple[str, str]]) -> None:
        """Look from now on whether these are replaced; see `replaced_in`."""
        for path, name in targets:
            with contextlib.suppress(ImportError, AttributeError, ValueError):
                owner = _owner(path)
                if not is_proxy(owner):  # on which a replacement takes place there anyway
                    self._watched.setdefault((path, name), (owner, _value(owner, name)))

    def current(self) -> Iterator[tuple[str, str, Any]]:
        """Yield what is replaced now, by path and name."""
        yield from ((*at, value) for at, value in self._shared.items())
        for (path, name), (owner, original) in self._watched.items():
            value = _value(owner, name)
            if value is not original and value is not _MISSING:
                yield path, name, value


def _warn(message: Warning, category: type[Warning], filename: str, line: int, *_: Any) -> None:
    """Warn as the test's filters say; e.g. raise the warning."""
    warnings.warn_explicit(message, category, filename, line, "__main__")


def _log(record: Any) -> None:
    """Log a record of the program as the test's loggers say."""
    logging: Any = importlib.import_module("logging")
    logger = logging.getLogger(str(record.name))
    if logger.isEnabledFor(record.levelno):
        at = (record.levelno, "program.py", record.lineno)
        logger.handle(logging.LogRecord(logger.name, *at, record.getMessage(), (), None))


@contextlib.contextmanager
def replaced(values: Iterable[tuple[str, str, Any]]) -> Iterator[None]:
    """Replace what a test has replaced."""
    owners = [(_owner(path), name, value) for path, name, value in values]
    with contextlib.ExitStack() as undo:
        for owner, name, value in owners:
            before = _value(owner, name)
            if before is _MISSING:
                undo.callback(delattr, owner, name)
            else:
                undo.callback(setattr, owner, name, before)
            setattr(owner, name, value)
        yield


def _owner(path: str) -> Any:
    first, *rest = path.split(".")
    return pkgutil.resolve_name(".".join(["program" if first in PROGRAM_MODULES else first, *rest]))


def _value(owner: Any, name: str) -> Any:
    return getattr(owner, "__dict__", {}).get(name, _MISSING)


# Generators of random numbers


class Generators:
    """The generators of the process of the tests.

    The program gets their states. It sends none: it could choose what a test draws next.
    """

    def __init__(self) -> None:
        #: The states that the program has, until the test seeds a generator again.
        self._sent: dict[str, Any] = {}
        self._watched: dict[str, ModuleType] = {}

    def watch(self, packages: AbstractSet[str]) -> None:
        """Notice when a test seeds a generator, before it imports the function from a package."""
        for name in {"random", "numpy.random"} - self._watched.keys():
            if name.partition(".")[0] in packages:
                with contextlib.suppress(ImportError):  # which the test gets as well
                    module = self._watched[name] = importlib.import_module(name)
                    vars(module)["seed"] = self._noticed(name, vars(module)["seed"])

    def changed(self) -> dict[str, Any]:
        """Return the states that have changed since the last call, as values of JSON."""
        changed = {}
        for name, module in self._watched.items():
            kind, numbers, *rest = module.getstate() if module is random else module.get_state()
            state = [kind, [*map(int, numbers)], *rest]
            if state != self._sent.get(name):
                self._sent[name] = changed[name] = state
        return changed

    def _noticed(self, name: str, seed: Callable[..., None]) -> Callable[..., None]:
        def noticed(*args: Any, **kwargs: Any) -> None:
            self._sent.pop(name, None)
            seed(*args, **kwargs)

        return noticed


def set_states(states: Mapping[str, Any]) -> None:
    """Set the generators of the program's process to such states."""
    for name, (kind, numbers, *rest) in states.items():
        module = importlib.import_module(name)
        set_state = random.setstate if module is random else module.set_state
        set_state((kind, tuple(numbers), *rest))
