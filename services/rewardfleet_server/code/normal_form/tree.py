"""A Python program written down for its normal form, and what was seen of it on the way."""

import ast
import re
from collections.abc import Callable
from typing import Any, Literal

from . import eyes
from .hints import Hints, is_plain
from .scopes import CLASS, COMPREHENSION, FUNCTION, MODULE, Definition, Function, Scope, Variable

Level = Literal["unit", "stdin"]

_Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp


class SeesNames(Exception):
    """The program looks at its own names, or may: only the plain tree is safe."""


class SeesText(Exception):
    """The program looks at its own text or lines: only the text is safe."""


class Tree:
    """A program's syntax tree, written down with its variables left open.

    Attributes:
        out: Words and occurrences of variables. Every node begins with a word for its kind, which
            is no name, and every list has an end, so that no two trees are written alike.
    """

    def __init__(self, program: ast.Module, level: Level) -> None:
        self.level = level
        self.module = Scope(MODULE, None)
        self.scopes = [self.module]
        self.out: list[str | Variable] = []
        self.docstrings: list[tuple[int, int]] = []  # where they stand in `out`
        self.unread: list[tuple[int, int]] = []  # hints that are not evaluated, likewise
        self.hints = Hints()
        self.hinted: list[tuple[int, int, ast.expr, int]] = []  # the hints, and where they stand
        self.statement = 0  # the number of the module's statement that is being written
        self.future_hints = False

        self.functions: list[Function] = []
        self.classes: list[tuple[ast.ClassDef, Scope]] = []
        self.caught: list[tuple[ast.expr, Scope, str]] = []
        self.lent: list[tuple[str, Scope, str]] = []
        self.walruses: list[Variable] = []
        self.holders: dict[int, str] = {}  # the names of lambdas, by the ids of their nodes

        self.modules: set[str] = set()
        self.bindings: dict[str, int] = {}  # how often a name is bound, in any scope
        self.imported: dict[str, int] = {}  # how often by `from known_module import name`
        self.called: set[str] = set()
        self.attributes: set[str] = set()  # that are more than called
        self.looks: set[str] = set()  # attributes with which some modules look at names
        self.keywords: set[str] = set()
        self.any_keyword = False  # a call may have keywords that are not written
        self.any_name = False  # a star import may bind any name of the module
        self.shows_definitions = False
        self.shows_docstrings = False
        self.makes_text = False
        self.logs_lines = False
        self.mangles = False
        self.open_fstrings = 0  # that are not printed at once
        self.open_types = 0  # calls of type() that are not compared at once

        self.write_module(program)

    def write(self, node: Any, scope: Scope) -> None:
        """Write a node, or what else a field of a node holds."""
        writer = _WRITERS.get(node.__class__)
        if writer is not None:
            writer(self, node, scope)
        elif isinstance(node, ast.AST):
            raise SeesNames  # newer than this file
        else:
            self.out.append(repr(node))

    def write_node(self, node: ast.AST, scope: Scope) -> None:
        kind, fields = _KINDS[node.__class__]
        self.out.append(kind)
        for field in fields:
            value = getattr(node, field)
            if value.__class__ is not list:
                self.write(value, scope)
            elif field in _BLOCKS:
                self.write_block(value, scope)
            else:
                for item in value:
                    self.write(item, scope)
                self.out.append("]")

    def write_module(self, program: ast.Module) -> None:
        self.write_docstring(program.body)
        begun = False
        for number, node in enumerate(program.body):
            self.statement = number
            if isinstance(node, ast.ImportFrom) and node.module == "__future__":
                if begun:
                    raise SeesNames  # an error that ast.parse leaves to the compiler
                self.future_hints |= any(alias.name == "annotations" for alias in node.names)
            elif number or not _is_docstring(node):
                begun = True
            if not _is_idle(node):
                self.write(node, self.module)
                self.hints.give(node, number)

    def write_block(self, nodes: list[ast.stmt], scope: Scope) -> None:
        for node in nodes:
            if not _is_idle(node):
                self.write(node, scope)
        self.out.append("]")

    def write_docstring(self, nodes: list[ast.stmt]) -> None:
        if nodes and _is_docstring(nodes[0]):
            self.docstrings.append((len(self.out), len(self.out) + 1))
            self.out.append('"""' + repr(nodes[0].value.value))  # type: ignore[attr-defined]

    # Variables

    def scope(self, kind: int, parent: Scope) -> Scope:
        scope = Scope(kind, parent)
        self.scopes.append(scope)
        return scope

    def bind(self, scope: Scope, name: str) -> None:
        self.bindings[name] = self.bindings.get(name, 0) + 1
        (self.module if name in scope.globals else scope).bound.add(name)

    def write_binding(self, name: str, scope: Scope) -> None:
        self.bind(scope, name)
        self.out.append((scope, name))

    def write_name(self, node: ast.Name, scope: Scope) -> None:
        if node.ctx.__class__ is ast.Load:
            scope.values.add(node.id)
        else:
            self.bind(scope, node.id)
        self.out.append((scope, node.id))

    def write_borrowed(self, node: ast.expr, scope: Scope) -> None:
        """Write an expression whose value, where it is a variable's, goes no further."""
        if isinstance(node, ast.Name) and scope.kind != CLASS:
            self.out.append((scope, node.id))
        else:
            self.write(node, scope)

    def write_walrus(self, node: ast.NamedExpr, scope: Scope) -> None:
        """Bind in the block around the comprehensions. To rebind their variables is an error."""
        name, home = node.target.id, scope
        while home.kind == COMPREHENSION and home.parent is not None:
            self.walruses.append((home, name))
            home = home.parent
        if home.kind == CLASS and home is not scope:
            raise SeesNames  # likewise
        self.bind(home, name)
        self.out += (":=", (scope, name))
        self.write(node.value, scope)

    def write_declaration(self, node: ast.Global | ast.Nonlocal, scope: Scope) -> None:
        is_global = isinstance(node, ast.Global)
        self.out.append("global" if is_global else "nonlocal")
        for name in node.names:
            if name in scope.bound or name in scope.values:
                raise SeesNames  # likewise: it is used before
            (scope.globals if is_global else scope.nonlocals).add(name)
            self.out.append((scope, name))
        self.out.append("]")

    def write_import(self, node: ast.Import, scope: Scope) -> None:
        self.out.append("import")
        for alias in node.names:
            self.see_module(alias.name)
            top, dot, _ = alias.name.partition(".")
            self.out += (alias.name, "." if dot and not alias.asname else "as")
            self.write_binding(alias.asname or top, scope)
        self.out.append("]")

    def write_import_from(self, node: ast.ImportFrom, scope: Scope) -> None:
        if node.level or node.module is None:
            raise SeesNames
        self.see_module(node.module)
        self.out += ("from", node.module)
        for alias in node.names:
            self.see(alias.name)
            if alias.asname and alias.name in eyes.GETTERS:
                raise SeesNames
            self.out.append(alias.name)
            if alias.name == "*":
                self.any_name = True
            else:
                self.write_binding(alias.asname or alias.name, scope)
                if not alias.asname:
                    self.imported[alias.name] = self.imported.get(alias.name, 0) + 1
        self.out.append("]")

    def write_handler(self, node: ast.ExceptHandler, scope: Scope) -> None:
        self.out.append("except")
        self.write(node.type, scope)
        if node.type is not None and node.name is not None:
            self.out.append("as")
            self.write_binding(node.name, scope)
            self.caught.append((node.type, scope, node.name))
        self.write_block(node.body, scope)

    def write_raise(self, node: ast.Raise, scope: Scope) -> None:
        self.out.append("raise")
        for value in (node.exc, node.cause):
            if value is None:
                self.out.append("None")
            else:
                self.write_borrowed(value, scope)

    def write_pattern(
        self, node: ast.MatchAs | ast.MatchStar | ast.MatchMapping, scope: Scope
    ) -> None:
        self.write_node(node, scope)
        name = node.rest if isinstance(node, ast.MatchMapping) else node.name
        if name is None:
            self.out.append("None")
        else:
            self.write_binding(name, scope)

    def write_class_pattern(self, node: ast.MatchClass, scope: Scope) -> None:
        for name in node.kwd_attrs:
            self.see_attribute(name)
        self.write_node(node, scope)

    # Functions and classes

    def write_function(self, node: Definition, scope: Scope) -> None:
        self.out.append("def" if isinstance(node, ast.FunctionDef) else "async def")
        self.write_head(node, scope)
        inner = self.scope(FUNCTION, scope)
        inner.function = (scope, node.name)
        self.functions.append(Function(node, scope, inner))
        self.write_arguments(node.args, scope, inner)
        if node.returns is not None:
            self.write_hint(node.returns, scope)
        self.write_docstring(node.body)
        self.write_block(node.body, inner)
        if node.name == "__prepare__":
            raise SeesNames  # the body of a class is then run in a dictionary of the program's
        if node.name in ("__exit__", "__aexit__"):
            given = {arg.arg for arg in node.args.args[1:]} | {getattr(node.args.vararg, "arg", "")}
            if given & (inner.values | inner.dotted):
                raise SeesNames  # it may be the text of an error

    def write_head(self, node: Definition | ast.ClassDef, scope: Scope) -> None:
        if getattr(node, "type_params", None):
            raise SeesNames  # newer than this file
        self.write_binding(node.name, scope)
        for decorator in node.decorator_list:
            self.write(decorator, scope)
        self.out.append("]")

    def write_arguments(self, args: ast.arguments, scope: Scope, inner: Scope) -> None:
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
                    self.write_binding(arg.arg, inner)
                    if arg.annotation is not None:
                        self.write_hint(arg.annotation, scope)
        self.out.append("]")

    def write_lambda(self, node: ast.Lambda, scope: Scope, borrower: str | None = None) -> None:
        self.out.append("lambda")
        inner = self.scope(FUNCTION, scope)
        self.functions.append(Function(node, scope, inner, self.holders.get(id(node)), borrower))
        self.write_arguments(node.args, scope, inner)
        self.write(node.body, inner)

    def write_yield(self, node: ast.Yield | ast.YieldFrom, scope: Scope) -> None:
        scope.yields = True
        self.write_node(node, scope)

    def write_class(self, node: ast.ClassDef, scope: Scope) -> None:
        self.out.append("class")
        self.write_head(node, scope)
        for base in node.bases:
            self.write(base, scope)
        self.write_keywords(node.keywords, scope)
        self.classes.append((node, scope))
        inner = self.scope(CLASS, scope)
        inner.is_plain = not (node.bases or node.keywords or node.decorator_list)
        self.write_docstring(node.body)
        self.write_block(node.body, inner)

    def write_comprehension(self, node: _Comprehension, scope: Scope) -> None:
        """Write where the items come from, then what is made of them."""
        self.out.append(_KINDS[node.__class__][0])
        inner = self.scope(COMPREHENSION, scope)
        around = scope  # the first iterable is evaluated outside
        for part in node.generators:
            self.out.append("async for" if part.is_async else "for")
            self.write(part.iter, around)
            self.write(part.target, inner)
            for condition in part.ifs:
                self.write(condition, inner)
            around = inner
        self.out.append("]")
        if isinstance(node, ast.DictComp):
            self.write(node.key, inner)
            self.write(node.value, inner)
        else:
            self.write(node.elt, inner)

    # Expressions

    def write_constant(self, node: ast.Constant, _: Scope) -> None:
        value = node.value
        if value.__class__ is str:
            self.see_string(value)
        self.out.append("=" + repr(value))  # ValueError where a number is too long to be written

    def write_fstring(self, node: ast.JoinedStr, scope: Scope) -> None:
        self.open_fstrings += 1
        self.write_node(node, scope)

    def write_field(self, node: ast.FormattedValue, scope: Scope) -> None:
        if node.conversion in (ord("r"), ord("a")):
            self.shows_definitions = True
        if node.format_spec is not None:
            self.open_fstrings -= 1  # it is an f-string too, but nobody's
        self.write_node(node, scope)

    def write_attribute(self, node: ast.Attribute, scope: Scope) -> None:
        self.attributes.add(node.attr)
        self.write_dotted(node, scope)

    def write_dotted(self, node: ast.Attribute, scope: Scope) -> None:
        self.see(node.attr)
        if node.ctx.__class__ is ast.Store and node.attr in ("stderr", "stdout"):
            if node.attr == "stderr":
                raise SeesText  # tracebacks go where the program says
            self.makes_text = True
        value = node.value
        if isinstance(value, ast.Name) and scope.kind != CLASS:
            if node.attr not in eyes.OF_WRAPPERS:
                scope.dotted.add(value.id)
            self.out.append((scope, value.id))
        else:
            self.write(value, scope)
        self.out.append("." + node.attr)

    def write_compare(self, node: ast.Compare, scope: Scope) -> None:
        self.out.append("compare(")
        for value in (node.left, *node.comparators):
            if isinstance(value, ast.Call) and last_name(value.func) == "type":
                self.open_types -= 1  # `type(x) is int` shows no name
        self.write(node.left, scope)
        for operator, value in zip(node.ops, node.comparators, strict=True):
            self.out.append(_KINDS[operator.__class__][0])
            if isinstance(operator, ast.In | ast.NotIn):
                self.write_borrowed(value, scope)
            else:
                self.write(value, scope)
        self.out.append("]")

    def write_call(self, node: ast.Call, scope: Scope) -> None:
        self.out.append("(")
        name = self.write_callee(node.func, scope)
        if name in _SPECIAL_CALLS:
            self.see_call(name, node)
        place = eyes.BORROWERS.get(name)
        for number, arg in enumerate(node.args):
            if number == place:
                self.write_lent(name, arg, scope)
            else:
                self.write(arg, scope)
        self.write_keywords(node.keywords, scope, name)

    def write_callee(self, func: ast.expr, scope: Scope) -> str:
        if isinstance(func, ast.Attribute):
            self.write_dotted(func, scope)
            return func.attr
        if isinstance(func, ast.Name):
            self.write_borrowed(func, scope)
            self.called.add(func.id)
            return func.id
        if isinstance(func, ast.Lambda):
            self.write_lambda(func, scope, "")
        elif isinstance(func, ast.Subscript):
            self.out.append("[")
            self.write_borrowed(func.value, scope)
            self.write(func.slice, scope)
        else:
            self.write(func, scope)
        return ""

    def write_lent(self, borrower: str, node: ast.expr, scope: Scope) -> None:
        if isinstance(node, ast.Lambda):
            self.write_lambda(node, scope, borrower)
        elif isinstance(node, ast.Name) and scope.kind != CLASS:
            self.lent.append((borrower, scope, node.id))
            self.called.add(node.id)
            self.out.append((scope, node.id))
        else:
            self.write(node, scope)

    def write_keywords(self, keywords: list[ast.keyword], scope: Scope, callee: str = "") -> None:
        for keyword in keywords:
            name = keyword.arg
            if name is None:
                self.any_keyword = True
            else:
                self.keywords.add(name)
                self.see(name)
            self.out.append("**" if name is None else name + "=")
            if name == "key" and callee in eyes.BORROWERS:
                self.write_lent(callee, keyword.value, scope)
            else:
                self.write(keyword.value, scope)
        self.out.append(")")

    # Assignments and hints

    def write_assign(self, node: ast.Assign, scope: Scope) -> None:
        target, value = node.targets[0], node.value
        if len(node.targets) == 1 and isinstance(target, ast.Name):
            kept: list[Any] = [value]
            if isinstance(value, ast.Dict):
                kept = value.values
            elif isinstance(value, ast.List | ast.Tuple):
                kept = value.elts
            for item in kept:
                if item.__class__ is ast.Lambda:
                    self.holders[id(item)] = target.id
        self.write_node(node, scope)

    def write_hinted_assign(self, node: ast.AnnAssign, scope: Scope) -> None:
        """Write `x: int = 1` as `x = 1`, but in a class: there it may be a field."""
        target = node.target
        if isinstance(target, ast.Name) and (
            not node.simple or target.id in scope.globals or target.id in scope.nonlocals
        ):
            raise SeesNames  # `(x): int` is another thing; the others are errors
        if scope.kind == CLASS:
            # A dataclass looks up the words of a hint that is text among the module's names.
            if self.future_hints or any(map(_is_text, ast.walk(node.annotation))):
                self.any_name = True
                self.out.append(ast.dump(node.annotation))
            self.write_node(node, scope)
            return
        if node.value is None:
            self.out.append("hint(")  # in a function it makes a local, evaluates the target's parts
            self.write(target, scope)
        else:
            self.out.append(_KINDS[ast.Assign][0])
            self.write(target, scope)
            self.out.append("]")
            self.write(node.value, scope)
        self.write_hint(node.annotation, scope, evaluated=scope.kind == MODULE)

    def write_hint(self, node: ast.expr, scope: Scope, *, evaluated: bool = True) -> None:
        start, values, dotted = len(self.out), scope.values, scope.dotted
        # Nobody reads hints, or all this is in vain: what they load goes nowhere.
        scope.values = scope.dotted = scope.hinted
        self.out.append(":")
        self.write(node, scope)
        scope.values, scope.dotted = values, dotted
        if not evaluated and is_plain(node):
            self.unread.append((start, len(self.out)))
        elif evaluated:
            self.hinted.append((start, len(self.out), node, self.statement))

    # What looks, and at what

    def see_module(self, name: str) -> None:
        parts = name.split(".")
        if parts[0] not in eyes.MODULES:
            raise SeesNames
        self.modules.add(parts[0])
        for part in parts:
            self.see(part)

    def see(self, word: str) -> None:
        """Look at an attribute, or at what is imported."""
        if word in _EYES:
            if word in eyes.TEXT or (word == "doctest" and self.level == "stdin"):
                raise SeesText
            if word in eyes.NAMES_OF:
                raise SeesNames
            self.any_keyword |= word in eyes.KEYWORDS
            self.shows_definitions |= word in eyes.DEFINITIONS
            self.shows_docstrings |= word in eyes.DOCSTRINGS
            self.makes_text |= word in eyes.MAKES_TEXT
            self.looks.add(word)
        elif word.startswith("__") and not word.endswith("__"):
            self.mangles = True

    def see_attribute(self, name: str) -> None:
        self.attributes.add(name)
        self.see(name)

    def see_string(self, text: str) -> None:
        if "__" in text:
            for word in _DUNDERS.findall(text):
                self.see(word)
                if word == "__main__" != text:
                    self.any_name = True  # a path to a name of the module
        if "%" in text or "{" in text:
            self.makes_text = True
            self.shows_definitions |= bool(eyes.DEFINITIONS_IN_STRINGS.search(text))
            self.logs_lines |= bool(eyes.LOG_FORMAT.search(text))
        if ".py" in text and eyes.PATH.search(text):
            raise SeesText

    def see_call(self, name: str, node: ast.Call) -> None:
        if name == "print":
            self.open_fstrings -= sum(arg.__class__ is ast.JoinedStr for arg in node.args)
        elif name == "type":
            self.open_types += 1
        else:
            for word in node.args[1:2] if name == "getattr" else node.args:
                if not (isinstance(word, ast.Constant) and isinstance(word.value, str)):
                    raise SeesNames
                for part in word.value.split("."):
                    self.see_attribute(part)


