"""A Python program written down as its normal form."""

import ast
from collections.abc import Callable, Iterable
from typing import Any

from . import allowed
from .introspection import ReflectsSource
from .nodes import KINDS, does_nothing, is_ordinary_error, is_text

MODULE, CLASS, FUNCTION, COMPREHENSION = range(4)  #: kinds of blocks


class Scope:
    """A block that binds names: https://docs.python.org/3/reference/executionmodel.html."""

    def __init__(self, kind: int, parent: "Scope | None") -> None:
        self.kind = kind
        self.parent = parent
        self.bound: set[str] = set()
        self.globals: set[str] = set()
        self.nonlocals: set[str] = set()
        self.owners: dict[str, Scope] = {}
        self.yields = False  #: whether it makes generators
        self.cleans_up = False  #: whether code of it may run when a generator is destroyed

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

_Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp


class CanonicalWriter:
    """Writes down a program's syntax tree; raises ReflectsSource if a part may observe names."""

    def __init__(self, program: ast.Module) -> None:
        self.module = Scope(MODULE, None)
        self.scopes = [self.module]
        #: Words and occurrences of variables. Every node begins with a word for its kind, which is
        #: no name, and every list has an end, so that no two trees are written alike.
        self.out: list[str | Variable] = []
        self.kept: list[Variable] = []  #: what is not only assigned
        body = program.body
        # A string after it is no docstring: it may not stand before `from __future__`.
        is_documented = body and isinstance(body[0], ast.Expr) and is_text(body[0].value)
        for node in body[1:] if is_documented else body:
            self.write(node, self.module)
        self._check()

    def text(self, *, keeps_names: bool) -> str:
        """Return the normal form; with all names, if those of local variables can be observed."""
        if keeps_names:
            return "\n".join(each if isinstance(each, str) else each[1] for each in self.out)
        kept = {(scope.owner(name), name) for scope, name in self.kept}
        spelled: dict[Variable, str] = {}  # by occurrence
        numbers: dict[Variable, str] = {}  # by variable
        words: list[str] = []
        for item in self.out:
            if isinstance(item, str):
                words.append(item)
                continue
            word = spelled.get(item)
            if word is None:
                scope, word = item
                variable = (scope.owner(word), word)
                is_local = variable[0].kind in (FUNCTION, COMPREHENSION)
                # A class makes `_A__x` of `__x`.
                if is_local and variable not in kept and "__" not in word:
                    word = numbers.setdefault(variable, f"${len(numbers)}")
                spelled[item] = word
            words.append(word)
        return "\n".join(words)

    def _check(self) -> None:
        for scope, name in {each for each in self.out if not isinstance(each, str)}:
            if name in allowed.OTHER_BUILTINS and scope.owner(name).kind in (MODULE, CLASS):
                raise ReflectsSource
        for scope in self.scopes:
            # A generator that is destroyed runs code. The order of destruction depends on names.
            if scope.yields and scope.cleans_up:
                raise ReflectsSource

    def write(self, node: Any, scope: Scope) -> None:
        """Write a node, or what else a field of a node has."""
        writer = _WRITERS.get(node.__class__)
        if writer is not None:
            writer(self, node, scope)
        elif isinstance(node, ast.AST):
            self.write_node(node, scope)
        else:
            self.out.append(repr(node))

    def write_node(self, node: ast.AST, scope: Scope) -> None:
        """Write a node, and all its fields in their order."""
        kind, fields = KINDS[node.__class__]
        self.out.append(kind)
        for field in fields:
            value = getattr(node, field)
            if value.__class__ is list:
                self.write_list(value, scope)
            else:
                self.write(value, scope)

    def write_list(self, nodes: Iterable[Any], scope: Scope) -> None:
        """Write nodes, without the statements that do nothing."""
        for node in nodes:
            if not does_nothing(node):
                self.write(node, scope)
        self.out.append("]")

    def scope(self, kind: int, parent: Scope) -> Scope:
        """Return a new scope."""
        scope = Scope(kind, parent)
        self.scopes.append(scope)
        return scope

    # Variables

    def write_binding(self, name: str | None, scope: Scope, *, kept: bool = False) -> None:
        if name is None:
            self.out.append("None")
            return
        (self.module if name in scope.globals else scope).bound.add(name)
        self.out.append((scope, name))
        if kept:
            self.kept.append((scope, name))

    def visit_Name(self, node: ast.Name, scope: Scope) -> None:
        if node.ctx.__class__ is ast.Load:
            self.out.append((scope, node.id))
        else:
            self.write_binding(node.id, scope)

    def visit_NamedExpr(self, node: ast.NamedExpr, scope: Scope) -> None:
        """Bind in the block around the comprehensions."""
        home = scope
        while home.kind == COMPREHENSION and home.parent is not None:
            home = home.parent
        self.out.append(":=")
        self.write_binding(node.target.id, home)
        self.write(node.value, scope)

    def visit_Global(self, node: ast.Global | ast.Nonlocal, scope: Scope) -> None:
        is_global = isinstance(node, ast.Global)
        self.out.append("global" if is_global else "nonlocal")
        for name in node.names:
            (scope.globals if is_global else scope.nonlocals).add(name)
            self.out.append((scope, name))
        self.out.append("]")

    visit_Nonlocal = visit_Global

    def visit_alias(self, node: ast.alias, scope: Scope) -> None:
        if scope.kind == CLASS:
            raise ReflectsSource  # the module is an attribute
        self.out.append(node.name)
        if node.name != "*":
            name = node.asname or node.name.partition(".")[0]
            self.out.append("as" if node.asname else "")
            self.write_binding(name, scope, kept=True)

    def visit_ExceptHandler(self, node: ast.ExceptHandler, scope: Scope) -> None:
        self.out.append("except")
        self.write(node.type, scope)
        self.write_binding(node.name, scope)
        self.write_list(node.body, scope)

    def visit_MatchAs(
        self, node: ast.MatchAs | ast.MatchStar | ast.MatchMapping, scope: Scope
    ) -> None:
        self.write_node(node, scope)
        self.write_binding(node.rest if isinstance(node, ast.MatchMapping) else node.name, scope)

    visit_MatchStar = visit_MatchMapping = visit_MatchAs

    # Blocks

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.Lambda, scope: Scope) -> None:
        self.out.append("lambda" if isinstance(node, ast.Lambda) else "def")
        inner = self.scope(FUNCTION, scope)
        if isinstance(node, ast.FunctionDef):
            self.write_binding(node.name, scope, kept=True)
            self.write_list(node.decorator_list, scope)
            self.write(node.returns, scope)
        args = node.args
        for default in (*args.defaults, None, *args.kw_defaults):
            self.write(default, scope)
        for kind, group in (
            ("/", args.posonlyargs),
            (",", args.args),
            ("*", (args.vararg,)),
            ("=", args.kwonlyargs),
            ("**", (args.kwarg,)),
        ):
            for arg in group:
                if arg is not None:
                    self.out.append(kind)
                    self.write_binding(arg.arg, inner, kept=True)
                    self.write(arg.annotation, scope)
        self.out.append("]")
        if isinstance(node, ast.FunctionDef):
            self.write_list(node.body, inner)
        else:
            self.write(node.body, inner)

    visit_Lambda = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef, scope: Scope) -> None:
        self.out.append("class")
        self.write_binding(node.name, scope, kept=True)
        for part in (node.decorator_list, node.bases, node.keywords):
            self.write_list(part, scope)
        self.write_list(node.body, self.scope(CLASS, scope))

    def visit_ListComp(self, node: _Comprehension, scope: Scope) -> None:
        """Write where the items come from, then what is made of them."""
        self.out.append(KINDS[node.__class__][0])
        inner = self.scope(COMPREHENSION, scope)
        around = scope  # the first iterable is evaluated outside
        for part in node.generators:
            self.out.append("for")
            self.write(part.iter, around)
            self.write(part.target, inner)
            self.write_list(part.ifs, inner)
            around = inner
        self.out.append("]")
        if isinstance(node, ast.DictComp):
            self.write(node.key, inner)
            self.write(node.value, inner)
        else:
            self.write(node.elt, inner)

    visit_SetComp = visit_GeneratorExp = visit_DictComp = visit_ListComp

    # What runs when a generator is destroyed

    def visit_Yield(self, node: ast.Yield | ast.YieldFrom, scope: Scope) -> None:
        scope.yields = True
        self.write_node(node, scope)

    visit_YieldFrom = visit_Yield

    def visit_Try(self, node: ast.Try | ast.TryStar, scope: Scope) -> None:
        kinds = [handler.type for handler in node.handlers]
        if node.finalbody or not all(map(is_ordinary_error, kinds)):
            scope.cleans_up = True
        self.write_node(node, scope)

    visit_TryStar = visit_Try

    def visit_With(self, node: ast.With, scope: Scope) -> None:
        scope.cleans_up = True
        self.write_node(node, scope)

    def visit_Constant(self, node: ast.Constant, _: Scope) -> None:
        # ValueError where a number is too long to be written
        self.out.append("=" + repr(node.value))


#: The nodes that are more than their fields, by the kinds which the methods are named after.
_WRITERS: dict[type[Any], Callable[[CanonicalWriter, Any, Scope], None]] = {
    getattr(ast, name.removeprefix("visit_")): method
    for name, method in vars(CanonicalWriter).items()
    if name.startswith("visit_")
}
