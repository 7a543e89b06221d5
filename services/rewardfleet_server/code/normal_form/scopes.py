"""Blocks and what they bind: https://docs.python.org/3/reference/executionmodel.html."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass

MODULE, CLASS, FUNCTION, COMPREHENSION = range(4)


class Scope:
    """A block that binds names.

    Attributes:
        values: Names that are loaded to be more than called: what they stand for may go anywhere.
        dotted: Names of which an attribute is taken.
        hinted: Names that are loaded in hints alone.
        function: The variable to which a function is bound.
        is_plain: A class without bases and decorators, whose methods no library calls.
        yields: A function that makes generators.
    """

    __slots__ = (
        *(
            "kind",
            "parent",
            "bound",
            "globals",
            "nonlocals",
            "values",
            "dotted",
            "hinted",
            "owners",
        ),
        *("function", "is_plain", "yields"),
    )

    def __init__(self, kind: int, parent: "Scope | None") -> None:
        self.kind = kind
        self.parent = parent
        self.bound: set[str] = set()
        self.globals: set[str] = set()
        self.nonlocals: set[str] = set()
        self.values: set[str] = set()
        self.dotted: set[str] = set()
        self.hinted: set[str] = set()
        self.owners: dict[str, Scope] = {}
        self.function: tuple[Scope, str] | None = None
        self.is_plain = self.yields = False

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


#: A variable, by the scope that owns it; or an occurrence of one, by the scope where it stands.
Variable = tuple[Scope, str]

Definition = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Function:
    """A function, and what decides who can call it and who can see its name.

    Attributes:
        holder: The name under which a lambda is kept.
        borrower: The callable to which a lambda is lent; "" where it is called at once.
    """

    node: Definition | ast.Lambda
    home: Scope
    inner: Scope
    holder: str | None = None
    borrower: str | None = None


def functions_around(scope: Scope | None) -> Iterable[Variable]:
    """Return the variables to which the functions around a block are bound."""
    while scope is not None:
        if scope.function is not None:
            home, name = scope.function
            yield home.owner(name), name
        scope = scope.parent
