"""Proxies: objects of the other side of the boundary."""

import builtins
import copy
import functools
import importlib
import inspect
import itertools
import math
import operator
import pickle
import pkgutil
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from os import urandom
from typing import TYPE_CHECKING, Any

from .builtin_types import BASES, import_path
from .names import SOLUTION

if TYPE_CHECKING:
    from .boundary import Side

#: Special attributes that a test may read of an object of the program. Others could replace what
#: the test's own operations do, e.g. `__array_interface__`.
_READABLE = {
    "__abstractmethods__", "__annotations__", "__bases__", "__code__", "__dataclass_fields__",
    "__dataclass_params__", "__defaults__", "__dict__", "__doc__", "__func__",
    "__isabstractmethod__", "__kwdefaults__", "__match_args__", "__members__", "__module__",
    "__mro__", "__name__", "__qualname__", "__self__", "__slots__", "__wrapped__",
}  # fmt: skip
#: Methods by which an object of the program decides a question, like those of built-in types; and
#: the factory of a dictionary, which may answer differently each time.
_PREDICATES = re.compile(
    r"(?:is(?:subset|superset|disjoint|_integer|alnum|alpha|ascii|decimal|digit|identifier|lower"
    r"|numeric|printable|space|title|upper)|startswith|endswith|equals?|all|any|assert\w*"
    r"|__missing__)\Z"
)
#: Methods by which built-in types compute something of their arguments. An object of the program
#: that is given what is expected could return it.
_OF_BUILT_IN_TYPES = {
    name
    for kind in (str, bytes, list, dict, set, frozenset, tuple)
    for name in dir(kind)
    if not name.startswith("_")
} - {
    "add", "append", "clear", "copy", "discard", "extend", "get", "insert", "items", "keys", "pop",
    "popitem", "remove", "reverse", "setdefault", "sort", "update", "values",
}  # fmt: skip
#: Types of questions and answers that are compared with earlier ones.
_ATOMS = {str, bytes, int, float, complex, bool, type(None)}
#: Comparisons, and those that are never true of the same operand; for `eq`, of the same value.
_CONTRARY = {"eq": "eq", "ne": "eq", "lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}
#: Modules whose types are values, which cross the boundary.
_MODULES_OF_VALUES = {"builtins", "collections", "datetime", "decimal", "fractions", "numpy"}
#: Methods of a generator, which may raise StopIteration.
_STOPPING = {"send", "throw", "__next__"}
_GENERATORS = {"generator", "async_generator", "coroutine"}


#: The name of a function that the other side has answered with. It may decide a question.
ANONYMOUS = "?"


class Proxy:
    """An object of the other side. Its operations take place there.

    Its own attributes begin with `_p_`, as no attribute of an object is likely to. On the side of
    the tests, `_p_is_own` is whether the test has constructed the object, or a class that it
    constructs, and `_p_items` iterates over the object. `_p_base` is the first base of its class
    that both sides have, and `_p_owner` the object whose method it is.
    """

    __slots__ = (
        *("_p_base", "_p_handle", "_p_is_own", "_p_items"),
        *("_p_kind", "_p_name", "_p_owner", "_p_side"),
    )

    _p_side: "Side"
    _p_handle: int
    _p_kind: str
    _p_name: str
    _p_is_own: bool
    _p_items: Iterator[Any] | None
    _p_base: type | None
    _p_owner: "Proxy | None"

    @property  # type: ignore[misc] # `object` has no property
    def __class__(self) -> Any:
        """The first base of its class that both sides have, which `isinstance` asks for."""
        return self._p_base or type(self)

    def __getattr__(self, name: str) -> Any:
        side = self._p_side
        is_hidden = name.startswith("__") and name not in _READABLE | _STOPPING
        if not side.uses_objects:  # a value of a built-in type would have crossed the boundary
            is_hidden |= name in _OF_BUILT_IN_TYPES and name not in side.entry_names
        if is_hidden and side.is_trusted:
            raise AttributeError(f"{self._p_kind!r} object has no attribute {name!r}")
        found = side.call("getattr", self, name)
        if type(found) is CallableProxy:
            object.__setattr__(found, "_p_name", name)
            object.__setattr__(found, "_p_owner", self)
        return _same_as_before(self, ("getattr", name), self._p_as_own(found))

    def __setattr__(self, name: str, value: Any) -> None:
        self._p_side.call("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._p_side.call("delattr", self, name)

    def __dir__(self) -> Iterable[str]:
        return self._p_side.call("dir", self)  # type: ignore[no-any-return] # of the other side

    def __format__(self, form: str) -> str:
        if self._p_side.is_trusted and not (self._p_is_own or self._p_side.uses_objects):
            return format(str(self), form)
        return str(self._p_side.call("format", self, form))

    def __copy__(self) -> Any:
        return self._p_as_own(self._p_side.call("copy", self))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self._p_as_own(self._p_side.call("deepcopy", self))

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return a pickle that the other side made, and that only it reads."""
        return unpickled, (self._p_side.call("dumps", self),)

    def _p_as_value(self) -> Any:
        """Return what the object is as a value of a built-in type; if it is none, its class."""
        if issubclass(self._p_base or object, BASES):
            return self._p_side.call("itself", self)
        return type(self._p_kind, (), {})()

    def _p_as_own(self, value: Any) -> Any:
        return owned(value) if self._p_is_own else value

    def _p_stops(self) -> bool:
        """Return whether calling it may raise StopIteration: if it is a method of a generator."""
        owner = self._p_owner
        return owner is not None and owner._p_kind in _GENERATORS and self._p_name in _STOPPING

    def __instancecheck__(self, value: Any) -> bool:
        self._p_side.decided_by.add(self._p_kind)
        return bool(self._p_side.call("isinstance", value, self))

    def __subclasscheck__(self, value: Any) -> bool:
        self._p_side.decided_by.add(self._p_kind)
        return bool(self._p_side.call("issubclass", value, self))


#: The side of the tests, where a pickle of the other side's objects may be read.
READERS: list["Side"] = []


def unpickled(content: bytes) -> Any:
    """Let the other side read a pickle that it made."""
    return owned(READERS[-1].call("loads", content))


def is_proxy(value: Any) -> bool:
    """Return whether an object is on the other side, whatever its class pretends."""
    return type(value) in PROXIES


# What scripts ask of objects, also of those on the other side


def is_same(first: Any, second: Any) -> bool:
    if is_proxy(first) and is_proxy(second):
        return bool(first._p_handle == second._p_handle)
    is_value = type(first) in _ATOMS and type(first) is type(second)
    return first is second or (is_value and bool(first == second))


def kind_of(value: Any) -> Any:
    if is_proxy(value):
        return value._p_side.call("getattr", value, "__class__")
    return vars(type(value)).get("_p_kind_of", type(value))


def is_of(function: Callable[..., bool], value: Any, kinds: Any) -> bool:
    if not is_proxy(value):
        return function(value, kinds)
    # A class of a library is asked about the object's own one, which no `__class__` hides.
    return any(
        value._p_side.call("of_library", function.__name__, value, kind)
        if import_path(kind)
        else function(value, kind)
        for kind in (kinds if type(kinds) is tuple else [kinds])
    )


def id_of(value: Any) -> int:
    return ~value._p_handle if is_proxy(value) else id(value)


def has_attribute(value: Any, name: str) -> bool:
    if is_proxy(value) and name.startswith("__"):
        return bool(value._p_side.call("hasattr", value, name))
    return hasattr(value, name)


class CallableProxy(Proxy):
    """An object of the other side that can be called."""

    __slots__ = ()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if _PREDICATES.match(self._p_name) or (args and self._p_name in _OF_BUILT_IN_TYPES):
            self._p_side.decided_by.add(self._p_kind)
        result = self._p_as_own(self._p_side.call(self, *args, **kwargs))
        if self._p_name is ANONYMOUS and args and type(result) is bool:
            self._p_side.decided_by.add(self._p_kind)
        owner = self._p_owner
        if owner is None or owner._p_kind == SOLUTION or self._p_name in self._p_side.entry_names:
            return result
        # A method that compares: what it is given may be what is expected.
        is_compared = not owner._p_is_own or any(isinstance(each, Proxy) for each in args)
        is_answer = type(result) is bool or self._p_name in self._p_side.predicates
        if is_answer and args and is_compared:
            self._p_side.decided_by.add(owner._p_kind)
        return _same_as_before(owner, (self._p_name, *args, *kwargs.values()), result)


class AwaitableProxy(Proxy):
    """An object of the other side that can be awaited, and runs to its end there."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, Any]:
        yield from ()
        return self._p_side.call("await", self)


#: By number, as objects of these kinds are encoded.
PROXIES: tuple[type[Proxy], ...] = (Proxy, CallableProxy, AwaitableProxy)


def _same_as_before(proxy: Proxy, question: tuple[Any, ...], answer: Any) -> Any:
    """Note an object that a test did not construct if it answers the same question differently."""
    side = proxy._p_side
    if side.is_trusted and not proxy._p_is_own and {*map(type, (*question, answer))} <= _ATOMS:
        first = side.answers.setdefault((proxy._p_handle, *question), answer)
        if repr(first) != repr(answer):  # so that NaN is as before
            side.decided_by.add(proxy._p_kind)
    return answer


#: Operations on objects of the other side, named like special methods without underscores: those of
#: the modules `operator` and `builtins`.
_OPERATORS = """
eq ne lt le gt ge contains getitem setitem delitem neg pos invert index
add sub mul truediv floordiv mod pow matmul lshift rshift xor
iadd isub imul itruediv ifloordiv imod ipow imatmul ilshift irshift iand ior ixor
"""
_FUNCTIONS_OF_OBJECTS = """
getattr hasattr setattr delattr dir format isinstance issubclass iter next len bool str repr hash
abs int float complex round divmod reversed bytes
"""
_FUNCTIONS_OF_NUMBERS = "floor ceil trunc"
OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in _OPERATORS.split()},
    **{name: getattr(builtins, name) for name in _FUNCTIONS_OF_OBJECTS.split()},
    **{name: getattr(math, name) for name in _FUNCTIONS_OF_NUMBERS.split()},
    "of_library": lambda how, it, kind: issubclass(it if how == "issubclass" else type(it), kind),
    "library": lambda path, *args, **named: pkgutil.resolve_name(path)(*args, **named),
    "await": lambda value: importlib.import_module("asyncio").run(completion(value)),
    "itself": lambda value: value,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "dumps": pickle.dumps,
    "loads": pickle.loads,
    "and": operator.and_,
    "or": operator.or_,
    "enter": lambda context: type(context).__enter__(context),
    "exit": lambda context, kind, error: type(context).__exit__(context, kind, error, None),
}
#: Operations that only tests may ask for.
OF_TESTS = {"hasattr", "of_library", "itself", "library", "copy", "deepcopy", "dumps", "loads"}
#: Operations that ask an object for a value, and do not tell it what is expected.
_ANSWERING = {
    "str", "repr", "len", "getitem", "int", "float", "index", "abs", "neg", "bytes", "enter",
}  # fmt: skip
#: Operations by which an object decides a comparison.
_DECIDING = {"eq", "ne", "lt", "le", "gt", "ge", "contains", "bool", "hash"}
_REFLECTED = {
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lshift", "rshift",
    "and", "or", "xor", "divmod",
}  # fmt: skip
#: Operations with a second operand.
_BINARY = _REFLECTED | {name for name in _OPERATORS.split() if name.startswith("i")} - {
    "invert", "index",
}  # fmt: skip
_NOT_METHODS = OF_TESTS | {
    "await", "exit", "getattr", "setattr", "delattr", "dir", "format", "isinstance", "issubclass",
}  # fmt: skip


