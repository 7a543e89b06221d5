"""Values of built-in types: what they are made of, and where they can be imported."""

import array
import collections
import datetime as dt
import decimal
import enum
import fractions
import importlib
import itertools
import math
import re
import sys
import types
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from operator import attrgetter
from typing import Any


def _parts_of_time(value: Any) -> tuple[Any, ...] | None:
    zone, offset = value.tzinfo, value.utcoffset()
    if zone is not None and type(zone).__module__ not in {"datetime", "zoneinfo"}:  # the program's
        if offset is None:
            return None
        zone = dt.timezone(offset, value.tzname() or "")
    return value.replace(tzinfo=None, fold=0).isoformat(), zone, value.fold


def _time_of_parts(kind: Any, text: str, zone: Any, fold: int) -> Any:
    return kind.fromisoformat(text).replace(tzinfo=zone, fold=fold)


def _element_of_parts(tag: str, attributes: Any, text: Any, tail: Any, children: Any) -> Any:
    element = _constructed("xml.etree.ElementTree", "Element", tag, attributes)
    element.text, element.tail = text, tail
    element.extend(children)
    return element


def _of_numbers(number: Any, kind: Any, *parts: Any) -> Any:
    return kind(*map(number.__pos__, parts))  # which takes no other type, as a program might send


def _constructed(module: str, name: str, *parts: Any) -> Any:
    return getattr(importlib.import_module(module), name)(*parts)


#: Values without identity, by the module and the name of their type: the parts of one, which are
#: encoded as values, or None if it stays where it is; and the value of parts. Constructing one runs
#: no code of a program.
VALUES: dict[tuple[str, str], tuple[Callable[[Any], Iterable[Any] | None], Callable[..., Any]]] = {
    ("builtins", "bytes"): (lambda value: [value.hex()], bytes.fromhex),
    ("builtins", "complex"): (attrgetter("real", "imag"), partial(_of_numbers, float, complex)),
    ("builtins", "range"): (attrgetter("start", "stop", "step"), partial(_of_numbers, int, range)),
    ("builtins", "ellipsis"): (lambda _: (), lambda: ...),
    ("builtins", "NotImplementedType"): (lambda _: (), lambda: NotImplemented),
    ("fractions", "Fraction"): (
        fractions.Fraction.as_integer_ratio,
        partial(_of_numbers, int, fractions.Fraction),
    ),
    ("decimal", "Decimal"): (lambda value: [str(value)], decimal.Decimal),
    ("datetime", "date"): (lambda value: [value.isoformat()], dt.date.fromisoformat),
    ("datetime", "timedelta"): (
        attrgetter("days", "seconds", "microseconds"),
        partial(_of_numbers, int, dt.timedelta),
    ),
    ("builtins", "slice"): (attrgetter("start", "stop", "step"), slice),
    ("builtins", "mappingproxy"): (lambda value: [dict(value)], types.MappingProxyType),
    ("builtins", "dict_keys"): (lambda value: [dict.fromkeys(value)], lambda keys: keys.keys()),
    ("builtins", "dict_items"): (lambda value: [dict(value)], lambda items: items.items()),
    ("builtins", "dict_values"): (lambda v: [dict(enumerate(v))], lambda items: items.values()),
    ("builtins", "memoryview"): (lambda value: [bytes(value)], memoryview),
    ("collections", "ChainMap"): (
        lambda value: value.maps if {*map(type, value.maps)} == {dict} else None,
        collections.ChainMap,
    ),
    ("datetime", "datetime"): (_parts_of_time, partial(_time_of_parts, dt.datetime)),
    ("datetime", "time"): (_parts_of_time, partial(_time_of_parts, dt.time)),
    ("datetime", "timezone"): (lambda value: value.__getinitargs__(), dt.timezone),
    ("zoneinfo", "ZoneInfo"): (lambda v: [v.key], partial(_constructed, "zoneinfo", "ZoneInfo")),
    ("statistics", "NormalDist"): (
        attrgetter("mean", "stdev"),
        partial(_constructed, "statistics", "NormalDist"),
    ),
    ("xml.etree.ElementTree", "Element"): (
        lambda value: (value.tag, dict(value.attrib), value.text, value.tail, list(value)),
        _element_of_parts,
    ),
    ("re", "Pattern"): (attrgetter("pattern", "flags"), re.compile),
    **{
        (module, name): (lambda value: [str(value)], partial(_constructed, module, name))
        for module, names in (
            ("pathlib", "PurePosixPath PureWindowsPath PosixPath"),
            ("pathlib._local", "PurePosixPath PureWindowsPath PosixPath"),  # of Python 3.13
            ("uuid", "UUID"),
            (
                "ipaddress",
                "IPv4Address IPv6Address IPv4Network IPv6Network IPv4Interface IPv6Interface",
            ),
        )
        for name in names.split()
    },
}


def _named(*kinds: Any) -> dict[str, Any]:
    return {kind.__name__: kind for kind in kinds}