_EYES = frozenset().union(
    *(eyes.TEXT, eyes.NAMES_OF, eyes.DEFINITIONS, eyes.DOCSTRINGS, eyes.KEYWORDS, eyes.MAKES_TEXT),
    *(*eyes.TEXT_OF_MODULES.values(), *eyes.NAMES_OF_MODULES.values()),
)
_SPECIAL_CALLS = eyes.GETTERS | {"print", "type"}
_DUNDERS = re.compile(r"\w*__\w*")


def _is_idle(node: ast.stmt) -> bool:
    """Whether it is `pass`, or a constant by itself."""
    return isinstance(node, ast.Pass) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and _is_text(node.value)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


# The nodes of the tree. A kind that is not here is newer than this file.

_WRITERS: dict[type[Any], Callable[[Tree, Any, Scope], None]] = {
    ast.Name: Tree.write_name,
    ast.Constant: Tree.write_constant,
    ast.Attribute: Tree.write_attribute,
    ast.Call: Tree.write_call,
    ast.Compare: Tree.write_compare,
    ast.Lambda: Tree.write_lambda,
    ast.NamedExpr: Tree.write_walrus,
    ast.JoinedStr: Tree.write_fstring,
    ast.FormattedValue: Tree.write_field,
    **dict.fromkeys((ast.Yield, ast.YieldFrom), Tree.write_yield),
    **dict.fromkeys(
        (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp), Tree.write_comprehension
    ),
    ast.Assign: Tree.write_assign,
    ast.AnnAssign: Tree.write_hinted_assign,
    **dict.fromkeys((ast.FunctionDef, ast.AsyncFunctionDef), Tree.write_function),
    ast.ClassDef: Tree.write_class,
    **dict.fromkeys((ast.Global, ast.Nonlocal), Tree.write_declaration),
    ast.Import: Tree.write_import,
    ast.ImportFrom: Tree.write_import_from,
    ast.ExceptHandler: Tree.write_handler,
    ast.Raise: Tree.write_raise,
    **dict.fromkeys((ast.MatchAs, ast.MatchStar, ast.MatchMapping), Tree.write_pattern),
    ast.MatchClass: Tree.write_class_pattern,
    **dict.fromkeys(
        (
            *(ast.Expr, ast.Return, ast.Delete, ast.AugAssign, ast.For, ast.AsyncFor, ast.While),
            *(ast.If, ast.With, ast.AsyncWith, ast.withitem, ast.Match, ast.match_case, ast.Try),
            *(ast.TryStar, ast.Assert, ast.Break, ast.Continue, ast.Pass),
            *(ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Dict, ast.Set, ast.Await),
            *(ast.Subscript, ast.Starred, ast.List, ast.Tuple, ast.Slice),
            *(ast.MatchValue, ast.MatchSingleton, ast.MatchSequence, ast.MatchOr),
            *ast.boolop.__subclasses__(),
            *ast.cmpop.__subclasses__(),
            *ast.operator.__subclasses__(),
            *ast.unaryop.__subclasses__(),
        ),
        Tree.write_node,
    ),
}

_BLOCKS = ("body", "orelse", "finalbody")

#: What `_write_node` need not write, or writes elsewhere.
_SKIPPED = {
    ast.MatchAs: ("name",),
    ast.MatchStar: ("name",),
    ast.MatchMapping: ("rest",),
}

#: The word for each kind, which is no name, and its fields.
_KINDS = {
    kind: (
        kind.__name__ + "(",
        tuple(
            field
            for field in kind._fields
            if field not in ("ctx", "kind", "simple", "type_comment", *_SKIPPED.get(kind, ()))
        ),
    )
    for kind in _WRITERS
}
