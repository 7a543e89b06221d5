"""Answers: values as JSON, which the service compares with what is expected."""

import collections
import decimal
import fractions
import json
import types
from collections.abc import Callable
from typing import Any

from .builtin_types import base_of, new_arguments
from .descriptors import write_all
from .proxies import is_proxy

#: Bytes of a report for the lines of answers that are too large for it.
SPARE_BYTES = 2**17
#: How deep a value may be nested.
MAX_DEPTH = 250
#: Integers up to this size are JSON numbers, larger ones are hexadecimal.
MAX_PLAIN_INT = 2**63

#: The types of a dictionary's keys and items, which equal sets.
VIEWS: tuple[Any, ...] = (type({}.keys()), type({}.items()))
#: Types whose values equal what they wrap.
WRAPPERS = (collections.UserDict, collections.UserList, collections.UserString)
#: What a collection is sent as, by the type that it is based on.
COLLECTIONS = {list: "", tuple: "tuple", set: "set", frozenset: "set"}


class Report:
    """A file with answers, one per line."""

    def __init__(self, file: int, max_bytes: int) -> None:
        self._file = file
        self._bytes_left = max_bytes - SPARE_BYTES

    def add(self, nonce: str, answer: dict[str, Any]) -> None:
        """Write the answer to a check; only that it is too large, if it is."""
        try:
            line = _line({"nonce": nonce, **answer})
        except MemoryError:
            line = None
        if line is None or len(line) > self._bytes_left:
            line = _line({"nonce": nonce, "too_large": True})
        self._bytes_left -= len(line)
        write_all(self._file, line)

    def fail(self, reason: str) -> None:
        """Write why there are no answers."""
        write_all(self._file, _line({"failed": reason}))


def _line(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode() + b"\n"


#: What values are in JSON, by their types.
_WRITERS: dict[type, Callable[[Any], Any]] = {
    **dict.fromkeys((type(None), bool, str), lambda value: value),
    int: lambda value: value if abs(value) < MAX_PLAIN_INT else {"int": hex(value)},
    float: lambda value: value if value - value == 0 else {"float": repr(value)},
    complex: lambda value: {"complex": [repr(value.real), repr(value.imag)]},
    **dict.fromkeys((bytes, bytearray, memoryview), lambda value: {"bytes": bytes(value).hex()}),
    fractions.Fraction: lambda value: {"fraction": [*map(hex, value.as_integer_ratio())]},
    decimal.Decimal: lambda value: {"decimal": str(value)},
}


def plain(value: Any, depth: int = 0) -> Any:  # noqa: PLR0911 - one for each kind
    """Return a value of built-in types as JSON that distinguishes them; of others, the type's name.

    A value of a subclass is sent as one of the base, by the base's own methods: its `__eq__` is not
    called.
    """
    if depth > MAX_DEPTH:
        return {"other": "a value nested too deep"}
    kind = type(value)
    if kind in _WRITERS:
        return _WRITERS[kind](value)
    if is_proxy(value):
        return plain(value._p_as_value(), depth + 1)
    if kind.__module__ == "numpy" and hasattr(value, "item") and not getattr(value, "ndim", 1):
        return plain(value.item(), depth + 1)
    if isinstance(value, WRAPPERS):
        return plain(vars(value)["data"], depth + 1)
    if isinstance(value, collections.ChainMap):
        value = {key: item for each in reversed(value.maps) for key, item in each.items()}
    if isinstance(value, types.MappingProxyType):
        value = dict(value)
    if isinstance(value, VIEWS):
        value = set(value)
    base = base_of(type(value))
    if base in _WRITERS:
        return _WRITERS[base](base(*new_arguments(value)))
    if base is dict:
        pairs = dict.items(value)
        return {"dict": [[plain(key, depth + 1), plain(item, depth + 1)] for key, item in pairs]}
    if base in COLLECTIONS:
        items = [plain(item, depth + 1) for item in base.__iter__(value)]
        return items if base is list else {COLLECTIONS[base]: items}
    return {"other": kind.__name__}
