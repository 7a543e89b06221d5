"""Encoding of values that cross the boundary."""

import enum
import re
import sys
import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from .builtin_types import (
    BASES,
    COLLECTIONS,
    COMMON_TYPES,
    FUNCTIONS,
    MAPPINGS,
    NAMESPACES,
    VALUES,
    attributes_of,
    base_of,
    import_path,
    keeps_identity,
    module_of_nan,
    new_arguments,
)
from .proxies import PROXIES, is_proxy

if TYPE_CHECKING:
    from .boundary import Side

#: Integers up to this size are JSON numbers, larger ones are hexadecimal.
_MAX_PLAIN_INT = 2**53
#: Objects that are compared with those of the other side at each call, if neither they nor the
#: items in them are more.
_MAX_COMPARED, _MAX_COMPARED_ITEMS = 200, 100_000
#: JSON makes one character of two of these.
_SURROGATE = re.compile("[\ud800-\udfff]")


class Variable(NamedTuple):
    name: str
    value: Any


class Encoder:
    """Encodes the values of one message as JSON.

    Mutable objects are sent flat, by number: so they may be nested deeply and contain each other,
    and both sides know which are the same.

    Args:
        side: The side that sends the message.
        by_handle: Names of classes that the test constructs. Their instances stay here, if their
            own methods, or what they hold, may change what the other side sees.
    """

    def __init__(self, side: "Side", *, by_handle: Iterable[str] = ()) -> None:
        self._side = side
        self._by_handle = frozenset(by_handle)
        self._queue: list[int] = []
        self._seen: set[int] = set()

    def encode(self, value: Any) -> Any:  # noqa: PLR0911, PLR0912 - one for each kind
        """Return a value as JSON."""
        side, kind = self._side, type(value)
        if value is None or kind is bool:
            return value
        if kind is str:
            if value.isascii() or not _SURROGATE.search(value):
                return value
            return ["text", value.encode(errors="surrogatepass").hex()]
        if kind is int:
            return value if -_MAX_PLAIN_INT < value < _MAX_PLAIN_INT else ["int", hex(value)]
        if kind is float:
            return value if value - value == 0 else ["float", repr(value), module_of_nan(value)]
        if kind in PROXIES:
            return ["yours", object.__getattribute__(value, "_p_handle")]
        if kind is Variable:
            return self._variable(value)
        if kind in {tuple, frozenset}:
            return [kind.__name__, *map(self.encode, value)]
        if kind in NAMESPACES.values() and any(map(callable, vars(value).values())):
            return self.remote(value)  # its functions are methods, which may decide
        if kind in COLLECTIONS or kind in side.class_names:
            if isinstance(value, enum.Enum):
                return ["enum", side.class_names[kind], value.name]
            return self._reference(value)
        module = str(kind.__module__)
        module = "pandas" if module.startswith("pandas.") else module
        parts_of, _ = VALUES.get((module, kind.__name__), (None, None))
        if parts_of is not None and (parts := parts_of(value)) is not None:
            return ["value", module, kind.__name__, *map(self.encode, parts)]
        if isinstance(value, enum.Enum) and not isinstance(value, BASES) and import_path(kind):
            return ["member", import_path(kind), value.name]
        if isinstance(value, type):
            if value in side.class_names:
                return ["class", side.class_names[value]]
            if issubclass(value, BaseException):
                names = side.exception_names(value)
                is_own = side.is_trusted or len(names) == 1
                return ["exception", names, *([] if is_own else [self.remote(value)])]
        if kind.__module__ == "numpy" and "numpy" in sys.modules:
            if kind.__name__ == "ndarray" and not value.dtype.hasobject:
                return self._reference(value)
            if hasattr(value, "dtype") and not value.ndim and not value.dtype.hasobject:
                return ["scalar", value.dtype.str, value.tobytes().hex()]
        if isinstance(value, (*FUNCTIONS, types.ModuleType)) or kind.__module__ == "numpy":
            found = import_path(value)
            if found is not None and (self._side.is_trusted or tuple(found[1:]) in COMMON_TYPES):
                return found
        elif isinstance(value, BaseException):
            return ["error", side.encoded_exception(value, self)]
        elif isinstance(value, BASES) and kind not in BASES and not self._stays(kind):
            base = base_of(kind)
            proxy = getattr(value, "__dict__", {}).get("_p_proxy")
            if is_proxy(proxy) and base not in {list, dict, set, bytearray}:  # it did not change
                return self.encode(proxy)
            plain = self.encode(base(*new_arguments(value)))
            return ["subclass", plain, side.export(value), kind.__name__, import_path(kind)]
        return self.remote(value)

    def _stays(self, kind: type) -> bool:
        names = {each.__name__ for each in kind.__mro__} if self._by_handle else set()
        return not self._by_handle.isdisjoint(names) and keeps_identity(kind)

    def remote(self, value: Any) -> list[Any]:
        """Return the handle of an object that stays on this side."""
        kind = type(value)
        known = (each for each in kind.__mro__ if each is not object and import_path(each))
        base = next(map(import_path, known), None)
        number = 2 if hasattr(kind, "__await__") else int(callable(value))
        return ["mine", self._side.export(value), kind.__name__, number, base]

    def _variable(self, variable: Variable) -> Any:
        """Return where a variable was imported from under its own name, or its value."""
        value = variable.value
        is_importable = isinstance(value, (*FUNCTIONS, types.ModuleType))
        if is_importable and (found := import_path(value)):
            return found if has_own_name(variable.name, *found[1:]) else self.remote(value)
        return self.encode(value)

    def objects(self) -> dict[int, Any]:
        """Return the objects of the message that the other side does not have as they are."""
        found = {}
        shared = self._side._shared
        is_cheap = len(shared) <= _MAX_COMPARED
        if is_cheap and sum(map(_item_count, shared.values())) <= _MAX_COMPARED_ITEMS:
            self._queue += shared.keys() - self._seen
            self._seen |= shared.keys()
        while self._queue:
            number = self._queue.pop()
            if number in self._side._incomplete:
                continue
            entry = self.entry(self._side._shared[number])
            digest = hash(repr(entry))
            if self._side._synced.get(number) != digest:
                self._side._synced[number] = digest
                found[number] = entry
        return found

    def _reference(self, value: Any) -> list[Any]:
        side = self._side
        number = side._numbers.get(id(value))
        if number is None:  # each side has numbers of its own
            number = 2 * len(side._shared) + side.is_trusted
            while number in side._shared:
                number += 2
            side._share(number, value)
        if number not in self._seen:
            self._seen.add(number)
            self._queue.append(number)
        return ["ref", number]

    def entry(self, value: Any) -> list[Any]:  # noqa: PLR0911 - one for each kind
        """Return the kind of an object, what is needed to create it, and its content."""
        kind = type(value)
        name = COLLECTIONS.get(kind)
        if name == "bytearray":
            return [name, None, value.hex()]
        if name == "numbers":
            return [name, value.typecode, value.tobytes().hex()]
        if name in NAMESPACES:
            return [name, None, self._pairs(vars(value).items())]
        if name in MAPPINGS:
            meta = self.encode(value.default_factory) if name == "defaultdict" else None
            return [name, meta, self._pairs(value.items())]
        if name is not None:
            meta = value.maxlen if name == "deque" else None
            items = list(value)
            return [name, meta, items if _is_json(items) else [*map(self.encode, items)]]
        if kind.__name__ == "ndarray" and kind not in self._side.class_names:
            return ["array", [value.dtype.str, list(value.shape)], value.tobytes().hex()]
        content: list[Any] = [self._pairs(attributes_of(value).items()), None]
        base, meta = base_of(kind), [self._side.class_names[kind], None]
        if base in {list, set, dict}:
            content[1] = self.entry(base(*new_arguments(value)))[2]
        elif base is not object:
            meta[1] = self.encode(base(*new_arguments(value)))
        return ["object", meta, content]

    def _pairs(self, items: Iterable[tuple[Any, Any]]) -> list[Any]:
        return [[self.encode(key), self.encode(item)] for key, item in items]


def _item_count(value: Any) -> int:
    kind = type(value)
    if kind in COLLECTIONS:
        return len(value) if hasattr(value, "__len__") else 1
    is_array = kind.__name__ == "ndarray" and kind.__module__ == "numpy"
    return value.size if is_array else 1


def _is_json(items: list[Any]) -> bool:
    """Return whether values are in JSON what they are, so that none has to be encoded."""
    kinds = {*map(type, items)}
    if kinds == {str}:
        return "".join(items).isascii()
    # NaN is in no interval.
    return kinds <= {int, float} and all(-_MAX_PLAIN_INT < n < _MAX_PLAIN_INT for n in items)


def has_own_name(name: str, module: str, path: str) -> bool:
    """Return whether a variable has the name of what it was imported from."""
    usual = {"np": "numpy", "pd": "pandas", "plt": "matplotlib.pyplot"}
    return name == (path or module).rpartition(".")[2] or usual.get(name) == module