def owned(value: Any) -> Any:
    """Return what an object of the test's own has computed, as another one."""
    if isinstance(value, Proxy):
        object.__setattr__(value, "_p_is_own", True)
    return value


def _method(name: str) -> Callable[..., Any]:
    def method(self: Proxy, *args: Any) -> Any:
        side = self._p_side
        if name in {"eq", "ne"} and self._p_base is type and self._p_is_own:  # it equals no other
            return is_same(self, args[0]) is (name == "eq")
        is_operand = name in _BINARY and not isinstance(args[0], Proxy)
        if side.is_trusted and not self._p_is_own:
            is_compared = side.uses_objects and name in {"eq", "ne"} and isinstance(args[0], Proxy)
            if name in {"eq", "ne"} and not is_compared:
                return _is_same(self, name, args[0]) is (name == "eq")
            if not side.uses_objects:
                return _operation_of_value(self, name, *args)
        # An operand of the test may be what is expected.
        if name in _DECIDING or is_operand:
            side.decided_by.add(self._p_kind)
        is_compared = name in _CONTRARY and not isinstance(args[0], Proxy)
        if is_compared and self._p_is_own:
            return _compared(self, name, args[0])
        result = side.call(name, self, *args)
        if name == "getitem":
            _same_as_before(self, (name, *args), result)
        # With different answers to these two, or another one each time, an object would have items
        # that no loop sees.
        if (self._p_handle, "iter") in side.uses and name in {"iter", "len"}:
            side.decided_by.add(self._p_kind)
        side.uses.add((self._p_handle, name))
        if {(self._p_handle, "len"), (self._p_handle, "iter")} <= side.uses:
            side.decided_by.add(self._p_kind)
        return self._p_as_own(result)

    return method


