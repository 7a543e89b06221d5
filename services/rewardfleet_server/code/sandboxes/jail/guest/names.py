"""Names that tests use without defining them, and what they ask of the program's objects.

Functions and classes of the standard library that tests expect to be there come from a fixed table,
never from the program.
"""

import ast
import collections
import copy
import heapq
import importlib
import itertools
import math
import string
import sys
import typing
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

#: Names of the standard library, by module.
_STANDARD: dict[str, Iterable[str]] = {
    "typing": typing.__all__,  # first, as some of its names are also those of classes below
    "math": dir(math),
    "collections": collections.__all__,
    "copy": copy.__all__,
    "functools": ("reduce", "lru_cache", "partial", "cmp_to_key", "total_ordering"),
    "heapq": set(heapq.__all__) - {"merge"},
    "itertools": set(dir(itertools)) - {"chain", "count", "cycle", "product", "repeat", "tee"},
    "bisect": ("bisect_left", "bisect_right", "insort", "insort_left", "insort_right"),
    "fractions": ("Fraction",),
    "decimal": ("Decimal",),
    "string": set(string.__all__) - {"Formatter", "Template"},
    "io": ("StringIO", "BytesIO"),
    "statistics": ("stdev", "pstdev", "pvariance", "fmean"),
}
#: The table: where a name comes from, as module and attribute.
STANDARD_NAMES: dict[str, tuple[str, str]] = {
    name: (module, name)
    for module, names in _STANDARD.items()
    for name in names
    if not name.startswith("_") and name != "copy"
}
#: Names of the table that stand for generic types, which nobody calls.
ALIASES = {name for name in typing.__all__ if hasattr(getattr(typing, name), "__origin__")} - {
    *collections.__all__
}
#: Modules that tests may use, by the names under which they are usually imported. Not those whose
#: name is as often that of a class in them.
MODULES = {
    **{name: name for name in sys.stdlib_module_names - {"copy", "datetime", "time"}},
    "np": "numpy",
    "numpy": "numpy",
    "pd": "pandas",
    "pandas": "pandas",
}
#: The class of a program whose methods are functions, not objects that tests are about.
SOLUTION = "Solution"
#: Modules by which tests import the program.
PROGRAM_MODULES = ("program", "solution", "__main__")
#: Attributes of values, which cross the boundary; also those of arrays and generators.
_OF_VALUES = {
    name
    for kind in (str, bytes, int, float, complex, list, dict, set, tuple, collections.deque)
    for name in dir(kind)
} | {
    "all", "any", "astype", "close", "dtype", "flatten", "max", "mean", "min", "ndim", "reshape",
    "send", "shape", "size", "sum", "throw", "tolist",
}  # fmt: skip


def standard(name: str) -> Any:
    """Return what a name of the table refers to.

    Raises:
        KeyError: It is not in the table, or its module is not installed.
    """
    module, attribute = STANDARD_NAMES.get(name) or (MODULES[name], "")
    try:
        found = importlib.import_module(module)
    except ImportError:
        raise KeyError(name) from None
    return getattr(found, attribute) if attribute else found


class Names(NamedTuple):
    """The names of a test that it does not define."""

    used: frozenset[str] = frozenset()  #: all of them
    #: The names that are written like a class, or like a constant and used like a class.
    classes: frozenset[str] = frozenset()
    #: The names of modules of the table, if only their attributes are used.
    modules: frozenset[str] = frozenset()
    has_objects: bool = False  #: whether the test uses attributes that no value has
    called: frozenset[str] = frozenset()  #: the names that are called
    methods: frozenset[str] = frozenset()  #: attributes of `Solution()`
    predicates: frozenset[str] = frozenset()  #: methods that answer a question


