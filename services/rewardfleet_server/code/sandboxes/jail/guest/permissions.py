"""What a program may use of the objects of a test."""

import functools
import io
import operator
import random
import sys
import types
from collections.abc import Set as AbstractSet
from typing import Any

from .proxies import is_proxy

#: What a program may use of a generator of a test.
_OF_GENERATORS = {"send", "throw", "close"}
#: What a program may read of a function of a test, e.g. in a decorator.
_OF_FUNCTIONS = {"__annotations__", "__doc__", "__module__", "__name__", "__qualname__"}
#: What a program may use of a stream of a test.
_OF_STREAMS = {
    "read", "readline", "readlines", "write", "writelines", "flush", "isatty", "fileno", "encoding",
    "errors", "closed", "readable", "writable", "seekable", "seek", "tell", "truncate", "close",
    "getvalue", "newlines", "line_buffering", "name", "mode", "buffer",
}  # fmt: skip
#: What a program may use of a generator of random numbers of a test.
_OF_RANDOM = {*dir(random.Random), "integers", "normal", "rand"} - {"seed", "setstate"}

#: Names that a program may read of objects of a test.
_READABLE: dict[type, AbstractSet[str]] = {
    types.FunctionType: _OF_FUNCTIONS,
    types.GeneratorType: _OF_GENERATORS,
    io.IOBase: _OF_STREAMS,
    random.Random: _OF_RANDOM,
}
#: Functions of a test that a program may call.
_CALLABLES = (
    types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.GeneratorType,
    functools.partial, type(functools.lru_cache(len)), type(functools.cmp_to_key(operator.sub)),
    operator.attrgetter, operator.itemgetter, operator.methodcaller,
)  # fmt: skip

#: Functions that reach whatever their arguments name.
_REACHING_OUT = (eval, exec, compile, open, getattr, setattr, delattr, __import__)


def is_own(data: Any) -> bool:
    """Return whether encoded data is an object of the side that decodes it."""
    return isinstance(data, list) and data[:1] == ["yours"]


def is_accessible(operation: str, args: tuple[Any, ...]) -> bool:
    """Return whether a program may use an attribute of an object of a test."""
    owner, name = args[0], args[1] if len(args) > 1 else ""
    if not isinstance(name, str):
        return False
    if _is_mock(owner):  # not its own interface, by which it would answer the test
        is_its_own = name.startswith(("__", "_mock", "_spec")) or name == "method_calls"
        is_free = not (is_its_own or hasattr(type(owner), name))
        return operation != "delattr" and is_free
    if name.startswith("_") and name not in _OF_FUNCTIONS:
        return False
    for kind, readable in _READABLE.items():
        if isinstance(owner, kind):
            return operation == "getattr" and name in readable
    module = type(owner).__module__
    if module != "program":
        return module.startswith("numpy.random.") and operation == "getattr" and name in _OF_RANDOM
    return operation in {"getattr", "dir"} or not callable(getattr(type(owner), name, None))


def is_usable(value: Any) -> bool:
    """Return whether a program may call or use an object of a test."""
    kind = type(value)
    if kind.__module__ == "program" or (kind is type and value.__module__ == "program"):
        return True
    if _is_mock(value):  # it may do what a function of the test does, not what others would do here
        done = (value.side_effect, value._mock_wraps)
        return all(each is None or not callable(each) or _is_of_test(each) for each in done)
    if isinstance(value, functools.partial) and value.func in _REACHING_OUT:
        return False
    is_of_numpy = kind.__module__.partition(".")[0] == "numpy"  # a function, or random generator
    if isinstance(value, (*_CALLABLES, io.IOBase, random.Random)) or is_of_numpy:
        return True
    return hasattr(kind, "__next__") and kind.__module__ in {"builtins", "itertools"}


def _is_of_test(value: Any) -> bool:
    """Return whether a callable is the test's or a mock's own, the program's, or an exception."""
    is_exception = isinstance(value, type) and issubclass(value, BaseException)
    module = getattr(value, "__module__", None)
    return is_exception or is_proxy(value) or module in {"program", "unittest.mock"}


def _is_mock(value: Any) -> bool:
    mock: Any = sys.modules.get("unittest.mock")
    return mock is not None and isinstance(value, mock.NonCallableMock)
