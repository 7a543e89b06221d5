"""Which type hints do nothing when they are evaluated, so that a program is the same without them.

Others do something: `List[int]` is a NameError where `List` is not imported, `int[str]` and
`Optional[int, str]` are TypeErrors, and a call is a call. In doubt a hint is not idle.
"""

import ast
import collections
import collections.abc
import keyword
import typing
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import ModuleType

from .allowed import words
from .scopes import Scope

_ANY = -1  # any number of parameters

_BUILTINS = words("""
    bool bytearray bytes complex dict float frozenset int list object set str tuple type
""")

#: How many parameters a type takes: 0 where it is not generic.
_ARITY: dict[str, int] = {
    **dict.fromkeys(_BUILTINS, 0),
    **dict.fromkeys(words("Any AnyStr Hashable NoReturn Sized Text"), 0),
    **dict.fromkeys(
        words("""
            AbstractSet Collection Container Counter Deque FrozenSet Iterable Iterator KeysView List
            MutableSequence MutableSet Optional Reversible Sequence Set Type ValuesView deque
            frozenset list set type
        """),
        1,
    ),
    **dict.fromkeys(
        words("""
            Callable DefaultDict Dict ItemsView Mapping MutableMapping OrderedDict defaultdict dict
        """),
        2,
    ),
    "Generator": 3,
    **dict.fromkeys(words("Tuple Union tuple"), _ANY),
}

#: What makes a type of others, never a text.
GENERICS = frozenset(_ARITY) | words("ClassVar Final")

#: These mean nothing inside another, or beside `|`.
_ALONE = words("NoReturn Optional Union")

_MODULES: Mapping[str, ModuleType] = {
    "typing": typing,
    "collections": collections,
    "collections.abc": collections.abc,
}
_CLASS = "class"
_NUMPY = "numpy"

#: What a hint that is not evaluated may be made of, so as to be nothing to the compiler either.
_PARTS = frozenset({
    *(ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.Tuple, ast.List, ast.BinOp),
    *(ast.BitOr, ast.Load),
})  # fmt: skip

#: A hint of more parts may be too deep for the compiler.
_MAX_PARTS = 500


def is_plain(node: ast.expr) -> bool:
    """Return whether a hint that is not evaluated is nothing at all: no yield, walrus or lambda.

    `super` in a method gives it the class, also if it is never evaluated.
    """
    parts = list(ast.walk(node))
    return len(parts) <= _MAX_PARTS and all(
        part.__class__ in _PARTS and getattr(part, "id", "") not in ("super", "__class__")
        for part in parts
    )


@dataclass(frozen=True, slots=True)
class Hint:
    """A hint that is evaluated."""

    node: ast.expr
    statement: int  #: the number of the module's statement in which it stands
    scope: Scope  #: the block in which it is evaluated
    loaded: AbstractSet[str] = frozenset()  #: names that are loaded there to be more than called
    attribute_bases: AbstractSet[str] = frozenset()  #: names of which an attribute is read there


class Hints:
    """The hints of a program, and what the statements of a module give to those of later ones."""

    def __init__(self) -> None:
        #: Hints outside of classes, and where they begin and end in the normal form.
        self.evaluated: list[tuple[int, int, Hint]] = []
        self.of_fields: list[Hint] = []  #: hints in classes, without text
        self.idle: list[tuple[int, int]] = []  #: where hints that do nothing begin and end
        self._given: dict[str, tuple[str, int]] = {}
        self._decorators: set[str] = set()  # that are imported
        self._used: set[str] = set()  # decorators of classes that are given

    def give(self, node: ast.stmt, number: int) -> None:
        """Note the classes and imports of the module's statement with this number."""
        if isinstance(node, ast.ClassDef):
            if not (node.keywords or self._is_changed(node)):
                self._given[node.name] = (_CLASS, number)
        elif isinstance(node, ast.ImportFrom) and node.module in ("dataclasses", "functools"):
            self._decorators.update(alias.name for alias in node.names if not alias.asname)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module in _MODULES:
            for alias in node.names:
                for name in _ARITY if alias.name == "*" else (alias.name,):
                    if name in _ARITY and hasattr(_MODULES[node.module], name):
                        self._given[alias.asname or name] = (name, number)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in _MODULES or alias.name == _NUMPY:
                    self._given[alias.asname or alias.name] = (alias.name, number)

    def _is_changed(self, node: ast.ClassDef) -> bool:
        """Return whether decorators may make something else of a class."""
        for decorator in node.decorator_list:
            func = decorator.func if isinstance(decorator, ast.Call) else decorator
            name = func.id if isinstance(func, ast.Name) else ""
            if name not in self._decorators & {"dataclass", "total_ordering"}:
                return True
            self._used.add(name)
        return False

    def do_nothing(self, hint: Hint, bindings: Mapping[str, int]) -> bool:
        """Return whether evaluating a hint is sure to do nothing.

        Args:
            hint: The hint.
            bindings: How often each name is bound in the program, in any scope.
        """
        node = hint.node

        def known(node: ast.expr) -> str | None:
            return self._known(node, hint.statement, bindings)

        if isinstance(node, ast.Constant):
            return node.value is None or isinstance(node.value, str)
        return _is_type(node, known) or known(node) in _ALONE

    def _known(self, node: ast.expr, number: int, bindings: Mapping[str, int]) -> str | None:
        """Return what a name surely stands for: a key of _ARITY or _MODULES, a class, numpy."""
        if isinstance(node, ast.Attribute):
            module = self._known(node.value, number, bindings) or ""
            if module in _MODULES and node.attr in _ARITY:
                return node.attr if hasattr(_MODULES[module], node.attr) else None
            return _CLASS if (module, node.attr) == (_NUMPY, "ndarray") else None
        if not isinstance(node, ast.Name):
            return None
        bound = bindings.get(node.id, 0)
        name, since = self._given.get(node.id, (None, number))
        is_rebound = bound > 1 or any(bindings.get(each, 0) > 1 for each in self._used)
        if since < number and not is_rebound:
            return name
        return node.id if node.id in _BUILTINS and not bound else None


def _is_type(node: ast.expr, known: Callable[[ast.expr], str | None]) -> bool:
    """Whether it evaluates to something that other hints may hold."""
    if isinstance(node, ast.Constant):
        text = node.value  # that of a forward reference is compiled
        return text is None or (
            isinstance(text, str) and text.isidentifier() and not keyword.iskeyword(text)
        )
    if isinstance(node, ast.BinOp):
        either = isinstance(node.op, ast.BitOr) and not isinstance(node.left, ast.Constant)
        text = node.right.value if isinstance(node.right, ast.Constant) else None
        return (
            either and text is None and _is_type(node.left, known) and _is_type(node.right, known)
        )
    if isinstance(node, ast.Subscript):
        return _is_generic(known(node.value) or "", node.slice, known)
    name = known(node)
    return name is not None and name not in _ALONE and name not in _MODULES and name != _NUMPY


def _is_generic(name: str, index: ast.expr, known: Callable[[ast.expr], str | None]) -> bool:
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    if not parts or _ARITY.get(name, 0) not in (len(parts), _ANY):
        return False
    if name == "Callable":
        first, result = parts
        if isinstance(first, ast.List):
            parts = [*first.elts, result]
        elif _is_ellipsis(first):
            parts = [result]
        else:
            return False
    elif name in ("tuple", "Tuple") and len(parts) == 2 and _is_ellipsis(parts[1]):
        parts = parts[:1]
    return all(_is_type(part, known) for part in parts)


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...
