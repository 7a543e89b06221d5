"""Functions of tests that run a released trainer, each call in a process of its own.

A trainer is installed without what it needs, see requirements-clients.txt. So a function names the
packages that the modules it imports mention, but do not use here: see `absent`. Neither these nor
`.clients` must reach other tests.
"""

import asyncio
import contextlib
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import os
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

HERE = Path(__file__).parent
CLIENTS = HERE.parent.parent / ".clients"
PEERS = HERE.parent.parent / ".peers"

needs_clients = pytest.mark.skipif(
    not (CLIENTS / ".installed").exists() or importlib.util.find_spec("verl") is None,
    reason="needs .clients and .venv-trainers; `make test-trainers` runs it",
)


def needs_peer(name: str) -> pytest.MarkDecorator:
    """Skip tests of a trainer that is not in the registry, without its source."""
    missing = not (PEERS / name).exists()
    return pytest.mark.skipif(missing, reason=f"needs .peers/{name}: `make install-peers`")


#: Two tests, programs that pass both, one and none of them, and texts that are no program.
TESTS = {
    "kind": "stdio",
    "cases": [{"stdin": "1 2", "stdout": "3"}, {"stdin": "7", "stdout": "7"}],
}
RIGHT, HALF, WRONG = "print(sum(map(int, input().split())))", "print(input())", "print(0)"
FENCED = f"So:\n```python\n{RIGHT}\n```\n"
#: What policies write, and its reward.
TEXTS = {
    RIGHT: 1.0, HALF: 0.5, WRONG: 0.0, FENCED: 1.0, f"{RIGHT}<|im_end|>": 1.0, "": 0.0, "Hm.": 0.0,
}  # fmt: skip

#: How `error_of` the call of a dead service begins: its short deadline may pass first.
UNREACHABLE = ("Unavailable: ", "DeadlineExceeded: ")


def in_process(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run a function, or coroutine function, of JSON values in a process with `.clients`.

    Its folder is empty, as trainers write files into it.
    """

    @functools.wraps(function)
    def call(*arguments: object) -> Any:
        file = inspect.getfile(function)
        command = [sys.executable, "-P", __file__, file, function.__name__, json.dumps(arguments)]
        path = os.pathsep.join([str(CLIENTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path}
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                command, check=True, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment
            )
        return json.loads(done.stdout.splitlines()[-1])

    return call


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds any module of some packages. Each name in it is a mock."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        self._packages = packages

    def find_spec(self, fullname: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in self._packages:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: types.ModuleType) -> None:
        def named(name: str) -> MagicMock:
            if name.startswith("__"):
                raise AttributeError(name)
            return MagicMock(name=name)

        module.__getattr__ = named


def absent(*packages: str) -> None:
    """Let packages be imported that are not installed: the code that is run does not use them."""
    sys.meta_path.append(_Absent(packages))


def bare(name: str) -> None:
    """Register a package without its `__init__`, so that its modules are loaded, unchanged."""
    sys.modules[name] = types.ModuleType(name)
    folders = [Path(each) / name.replace(".", "/") for each in sys.path]
    sys.modules[name].__path__ = [str(each) for each in folders if each.is_dir()]


def error_of(error: BaseException) -> str:
    """Return the name of an error's class and its message."""
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    # `.clients` has a package `tests` as well.
    for name, folder in {"tests": HERE.parent, "tests.third_party": HERE}.items():
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(folder)]
    module = importlib.import_module(f"tests.third_party.{Path(sys.argv[1]).stem}")
    with contextlib.redirect_stdout(sys.stderr):
        result = getattr(module, sys.argv[2]).__wrapped__(*json.loads(sys.argv[3]))
        if asyncio.iscoroutine(result):
            result = asyncio.run(result)
    print(json.dumps(result))