#: Mutable collections that are sent item by item, or pair by pair.
SEQUENCES = _named(list, collections.deque)
MAPPINGS = _named(dict, collections.OrderedDict, collections.Counter, collections.defaultdict)
#: Mutable objects whose content is their attributes.
NAMESPACES = _named(
    types.SimpleNamespace, collections.UserDict, collections.UserList, collections.UserString
)
COLLECTIONS_BY_NAME = _named(bytearray, set) | SEQUENCES | MAPPINGS | NAMESPACES
COLLECTIONS_BY_NAME["numbers"] = array.array
COLLECTIONS = {kind: name for name, kind in COLLECTIONS_BY_NAME.items()}
#: Types whose subclasses are sent as they are, with the other attributes on the side of the class.
BASES: tuple[Any, ...] = (
    str, int, float, complex, bytes, bytearray, list, tuple, dict, set, frozenset,
    fractions.Fraction, decimal.Decimal, dt.datetime, dt.date, dt.time, dt.timedelta,
)  # fmt: skip
#: Types that are the same on both sides, by module and name.
COMMON_TYPES = {
    (kind.__module__, kind.__name__): kind
    for kind in (
        bool, bytearray, bytes, complex, dict, float, frozenset, int, list, object, range, set, str,
        tuple, type(None), collections.Counter, collections.OrderedDict, collections.defaultdict,
        collections.deque, dt.date, dt.datetime, dt.time, dt.timedelta, decimal.Decimal,
        fractions.Fraction,
    )
}  # fmt: skip
COMMON_TYPES |= {
    ("types", name): getattr(types, name)
    for name in ("BuiltinFunctionType", "FunctionType", "GeneratorType", "MethodType", "NoneType")
}
FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, type, types.MethodDescriptorType)


#: Names by which the module `types` has built-in types that have no other one. An event loop would
#: take the proxy of a coroutine for one.
_UNNAMED = {
    kind.__name__: name
    for name, kind in reversed(vars(types).items())
    if isinstance(kind, type) and kind.__module__ == "builtins" and name != "CoroutineType"
}