def _compared(proxy: Proxy, name: str, other: Any) -> Any:
    """Compare an object of the test's own with a value, which may be what is expected.

    It is also asked a question whose answer must be another one, in random order. An object that
    agrees to both, like one that equals everything, agrees to neither.
    """
    side = proxy._p_side
    another = _another(other) if name == "eq" else other
    if name == "eq" and proxy._p_kind in side.constructs and type(other) is not str:
        another = urandom(8).hex()  # a number modulo another one equals many numbers, but no text
    is_first = urandom(1)[0] % 2 == 1
    contrary = is_first and _agrees(proxy, _CONTRARY[name], another)
    answer = side.call(name, proxy, other)
    contrary = contrary if is_first else _agrees(proxy, _CONTRARY[name], another)
    if answer is True and contrary:
        side.refused = True
        return False
    return answer


def _agrees(proxy: Proxy, name: str, other: Any) -> bool:
    try:
        return proxy._p_side.call(name, proxy, other) is True
    except (AttributeError, TypeError, ValueError):  # of a class that compares with its own only
        return False


def _another(value: Any) -> Any:
    """Return a value that differs from this one, is like it, and cannot be guessed."""
    other: Any = int.from_bytes(urandom(4), "big") + 2
    kind = type(value)
    if kind is bool:
        other = not value
    elif kind in {int, float, complex}:
        other = value + other
    elif kind is str:
        other = f"{value[:-8]}{other:08x}"
    elif kind is bytes:
        other = value[:-8] + b"%08x" % other
    elif kind in {list, tuple, set, frozenset}:
        *rest, last = [*value] or [0]
        other = kind([*rest, _another(last) if kind in {list, tuple} else other])
    elif kind is dict and value:
        *pairs, (key, last) = value.items()
        other = dict([*pairs, (key, _another(last))])
    return other


