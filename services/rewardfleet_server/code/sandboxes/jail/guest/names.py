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
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

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
_ALIASES = {name for name in typing.__all__ if hasattr(getattr(typing, name), "__origin__")} - {
    *collections.__all__
}
#: Modules that tests may use, by the names under which they are usually imported. Not those whose
#: name is as often that of a class in them.
MODULES = {"np": "numpy", "numpy": "numpy", "pd": "pandas", "pandas": "pandas"} | {
    name: name for name in sys.stdlib_module_names - {"copy", "datetime", "time"}
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
    """Return what a name of the table refers to, or raise KeyError, also if it is missing here."""
    module, attribute = STANDARD_NAMES.get(name) or (MODULES[name], "")
    try:
        found = importlib.import_module(module)
    except ImportError:
        raise KeyError(name) from None
    return getattr(found, attribute) if attribute else found


class Names:
    """The names that a test uses and does not define.

    Attributes:
        used: All of them.
        classes: Those that are written like a class, or like a constant and used like a class.
        modules: Those of modules of the table, if only their attributes are used.
        called_aliases: Those of generic types that are called, which only the program's can be.
        has_objects: Whether the test uses attributes that no value has.
        methods: Attributes of `Solution()`.
        predicates: Methods that answer a question.
    """

    def __init__(self, tree: ast.AST) -> None:
        self.used, self.methods, self.predicates = set[str](), set[str](), set[str]()
        self._objects = set[str]()  #: the names that are used otherwise than for an attribute
        self._called = set[str]()
        self._bound = set[str]()  #: names that are bound, in whatever scope
        self._imported = set[str]()  #: the names that an import binds
        #: Attributes, each with the name that the path to it begins with, or "".
        self._attributes = set[tuple[str, str]]()
        self._visit_all(tree)
        constants = {n for n in self._objects - self._called if n.isupper() and len(n) > 1}
        self.used -= self._bound
        self.called_aliases = self._called & self.used & _ALIASES
        others = self.used - constants - {SOLUTION}
        self.classes = {name for name in others if name.lstrip("_")[:1].isupper()}
        self.modules = (MODULES.keys() & self.used) - self._objects
        owners = self._imported | self.modules | {"self", "cls"}
        self.has_objects = any(
            name not in _OF_VALUES for owner, name in self._attributes if owner not in owners
        )

    def _visit_all(self, tree: ast.AST) -> None:
        """Look at all nodes. Owners of attributes come after these."""
        owners: set[int] = set()
        for node in ast.walk(tree):
            self.predicates.update(_predicates(node))
            match node:
                case ast.Name(id=name, ctx=ast.Load()):
                    self.used.add(name)
                    if id(node) not in owners:
                        self._objects.add(name)
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
                    self._attributes.add((name if is_of_test else "", attribute))
                case ast.Call(func=ast.Name(id=name)):
                    self._called.add(name)
                case _:
                    self._bind(node)

    def _bind(self, node: ast.AST) -> None:
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                self._bound.add(name)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self._bound.add(node.name)
            case ast.ImportFrom(module=str(module), names=names) if module in PROGRAM_MODULES:
                self.used |= {each.name for each in names}
            case ast.Import(names=names):
                self.used |= {each.name for each in names} & set(PROGRAM_MODULES)
            case ast.alias(name=name, asname=alias) if name not in self.used:
                self._imported.add(alias or name.partition(".")[0])
                self._bound |= self._imported


def _predicates(node: ast.AST) -> Iterator[str]:
    """Yield the methods with arguments of whose results a node asks whether they are true."""
    asks = isinstance(node, (ast.Assert, ast.If, ast.UnaryOp, ast.BoolOp))
    name = getattr(node.func, "attr", "") if isinstance(node, ast.Call) else ""
    for each in ast.iter_child_nodes(node) if asks or name in {"assertTrue", "assertFalse"} else ():
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.args:
            yield each.func.attr


def imports_of(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yield the names that imports bind, each with what it stands for, like `numpy.random`."""
    for node in nodes:
        match node:
            case ast.Import(names=names):
                for each in names:
                    top = each.name.partition(".")[0]
                    yield (each.asname, each.name) if each.asname else (top, top)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield from ((each.asname or each.name, f"{module}.{each.name}") for each in names)


def path_of(node: ast.AST, imports: Mapping[str, str]) -> str:
    """Return what a name or an attribute stands for, like `numpy.random.rand`; "" if unknown."""
    match node:
        case ast.Name(id=name):
            return imports.get(name, "")
        case ast.Call(
            func=ast.Name(id="__import__" | "import_module") | ast.Attribute(attr="import_module"),
            args=[ast.Constant(value=str(module)), *_],
        ):
            return module
        case ast.Attribute(value=owner, attr=attribute):
            path = path_of(owner, imports)
            return path and f"{path}.{attribute}"
    return ""


def imported_packages(tree: ast.AST) -> set[str]:
    """Return the top-level packages that a test imports."""
    return {path.partition(".")[0] for _, path in imports_of(ast.walk(tree))}


def seeds(tree: ast.AST) -> bool:
    """Return whether a test may seed a generator of random numbers."""
    return any(
        "seed" in (getattr(node, "attr", ""), getattr(node, "id", ""), getattr(node, "name", ""))
        for node in ast.walk(tree)
    )