def import_path(value: Any) -> list[Any] | None:
    """Return where both sides can import an object from; None if they cannot."""
    if isinstance(value, types.ModuleType):
        is_found = sys.modules.get(value.__name__) is value and value.__spec__ is not None
        return ["import", value.__name__, ""] if is_found else None
    owner = getattr(value, "__objclass__", value)
    module, name = getattr(owner, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or "<" in name:
        return None
    if getattr(sys.modules.get(module), "__spec__", None) is None:  # the program, or none
        return None
    imported: Any = sys.modules[module]
    for part in name.split("."):
        imported = getattr(imported, part, None)
    if imported is not value and module == "builtins":  # e.g. the type of generators
        module, name = "types", _UNNAMED.get(name, "")
        imported = getattr(types, name, None)
    return ["import", module, name] if imported is value else None


def known_type(module: str, path: str) -> type:
    """Return a class of a module that is imported already; `object` if it is none."""
    found: Any = sys.modules.get(str(module))
    if getattr(found, "__spec__", None) is None:  # the program, or this package
        return object
    for part in str(path).split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else object


def is_known(module: str, path: str) -> bool:
    """Return whether the name of a module is the test's own, or its import has no effect."""
    return (
        module in sys.modules if path else module in {*sys.stdlib_module_names, "numpy", "pandas"}
    )


def import_numpy() -> Any:
    """Return the module, which is there if one of its values crossed."""
    return importlib.import_module("numpy")


def module_of_nan(value: float) -> str:
    """Return which module's NaN a value is, as lists compare it by identity; "" if it is none."""
    names = ("math", "numpy")
    return next((n for n in names if getattr(sys.modules.get(n), "nan", None) is value), "")


def nan_of(module: str) -> float:
    return import_numpy().nan if module == "numpy" else math.nan


#: The arguments of the type that a value of a subclass is based on, by its own methods.
_NEW_ARGUMENTS: dict[Any, Callable[[Any], Any]] = {
    str: lambda value: [str.__str__(value)],
    int: lambda value: [int.__add__(value, 0)],
    float: lambda value: [float.__add__(value, 0.0)],
    complex: lambda value: [value.real, value.imag],
    dict: lambda value: [[*dict.items(value)]],
    fractions.Fraction: fractions.Fraction.as_integer_ratio,
    decimal.Decimal: lambda value: [decimal.Decimal.__str__(value)],
    **dict.fromkeys((bytes, bytearray), lambda value: [bytes(memoryview(value))]),
}


def new_arguments(value: Any) -> Any:
    """Return the arguments of the built-in type that a value of a subclass is based on."""
    base = base_of(type(value))
    if base.__module__ == "datetime":
        return base.__reduce__(value)[1]
    return _NEW_ARGUMENTS[base](value) if base in _NEW_ARGUMENTS else [[*base.__iter__(value)]]


def base_of(kind: type) -> Any:
    """Return the built-in type that a class is based on, or `object`."""
    return next((base for base in BASES if issubclass(kind, base)), object)


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, also those in slots."""
    slots = itertools.chain.from_iterable(
        [each] if isinstance(each := vars(kind).get("__slots__", ()), str) else each
        for kind in type(value).__mro__
    )
    own = {*slots} - {"__dict__", "__weakref__"}
    found = {name: getattr(value, name) for name in sorted(own) if hasattr(value, name)}
    return {**found, **getattr(value, "__dict__", {})}


def set_attributes(value: Any, attributes: dict[str, Any], *, keeps_methods: bool) -> None:
    """Replace the attributes of an object, or all but methods and properties of its class."""
    own = getattr(value, "__dict__", {})
    own.clear()
    for name, item in attributes.items():
        of_class = getattr(type(value), name, None)
        is_computed = callable(of_class) or isinstance(of_class, (property, cached_property))
        if isinstance(of_class, types.MemberDescriptorType):
            object.__setattr__(value, name, item)
        elif not (keeps_methods and is_computed):
            own[name] = item


#: Methods of subclasses of built-in types that do not change what a value is.
_OF_ANY_SUBCLASS = {
    *("__new__", "__init__", "__doc__", "__module__", "__dict__", "__slots__", "__weakref__"),
    *("__repr__", "__str__", "__format__", "__getnewargs__", "__class_getitem__", "__hash__"),
    *("__init_subclass__", "__match_args__", "__reduce__", "__reduce_ex__"),
}


def keeps_identity(kind: type) -> bool:
    """Return whether a copy of the built-in part of an instance would not do for it.

    That is an instance of a subclass of a built-in type which can change, which replaces one of
    its methods, or which is an enumeration.
    """
    base = base_of(kind)
    if issubclass(kind, (list, dict, set, bytearray, enum.Enum)):
        return True
    own = itertools.takewhile(lambda each: each is not base, kind.__mro__)
    changed = {name for each in own for name in vars(each)} - _OF_ANY_SUBCLASS
    return any(name.startswith("__") or name in dir(base) for name in changed)


# Data frames of pandas: columns and indexes are arrays, or lists of values. What a column of
# another kind has, e.g. one of categories, stays in the other process.


def _pandas() -> Any:
    return importlib.import_module("pandas")  # which is there if one of its values crossed


def _content(value: Any) -> tuple[Any, ...]:
    """Return the items of a column or an index, and the names of their types.

    They are no mutable objects, which might be filled after the value is constructed.
    """
    kind: Any = value.dtype
    if type(kind).__module__.startswith("numpy") and kind.kind in "biufcmM":
        return value.to_numpy().tobytes(), kind.str, str(kind)
    return tuple(value), "", str(kind)


def _items(content: Any, kind: str) -> Any:
    return import_numpy().frombuffer(content, kind).copy() if kind else list(content)


def _is_plain(value: Any) -> bool:
    return not str(value.dtype).startswith(("category", "period", "interval", "Sparse"))


def _series(items: Any, numbers: str, kind: str, name: Any, index: Any) -> Any:
    return _pandas().Series(_items(items, numbers), index, kind, name)


def _index(items: Any, numbers: str, kind: str, name: Any, *step: Any) -> Any:
    index = _pandas().DatetimeIndex if step else _pandas().Index
    return index(_items(items, numbers), *step, dtype=kind, name=name)


def _parts_of_frame(value: Any) -> list[Any] | None:
    columns = [value.iloc[:, number] for number in range(value.shape[1])]
    if not all(map(_is_plain, columns)):
        return None
    return [tuple(map(_content, columns)), value.index, value.columns]


def _frame(columns: tuple[tuple[Any, str, str], ...], index: Any, names: Any) -> Any:
    content = {n: _series(*each, None, index) for n, each in enumerate(columns)}
    frame = _pandas().DataFrame(content, index)
    frame.columns = names
    return frame


_OF_PANDAS: dict[str, tuple[Callable[[Any], Iterable[Any] | None], Callable[..., Any]]] = {
    "DataFrame": (_parts_of_frame, _frame),
    "Series": (lambda v: [*_content(v), v.name, v.index] if _is_plain(v) else None, _series),
    "Index": (lambda v: [*_content(v), v.name] if _is_plain(v) else None, _index),
    "DatetimeIndex": (lambda v: [*_content(v), v.name, v.freqstr], _index),
    "RangeIndex": (
        attrgetter("start", "stop", "step", "name"),
        lambda start, stop, step, name: _pandas().RangeIndex(start, stop, step, name=name),
    ),
    "MultiIndex": (
        lambda value: [tuple(value), tuple(value.names)],
        lambda items, names: _pandas().MultiIndex.from_tuples(items, names=names),
    ),
    "Timestamp": (
        lambda value: [value.tz_localize(None).isoformat(), value.tz and str(value.tz)],
        lambda text, zone: _pandas().Timestamp(text, tz=zone),
    ),
    "Timedelta": (lambda value: [value.isoformat()], lambda text: _pandas().Timedelta(text)),
    "NaTType": (lambda _: [], lambda: _pandas().NaT),
    "NAType": (lambda _: [], lambda: _pandas().NA),
}
VALUES |= {("pandas", name): functions for name, functions in _OF_PANDAS.items()}
