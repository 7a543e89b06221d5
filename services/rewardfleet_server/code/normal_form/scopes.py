"""Blocks and what they bind: https://docs.python.org/3/reference/executionmodel.html."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass

MODULE, CLASS, FUNCTION, COMPREHENSION = range(4)


class Scope:
    """A block that binds names.

    Attributes:
        is_plain: For a class: whether no library can call its methods, as it extends nothing.
        yields: For a function: whether it makes generators.
        cleans_up: For a function: whether code of it may run when a generator is destroyed.
    """

    __slots__ = (
        *("kind", "parent", "bound", "globals", "nonlocals", "owners"),
        *("loaded", "attribute_bases", "annotated"),
        *("definition", "is_plain", "yields", "cleans_up"),
    )

    def __init__(self, kind: int, parent: "Scope | None") -> None:
        self.kind = kind
        self.parent = parent
        self.bound: set[str] = set()
        self.globals: set[str] = set()
        self.nonlocals: set[str] = set()
        self.owners: dict[str, Scope] = {}
        #: Names that are loaded to be more than called: their values may go anywhere.
        self.loaded: set[str] = set()
        self.attribute_bases: set[str] = set()  #: names of which an attribute is read or set
        self.annotated: set[str] = set()  #: names that are loaded in type hints alone
        #: The variable to which a function or a class is bound.
        self.definition: tuple[Scope, str] | None = None
        self.is_plain = self.yields = self.cleans_up = False

    def owner(self, name: str) -> "Scope":
        """Return the scope whose variable this is; the builtins count as the module's."""
        owner = self.owners.get(name)
        if owner is None:
            owner = self.owners[name] = self._find(name)
        return owner

    def _find(self, name: str) -> "Scope":
        scope, sought = self, True
        while scope.parent is not None:
            # What a class binds is seen in its body alone, not in the functions within.
            if sought and (scope.kind != CLASS or scope is self):
                if name in scope.globals:
                    sought = False
                elif name in scope.bound and name not in scope.nonlocals:
                    return scope
            scope = scope.parent
        return scope


#: A variable, by the scope that owns it; or an occurrence of one, by the scope in which it is.
Variable = tuple[Scope, str]


@dataclass(frozen=True, slots=True)
class Function:
    """A function, and what decides who can call it and who can see its name."""

    node: ast.FunctionDef | ast.Lambda
    home: Scope
    inner: Scope
    #: The name to which a lambda, or a dictionary of lambdas, is assigned.
    holder: str | None = None
    #: The callable that a lambda is given to; "" where it is called at once.
    caller: str | None = None


@dataclass(frozen=True, slots=True)
class Passed:
    """A name that is an argument, by position, of what may be a function of the program."""

    scope: Scope
    callee: str
    place: int
    name: str


@dataclass(frozen=True, slots=True)
class Decorated:
    """A function whose only decorator is a name."""

    scope: Scope
    decorator: str
    node: ast.FunctionDef
    inner: Scope


def functions_around(scope: Scope | None) -> Iterable[Variable]:
    """Return the variables to which the functions and classes around a block are bound."""
    while scope is not None:
        if scope.definition is not None:
            home, name = scope.definition
            yield home.owner(name), name
        scope = scope.parent