def _is_same(proxy: Proxy, name: str, other: Any) -> bool:
    """Return whether two objects are the same: what a test did not construct equals no other.

    The program may say whether it equals an object, e.g. a UUID, but it never equals a value.
    """
    if isinstance(other, Proxy) and proxy._p_handle == other._p_handle:
        return True
    proxy._p_side.decided_by.add(proxy._p_kind)  # if that makes the test pass
    is_value = type(other).__module__ in _MODULES_OF_VALUES
    proxy._p_side.refused |= not proxy._p_side.constructs or (is_value and name == "eq")
    return False


def _operation_of_value(proxy: Proxy, name: str, *args: Any) -> Any:
    """Do an operation on an object that is used as a value: it is iterated once, if at all."""
    if name in {"iter", "next"}:
        if proxy._p_items is None:
            is_iterator = proxy._p_side.call("hasattr", proxy, "__next__")
            items = _items(proxy)
            object.__setattr__(proxy, "_p_items", items if is_iterator else itertools.tee(items)[0])
        found: Any = proxy._p_items
        # A copy of what `tee` returns begins at the first item again.
        return next(found) if name == "next" else getattr(found, "__copy__", lambda: found)()
    if name == "bool":
        proxy._p_side.decided_by.add(proxy._p_kind)
        return True
    if name == "hash":
        return hash((Proxy, proxy._p_handle))
    if name in _ANSWERING:
        answer = proxy._p_side.call(name, proxy, *args)
        if name == "len":
            _check_length(proxy, answer)
        return _same_as_before(proxy, (name, *args), answer)
    kind = proxy._p_kind
    return proxy._p_side.refuse(
        f"the program answered with a {kind!r}, which is no value: {name}() is not possible"
    )