def names_of(tree: ast.AST) -> Names:
    """Return the names that a test uses and does not bind itself."""
    found = _Finder()
    found.visit_all(tree)
    free = found.used - found.bound
    modules = (MODULES.keys() & free) - found.objects
    owners = found.imported | modules | {"self", "cls"}
    return Names(
        frozenset(free),
        frozenset(name for name in free if _is_class_name(name) and name not in found.constants),
        frozenset(modules),
        any(each not in _OF_VALUES for owner, each in found.attributes if owner not in owners),
        frozenset(found.called & free),
        frozenset(found.methods),
        frozenset(name for node in ast.walk(tree) for name in _predicates(node)),
    )


def _predicates(node: ast.AST) -> Iterator[str]:
    """Yield the methods with arguments of whose results a node asks whether they are true."""
    asks = isinstance(node, (ast.Assert, ast.If, ast.UnaryOp, ast.BoolOp))
    name = getattr(node.func, "attr", "") if isinstance(node, ast.Call) else ""
    for each in ast.iter_child_nodes(node) if asks or name in {"assertTrue", "assertFalse"} else ():
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.args:
            yield each.func.attr


class _Finder:
    """The names and attributes in a tree."""

    def __init__(self) -> None:
        self.called: set[str] = set()  #: names that are called
        self.used: set[str] = set()  #: names whose values are used
        self.objects: set[str] = set()  #: the names that are used otherwise than for an attribute
        self.bound: set[str] = set()  #: names that are bound, in whatever scope
        self.imported: set[str] = set()  #: the names that an import binds
        #: Attributes, each with the name that the path to it begins with, or "".
        self.attributes: set[tuple[str, str]] = set()
        self.methods: set[str] = set()  #: attributes of `Solution()`

    def visit_all(self, tree: ast.AST) -> None:
        """Look at all nodes. Owners of attributes come after these."""
        owners: set[int] = set()
        for node in ast.walk(tree):
            match node:
                case ast.Name(id=name, ctx=ast.Load()):
                    self.used.add(name)
                    if id(node) not in owners:
                        self.objects.add(name)
                case ast.Attribute(value=owner, attr=attribute):
                    is_direct = isinstance(owner, ast.Name)
                    if isinstance(owner, ast.Call) and getattr(owner.func, "id", "") == SOLUTION:
                        self.methods.add(attribute)
                    while isinstance(owner, ast.Attribute):
                        owner = owner.value
                    owners.add(id(owner))
                    name = getattr(owner, "id", "")
                    # What an attribute of a test case has is no attribute of the test case.
                    is_of_test = is_direct or name not in {"self", "cls"}
                    self.attributes.add((name if is_of_test else "", attribute))
                case ast.Call(func=ast.Name(id=name)):
                    self.called.add(name)
                case _:
                    self._bind(node)

    @property
    def constants(self) -> set[str]:
        """Names of several capital letters that are neither called nor used for an attribute."""
        return {each for each in self.objects - self.called if each.isupper() and len(each) > 1}

    def _bind(self, node: ast.AST) -> None:
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                self.bound.add(name)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self.bound.add(node.name)
            case ast.ImportFrom(module=str(module), names=names) if module in PROGRAM_MODULES:
                self.used |= {each.name for each in names}
            case ast.Import(names=names):
                self.used |= {each.name for each in names} & set(PROGRAM_MODULES)
            case ast.alias(name=name, asname=alias) if name not in self.used:
                self.imported.add(alias or name.partition(".")[0])
                self.bound |= self.imported


def _is_class_name(name: str) -> bool:
    return name.lstrip("_")[:1].isupper() and name != SOLUTION


def imported_packages(tree: ast.AST) -> Iterator[str]:
    """Yield the top-level packages that a test imports."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (each.name.partition(".")[0] for each in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]


def seeds(tree: ast.AST) -> bool:
    """Return whether a test may seed a generator of random numbers."""
    return any(
        "seed" in (getattr(node, "attr", ""), getattr(node, "id", ""), getattr(node, "name", ""))
        for node in ast.walk(tree)
    )
