"""Blocks and what they bind: https://docs.python.org/3/reference/executionmodel.html."""

MODULE, CLASS, FUNCTION, COMPREHENSION = range(4)


class Scope:
    """A block that binds names.

    Attributes:
        yields: For a function: whether it makes generators.
        cleans_up: For a function: whether code of it may run when a generator is destroyed.
    """

    __slots__ = (
        *("kind", "parent", "bound", "globals", "nonlocals", "owners"),
        *("yields", "cleans_up"),
    )

    def __init__(self, kind: int, parent: "Scope | None") -> None:
        self.kind = kind
        self.parent = parent
        self.bound: set[str] = set()
        self.globals: set[str] = set()
        self.nonlocals: set[str] = set()
        self.owners: dict[str, Scope] = {}
        self.yields = self.cleans_up = False

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