def _items(proxy: Proxy) -> Iterator[Any]:
    iterator = proxy._p_side.call("iter", proxy)
    for count in itertools.count():
        try:
            item = proxy._p_side.call("next", iterator) if is_proxy(iterator) else next(iterator)
        except StopIteration:
            if proxy._p_side.call("hasattr", proxy, "__len__"):
                _check_length(proxy, proxy._p_side.call("len", proxy))
                _check_length(proxy, count)
            return
        yield item


def _check_length(proxy: Proxy, length: int) -> None:
    """Refuse an object that has items which no loop sees."""
    if proxy._p_side.lengths.setdefault(proxy._p_handle, length) != length:
        proxy._p_side.refuse(
            f"the program answered with a {proxy._p_kind!r} of more than one length"
        )


def _exit(self: Proxy, kind: type[BaseException] | None, error: Any = None, *_: Any) -> bool:
    """Leave a context of the program, which may not suppress a failed assert."""
    suppresses = bool(self._p_side.call("exit", self, kind, error))
    if kind is not None and suppresses:
        self._p_side.decided_by.add(self._p_kind)
        return not issubclass(kind, AssertionError)
    return False


def _reflected_method(name: str) -> Callable[..., Any]:
    def method(self: Proxy, other: Any) -> Any:
        if self._p_side.is_trusted and not self._p_side.uses_objects:
            return _operation_of_value(self, name)
        self._p_side.decided_by.add(self._p_kind)
        return self._p_as_own(self._p_side.call(name, other, self))

    return method


async def completion(awaitable: Any) -> Any:
    """Return what an awaitable returns, as a coroutine."""
    return await awaitable


#: Attributes that the classes of proxies have as well, where they would be found.
_OF_CLASSES = ("__annotations__", "__doc__", "__module__")

Proxy.__exit__ = _exit  # type: ignore[attr-defined] # as all special methods below
for _name in OPERATIONS.keys() - _NOT_METHODS:
    setattr(Proxy, f"__{_name}__", _method(_name))
for _name in _REFLECTED:
    setattr(Proxy, f"__r{_name}__", _reflected_method(_name))
for _class, _name in itertools.product(PROXIES, _OF_CLASSES):
    setattr(_class, _name, property(operator.methodcaller("__getattr__", _name)))


#: Functions of the standard library that look at an object, which they do where it is.
_LOOKING = {
    "dataclasses": ["asdict", "astuple", "fields", "is_dataclass", "replace"],
    "inspect": [name for name in inspect.__all__ if name.startswith(("get", "is", "signature"))],
}


def look_there(modules: Iterable[str]) -> None:
    """Let functions of modules that look at objects look at those of the other side as well."""
    for module in _LOOKING.keys() & {*modules}:
        imported: Any = importlib.import_module(module)
        for name in _LOOKING[module]:
            setattr(imported, name, _looking(module, name, getattr(imported, name)))


def _looking(module: str, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def function(value: Any, /, *args: Any, **named: Any) -> Any:
        if not is_proxy(value):
            return original(value, *args, **named)
        found = value._p_side.call("library", f"{module}:{name}", value, *args, **named)
        if module == "inspect":  # which the program may have changed
            value._p_side.decided_by.add(value._p_kind)
        return value._p_as_own(found)

    return function
