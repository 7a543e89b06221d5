"""The normal form of a Python program: a key for the cache of verdicts, never the code that runs.

Programs with one key behave alike, so that a verdict on one of them is a verdict on the others.
The key is the syntax tree, in which every variable that nobody can see is written as a number,
`$0`, `$1`, in the order in which they first occur. That is the program again under fresh names,
whence equal trees are equal programs. All else here is about who can see a name.

    form    the tree, as above. Layout, comments and `pass` are gone; so are docstrings that nobody
            reads, and the type hints that nobody reads and that do nothing when evaluated
    tree    the plain tree, of a program that looks at its own names or its hints (`locals`,
            `eval`, the text of a caught TypeError), or imports a module that might
    text    the very text, of one that looks at its source or its lines (`inspect`, `__file__`,
            tracebacks), that is no Python, or that is too large or too deep to be read

What keeps its name in a form:

    attributes, methods, keywords, modules, __dunders__, everything in the body of a class
    names of the module    for `unit`, as the tests use them; for `stdin`, those that shadow a
                           builtin, and all where a star import might replace them
    parameters             that a call by keyword can reach: one in the program; or one in the
                           tests, for `unit`, of a function that is public, returned or given away
    functions              that are more than called, as their name may then be shown
    classes                unless the program does no more than make and use their instances

By decision nobody sees: the docstrings and hints that the *tests* read; the names of locals in the
interpreter's own words to the *tests* (`cannot access local variable 'x'`); a call by keyword from
the tests to a function whose name begins with an underscore; addresses, sizes and timings.
"""

import ast
import builtins
import re
import threading
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from . import eyes
from .hints import Hints, is_plain

Level = Literal["unit", "stdin"]

#: Raised with every change of the form; part of the key, so that no old verdict answers a new form.
NORMAL_FORM_VERSION = 1

#: Longer sources are their own key. No solution is as long, and reading takes some 2 s a million.
LARGEST = 400_000  # characters


def normal_form(source: str, *, level: Level) -> str:
    """Return the key of a program; never raises, in time linear in the source.

    Args:
        source: Any text.
        level: Who uses the program: `unit` tests, by the names of its module, or `stdin` tests,
            which see what it prints.

    Returns:
        Text without lone surrogates.
    """
    kind, key = _read(source, level)
    return f"{kind} {NORMAL_FORM_VERSION} {level}\n{key}"


def _read(source: str, level: Level) -> tuple[str, str]:
    try:
        # A file is decoded as its coding line says, a string is not: there a comment matters.
        if len(source) <= LARGEST and not _OTHER_CODING.match(source):
            tree = _parse(source)
            try:
                return "form", _Form(level).key(tree)
            except _SeesNames:
                if not eyes.TEXT_ANYWHERE.search(source):
                    return "tree", ast.dump(tree)
    except (_SeesText, SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    return "text", repr(source)


_OTHER_CODING = re.compile(
    r"(?:[^\n]*\n)?[ \t\f]*#[^\n]*coding[:=][ \t]*+(?=[-\w.])(?!utf[-_]?8\b)", re.IGNORECASE
)

#: Python's list of warning filters is one for all threads.
_FILTERS = threading.Lock()


def _parse(source: str) -> ast.Module:
    with _FILTERS, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "\d" is the author's affair
        return ast.parse(source)


class _SeesNames(Exception):
    """The program looks at its own names, or may: only the plain tree is safe."""


class _SeesText(Exception):
    """The program looks at its own text or lines: only the text is safe."""


# Scopes, as in https://docs.python.org/3/reference/executionmodel.html

_MODULE, _CLASS, _FUNCTION, _COMPREHENSION = range(4)


class _Scope:
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

    def __init__(self, kind: int, parent: "_Scope | None") -> None:
        self.kind = kind
        self.parent = parent
        self.bound: set[str] = set()
        self.globals: set[str] = set()
        self.nonlocals: set[str] = set()
        self.values: set[str] = set()
        self.dotted: set[str] = set()
        self.hinted: set[str] = set()
        self.owners: dict[str, _Scope] = {}
        self.function: tuple[_Scope, str] | None = None
        self.is_plain = self.yields = False

    def owner(self, name: str) -> "_Scope":
        """Return the scope whose variable this is; the builtins count as the module's."""
        owner = self.owners.get(name)
        if owner is None:
            owner = self.owners[name] = self._find(name)
        return owner

    def _find(self, name: str) -> "_Scope":
        scope, sought = self, True
        while scope.parent is not None:
            # What a class binds is seen in its body alone, not in the functions within.
            if sought and (scope.kind != _CLASS or scope is self):
                if name in scope.globals:
                    sought = False
                elif name in scope.bound and name not in scope.nonlocals:
                    return scope
            scope = scope.parent
        return scope


#: A variable, by the scope that owns it; or an occurrence of one, by the scope where it stands.
_Variable = tuple[_Scope, str]

_Definition = ast.FunctionDef | ast.AsyncFunctionDef
_Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp


@dataclass(frozen=True, slots=True)
class _Function:
    """A function, and what decides who can call it and who can see its name.

    Attributes:
        holder: The name under which a lambda is kept.
        borrower: The callable to which a lambda is lent; "" where it is called at once.
    """

    node: _Definition | ast.Lambda
    home: _Scope
    inner: _Scope
    holder: str | None = None
    borrower: str | None = None


class _Form:
    """One reading of one program: written with its variables left open, then judged, then spelled.

    `out` holds words and occurrences of variables. Every node begins with a word for its kind,
    which is no name, and every list has an end, so that no two trees are written alike.
    """

    def __init__(self, level: Level) -> None:
        self.level = level
        self.module = _Scope(_MODULE, None)
        self.scopes = [self.module]
        self.out: list[str | _Variable] = []
        self.unread: list[tuple[int, int]] = []  # of `out`: the docstrings
        self.hints = Hints()
        self.hinted: list[tuple[int, int, ast.expr, int]] = []  # the hints, and where they stand
        self.statement = 0  # the number of the module's statement that is being written
        self.future_hints = False

        self.functions: list[_Function] = []
        self.classes: list[tuple[ast.ClassDef, _Scope]] = []
        self.caught: list[tuple[ast.expr, _Scope, str]] = []
        self.lent: list[tuple[str, _Scope, str]] = []
        self.walruses: list[_Variable] = []
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

    def key(self, tree: ast.Module) -> str:
        self._write_module(tree)
        self._judge()
        self._omit()
        return self._spell(self._pinned())

    # The tree is written.

    def _write(self, node: Any, scope: _Scope) -> None:
        """Write a node, or what else a field of a node holds."""
        writer = _WRITERS.get(node.__class__)
        if writer is not None:
            writer(self, node, scope)
        elif isinstance(node, ast.AST):
            raise _SeesNames  # newer than this file
        else:
            self.out.append(repr(node))

    def _write_node(self, node: ast.AST, scope: _Scope) -> None:
        kind, fields = _KINDS[node.__class__]
        self.out.append(kind)
        for field in fields:
            value = getattr(node, field)
            if value.__class__ is not list:
                self._write(value, scope)
            elif field in _BLOCKS:
                self._write_block(value, scope)
            else:
                for item in value:
                    self._write(item, scope)
                self.out.append("]")

    def _write_module(self, tree: ast.Module) -> None:
        self._write_docstring(tree.body)
        begun = False
        for number, node in enumerate(tree.body):
            self.statement = number
            if isinstance(node, ast.ImportFrom) and node.module == "__future__":
                if begun:
                    raise _SeesNames  # an error that ast.parse leaves to the compiler
                self.future_hints |= any(alias.name == "annotations" for alias in node.names)
            elif number or not _is_docstring(node):
                begun = True
            if not _is_idle(node):
                self._write(node, self.module)
                self.hints.give(node, number)

    def _write_block(self, nodes: list[ast.stmt], scope: _Scope) -> None:
        for node in nodes:
            if not _is_idle(node):
                self._write(node, scope)
        self.out.append("]")

    def _write_docstring(self, nodes: list[ast.stmt]) -> None:
        if nodes and _is_docstring(nodes[0]):
            self.unread.append((len(self.out), len(self.out) + 1))
            self.out.append('"""' + repr(nodes[0].value.value))  # type: ignore[attr-defined]

    # Variables

    def _scope(self, kind: int, parent: _Scope) -> _Scope:
        scope = _Scope(kind, parent)
        self.scopes.append(scope)
        return scope

    def _bind(self, scope: _Scope, name: str) -> None:
        self.bindings[name] = self.bindings.get(name, 0) + 1
        (self.module if name in scope.globals else scope).bound.add(name)

    def _write_binding(self, name: str, scope: _Scope) -> None:
        self._bind(scope, name)
        self.out.append((scope, name))

    def _write_name(self, node: ast.Name, scope: _Scope) -> None:
        if node.ctx.__class__ is ast.Load:
            scope.values.add(node.id)
        else:
            self._bind(scope, node.id)
        self.out.append((scope, node.id))

    def _write_borrowed(self, node: ast.expr, scope: _Scope) -> None:
        """Write an expression whose value, where it is a variable's, goes no further."""
        if isinstance(node, ast.Name) and scope.kind != _CLASS:
            self.out.append((scope, node.id))
        else:
            self._write(node, scope)

    def _write_walrus(self, node: ast.NamedExpr, scope: _Scope) -> None:
        """Bind in the block around the comprehensions. To rebind their variables is an error."""
        name, home = node.target.id, scope
        while home.kind == _COMPREHENSION and home.parent is not None:
            self.walruses.append((home, name))
            home = home.parent
        if home.kind == _CLASS and home is not scope:
            raise _SeesNames  # likewise
        self._bind(home, name)
        self.out += (":=", (scope, name))
        self._write(node.value, scope)

    def _write_declaration(self, node: ast.Global | ast.Nonlocal, scope: _Scope) -> None:
        is_global = isinstance(node, ast.Global)
        self.out.append("global" if is_global else "nonlocal")
        for name in node.names:
            if name in scope.bound or name in scope.values:
                raise _SeesNames  # likewise: it is used before
            (scope.globals if is_global else scope.nonlocals).add(name)
            self.out.append((scope, name))
        self.out.append("]")

    def _write_import(self, node: ast.Import, scope: _Scope) -> None:
        self.out.append("import")
        for alias in node.names:
            self._see_module(alias.name)
            top, dot, _ = alias.name.partition(".")
            self.out += (alias.name, "." if dot and not alias.asname else "as")
            self._write_binding(alias.asname or top, scope)
        self.out.append("]")

    def _write_import_from(self, node: ast.ImportFrom, scope: _Scope) -> None:
        if node.level or node.module is None:
            raise _SeesNames
        self._see_module(node.module)
        self.out += ("from", node.module)
        for alias in node.names:
            self._see(alias.name)
            self.out.append(alias.name)
            if alias.name == "*":
                self.any_name = True
            else:
                self._write_binding(alias.asname or alias.name, scope)
                if not alias.asname:
                    self.imported[alias.name] = self.imported.get(alias.name, 0) + 1
        self.out.append("]")

    def _write_handler(self, node: ast.ExceptHandler, scope: _Scope) -> None:
        self.out.append("except")
        self._write(node.type, scope)
        if node.type is not None and node.name is not None:
            self.out.append("as")
            self._write_binding(node.name, scope)
            self.caught.append((node.type, scope, node.name))
        self._write_block(node.body, scope)

    def _write_raise(self, node: ast.Raise, scope: _Scope) -> None:
        self.out.append("raise")
        for value in (node.exc, node.cause):
            if value is None:
                self.out.append("None")
            else:
                self._write_borrowed(value, scope)

    def _write_pattern(
        self, node: ast.MatchAs | ast.MatchStar | ast.MatchMapping, scope: _Scope
    ) -> None:
        self._write_node(node, scope)
        name = node.rest if isinstance(node, ast.MatchMapping) else node.name
        if name is None:
            self.out.append("None")
        else:
            self._write_binding(name, scope)

    def _write_class_pattern(self, node: ast.MatchClass, scope: _Scope) -> None:
        for name in node.kwd_attrs:
            self._see_attribute(name)
        self._write_node(node, scope)

    # Functions and classes

    def _write_function(self, node: _Definition, scope: _Scope) -> None:
        self.out.append("def" if isinstance(node, ast.FunctionDef) else "async def")
        self._write_head(node, scope)
        inner = self._scope(_FUNCTION, scope)
        inner.function = (scope, node.name)
        self.functions.append(_Function(node, scope, inner))
        self._write_arguments(node.args, scope, inner)
        if node.returns is not None:
            self._write_hint(node.returns, scope)
        self._write_docstring(node.body)
        self._write_block(node.body, inner)
        if node.name == "__prepare__":
            raise _SeesNames  # the body of a class is then run in a dictionary of the program's
        if node.name in ("__exit__", "__aexit__"):
            given = {arg.arg for arg in node.args.args[1:]} | {getattr(node.args.vararg, "arg", "")}
            if given & (inner.values | inner.dotted):
                raise _SeesNames  # it may be the text of an error

    def _write_head(self, node: _Definition | ast.ClassDef, scope: _Scope) -> None:
        if getattr(node, "type_params", None):
            raise _SeesNames  # newer than this file
        self._write_binding(node.name, scope)
        for decorator in node.decorator_list:
            self._write(decorator, scope)
        self.out.append("]")

    def _write_arguments(self, args: ast.arguments, scope: _Scope, inner: _Scope) -> None:
        for default in (*args.defaults, None, *args.kw_defaults):
            self._write(default, scope)
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
                    self._write_binding(arg.arg, inner)
                    if arg.annotation is not None:
                        self._write_hint(arg.annotation, scope)
        self.out.append("]")

    def _write_lambda(self, node: ast.Lambda, scope: _Scope, borrower: str | None = None) -> None:
        self.out.append("lambda")
        inner = self._scope(_FUNCTION, scope)
        self.functions.append(_Function(node, scope, inner, self.holders.get(id(node)), borrower))
        self._write_arguments(node.args, scope, inner)
        self._write(node.body, inner)

    def _write_yield(self, node: ast.Yield | ast.YieldFrom, scope: _Scope) -> None:
        scope.yields = True
        self._write_node(node, scope)

    def _write_class(self, node: ast.ClassDef, scope: _Scope) -> None:
        self.out.append("class")
        self._write_head(node, scope)
        for base in node.bases:
            self._write(base, scope)
        self._write_keywords(node.keywords, scope)
        self.classes.append((node, scope))
        inner = self._scope(_CLASS, scope)
        inner.is_plain = not (node.bases or node.keywords or node.decorator_list)
        self._write_docstring(node.body)
        self._write_block(node.body, inner)

    def _write_comprehension(self, node: _Comprehension, scope: _Scope) -> None:
        """Write where the items come from, then what is made of them."""
        self.out.append(_KINDS[node.__class__][0])
        inner = self._scope(_COMPREHENSION, scope)
        around = scope  # the first iterable is evaluated outside
        for part in node.generators:
            self.out.append("async for" if part.is_async else "for")
            self._write(part.iter, around)
            self._write(part.target, inner)
            for condition in part.ifs:
                self._write(condition, inner)
            around = inner
        self.out.append("]")
        if isinstance(node, ast.DictComp):
            self._write(node.key, inner)
            self._write(node.value, inner)
        else:
            self._write(node.elt, inner)

    # Expressions

    def _write_constant(self, node: ast.Constant, _: _Scope) -> None:
        value = node.value
        if value.__class__ is str:
            self._see_string(value)  # type: ignore[arg-type]
        self.out.append("=" + repr(value))  # ValueError where a number is too long to be written

    def _write_fstring(self, node: ast.JoinedStr, scope: _Scope) -> None:
        self.open_fstrings += 1
        self._write_node(node, scope)

    def _write_field(self, node: ast.FormattedValue, scope: _Scope) -> None:
        if node.conversion in (ord("r"), ord("a")):
            self.shows_definitions = True
        if node.format_spec is not None:
            self.open_fstrings -= 1  # it is an f-string too, but nobody's
        self._write_node(node, scope)

    def _write_attribute(self, node: ast.Attribute, scope: _Scope) -> None:
        self.attributes.add(node.attr)
        self._write_dotted(node, scope)

    def _write_dotted(self, node: ast.Attribute, scope: _Scope) -> None:
        self._see(node.attr)
        if node.attr == "stderr" and node.ctx.__class__ is ast.Store:
            raise _SeesText  # tracebacks go where the program says
        value = node.value
        if isinstance(value, ast.Name) and scope.kind != _CLASS:
            if node.attr not in eyes.OF_WRAPPERS:
                scope.dotted.add(value.id)
            self.out.append((scope, value.id))
        else:
            self._write(value, scope)
        self.out.append("." + node.attr)

    def _write_compare(self, node: ast.Compare, scope: _Scope) -> None:
        self.out.append("compare(")
        for value in (node.left, *node.comparators):
            if isinstance(value, ast.Call) and _last_name(value.func) == "type":
                self.open_types -= 1  # `type(x) is int` shows no name
        self._write(node.left, scope)
        for operator, value in zip(node.ops, node.comparators, strict=True):
            self.out.append(_KINDS[operator.__class__][0])
            if isinstance(operator, ast.In | ast.NotIn):
                self._write_borrowed(value, scope)
            else:
                self._write(value, scope)
        self.out.append("]")

    def _write_call(self, node: ast.Call, scope: _Scope) -> None:
        self.out.append("(")
        name = self._write_callee(node.func, scope)
        if name in _SPECIAL_CALLS:
            self._see_call(name, node)
        place = eyes.BORROWERS.get(name)
        for number, arg in enumerate(node.args):
            if number == place:
                self._write_lent(name, arg, scope)
            else:
                self._write(arg, scope)
        self._write_keywords(node.keywords, scope, name)

    def _write_callee(self, func: ast.expr, scope: _Scope) -> str:
        if isinstance(func, ast.Attribute):
            self._write_dotted(func, scope)
            return func.attr
        if isinstance(func, ast.Name):
            self._write_borrowed(func, scope)
            self.called.add(func.id)
            return func.id
        if isinstance(func, ast.Lambda):
            self._write_lambda(func, scope, "")
        elif isinstance(func, ast.Subscript):
            self.out.append("[")
            self._write_borrowed(func.value, scope)
            self._write(func.slice, scope)
        else:
            self._write(func, scope)
        return ""

    def _write_lent(self, borrower: str, node: ast.expr, scope: _Scope) -> None:
        if isinstance(node, ast.Lambda):
            self._write_lambda(node, scope, borrower)
        elif isinstance(node, ast.Name) and scope.kind != _CLASS:
            self.lent.append((borrower, scope, node.id))
            self.called.add(node.id)
            self.out.append((scope, node.id))
        else:
            self._write(node, scope)

    def _write_keywords(self, keywords: list[ast.keyword], scope: _Scope, callee: str = "") -> None:
        for keyword in keywords:
            name = keyword.arg
            if name is None or name in eyes.KEYWORDS:
                self.any_keyword = True
            if name is not None:
                self.keywords.add(name)
                if name in eyes.TEXT:
                    raise _SeesText
            self.out.append("**" if name is None else name + "=")
            if name == "key" and callee in eyes.BORROWERS:
                self._write_lent(callee, keyword.value, scope)
            else:
                self._write(keyword.value, scope)
        self.out.append(")")

    # Assignments and hints

    def _write_assign(self, node: ast.Assign, scope: _Scope) -> None:
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
        self._write_node(node, scope)

    def _write_hinted_assign(self, node: ast.AnnAssign, scope: _Scope) -> None:
        """Write `x: int = 1` as `x = 1`, but in a class: there it may be a field."""
        target = node.target
        if isinstance(target, ast.Name) and (
            not node.simple or target.id in scope.globals or target.id in scope.nonlocals
        ):
            raise _SeesNames  # `(x): int` is another thing; the others are errors
        if scope.kind == _CLASS:
            # A dataclass looks up the words of a hint that is text among the module's names.
            if self.future_hints or any(map(_is_text, ast.walk(node.annotation))):
                self.any_name = True
                self.out.append(ast.dump(node.annotation))
            self._write_node(node, scope)
            return
        if node.value is None:
            self.out.append("hint(")  # in a function it makes a local, evaluates the target's parts
            self._write(target, scope)
        else:
            self.out.append(_KINDS[ast.Assign][0])
            self._write(target, scope)
            self.out.append("]")
            self._write(node.value, scope)
        self._write_hint(node.annotation, scope, evaluated=scope.kind == _MODULE)

    def _write_hint(self, node: ast.expr, scope: _Scope, *, evaluated: bool = True) -> None:
        start, values, dotted = len(self.out), scope.values, scope.dotted
        # Nobody reads hints, or all this is in vain: what they load goes nowhere.
        scope.values = scope.dotted = scope.hinted
        self.out.append(":")
        self._write(node, scope)
        scope.values, scope.dotted = values, dotted
        if not evaluated and is_plain(node):
            self.unread.append((start, len(self.out)))
        elif evaluated:
            self.hinted.append((start, len(self.out), node, self.statement))

    def _omit(self) -> None:
        """Leave the docstrings and hints out of what is written that nobody reads."""
        unread = [] if self.shows_docstrings else self.unread
        for start, end, node, statement in self.hinted:
            if self.future_hints:
                idle = is_plain(node)
            else:
                idle = self.hints.are_idle(node, statement, self.bindings)
            if idle:
                unread.append((start, end))
        if not unread:
            return
        kept, done = [], 0
        for start, end in sorted(unread):
            kept += self.out[done:start]
            done = end
        self.out = kept + self.out[done:]

    # It is judged: who looks, and at what?

    def _see_module(self, name: str) -> None:
        parts = name.split(".")
        if parts[0] not in eyes.MODULES:
            raise _SeesNames
        self.modules.add(parts[0])
        for part in parts:
            self._see(part)

    def _see(self, word: str) -> None:
        """Look at an attribute, or at what is imported."""
        if word in _EYES:
            if word in eyes.TEXT or (word == "doctest" and self.level == "stdin"):
                raise _SeesText
            if word in eyes.NAMES_OF:
                raise _SeesNames
            self.any_keyword |= word in eyes.KEYWORDS
            self.shows_definitions |= word in eyes.DEFINITIONS
            self.shows_docstrings |= word in eyes.DOCSTRINGS
            self.looks.add(word)
        elif word.startswith("__") and not word.endswith("__"):
            self.mangles = True

    def _see_attribute(self, name: str) -> None:
        self.attributes.add(name)
        self._see(name)

    def _see_string(self, text: str) -> None:
        if "__" in text:
            for word in _DUNDERS.findall(text):
                self._see(word)
                if word == "__main__" != text:
                    self.any_name = True  # a path to a name of the module
        if "%" in text or "{" in text:
            self.makes_text = True
            self.shows_definitions |= bool(eyes.DEFINITIONS_IN_STRINGS.search(text))
            self.logs_lines |= bool(eyes.LOG_FORMAT.search(text))
        if ".py" in text and eyes.PATH.search(text):
            raise _SeesText

    def _see_call(self, name: str, node: ast.Call) -> None:
        if name == "print":
            self.open_fstrings -= sum(arg.__class__ is ast.JoinedStr for arg in node.args)
        elif name == "type":
            self.open_types += 1
        else:
            for word in node.args[1:2] if name == "getattr" else node.args:
                if not (isinstance(word, ast.Constant) and isinstance(word.value, str)):
                    raise _SeesNames
                for part in word.value.split("."):
                    self._see_attribute(part)

    def _judge(self) -> None:
        """Raise where the program looks at more than a form leaves in sight."""
        for occurrence in set(self.out):
            if isinstance(occurrence, tuple):
                self._look(*occurrence)
        for module, names in eyes.NAMES_OF_MODULES.items():
            if module in self.modules and not self.looks.isdisjoint(names):
                raise _SeesNames
        if self.logs_lines and "logging" in self.modules:
            raise _SeesText
        if any(name in scope.bound for scope, name in self.walruses):
            raise _SeesNames
        if any(not scope.values.isdisjoint(_GETTERS) for scope in self.scopes):
            raise _SeesNames
        touched = self._variables("values", "dotted") if self.caught else set()
        for kind, scope, name in self.caught:
            if (scope.owner(name), name) in touched and not self._are_nameless(kind):
                raise _SeesNames

    def _look(self, scope: _Scope, name: str) -> None:
        if not name.startswith("__") and name not in _BUILTIN_EYES:
            return
        owner = scope.owner(name)
        # What a class binds and does not load is its own attribute, say a method `__repr__`.
        is_looked_up = owner is self.module or (owner.kind == _CLASS and name in owner.values)
        if name.startswith("__"):
            if not name.endswith("__"):
                self.mangles = True
                if owner.kind != _CLASS:
                    raise _SeesNames  # in a class this is another name
            elif name != "__name__" and is_looked_up:  # that of the module is no secret
                self._see(name)
        elif is_looked_up:
            if name in eyes.NAMES:
                raise _SeesNames
            if name == "type":
                self.shows_definitions |= self.open_types > 0 or name in scope.values
            else:
                self.shows_definitions |= name in eyes.DEFINITIONS
                # Not in a hint alone.
                used = name in scope.values or name in self.called
                self.makes_text |= used and name in eyes.MAKES_TEXT

    def _are_nameless(self, kind: ast.expr) -> bool:
        """Whether the texts of such errors name nothing; those of the program's own are its own."""
        if isinstance(kind, ast.Tuple):
            return all(map(self._are_nameless, kind.elts))
        if not isinstance(kind, ast.Name):
            return False
        bound = self.bindings.get(kind.id, 0)
        own = any(node.name == kind.id for node, _ in self.classes)
        return (kind.id in eyes.NAMELESS_ERRORS and not bound) or (own and bound == 1)

    def _variables(self, *uses: str) -> set[_Variable]:
        return {
            (scope.owner(name), name)
            for scope in self.scopes
            for use in uses
            for name in getattr(scope, use)
        }

    def _is_trusted(self, name: str) -> bool:
        """Whether it is the builtin or the library's: nobody else has bound the name."""
        return self.bindings.get(name, 0) == self.imported.get(name, 0)

    def _are_trusted(self, decorators: Iterable[ast.expr], known: frozenset[str]) -> bool:
        for node in decorators:
            name = _last_name(node.func if isinstance(node, ast.Call) else node)
            if name not in known or not self._is_trusted(name):
                return False
        return True

    def _pinned(self) -> set[_Variable]:
        """Return the variables that keep their names."""
        self.makes_text |= self.open_fstrings > 0
        escaped = self._variables("values") | {
            (scope.owner(name), name)
            for borrower, scope, name in self.lent
            if not self._is_trusted(borrower)
        }
        touched = escaped | self._variables("dotted")
        pinned: set[_Variable] = set()
        for function in self.functions:
            pinned.update(self._pinned_by(function, touched))
        for node, home in self.classes:
            pinned.update(_functions_around(home))  # a class within has their names in its own
            variable = (home.owner(node.name), node.name)
            if not self._is_only_made(node, variable, escaped):
                pinned.add(variable)
        # What the body of a class binds, it may before have loaded from the module.
        for scope in self.scopes:
            if scope.kind == _CLASS:
                loaded = scope.bound & (scope.values | scope.hinted)
                pinned.update((self.module, name) for name in loaded)
        return pinned

    def _pinned_by(self, function: _Function, touched: set[_Variable]) -> Iterable[_Variable]:
        node, home, inner = function.node, function.home, function.inner
        escapes = self._escapes(function, touched)
        if escapes and self.makes_text:
            yield from _functions_around(home)  # likewise
        if not isinstance(node, ast.Lambda) and (escapes or self._shows_name(node, inner)):
            yield home.owner(node.name), node.name
        hidden = self._is_hidden(function, escapes=escapes) and not self.any_keyword
        for arg in (*node.args.args, *node.args.kwonlyargs):
            if not hidden or arg.arg in self.keywords:
                yield inner, arg.arg

    def _escapes(self, function: _Function, touched: set[_Variable]) -> bool:
        """Whether a function is more than called."""
        node, home, name = function.node, function.home, function.holder
        if not isinstance(node, ast.Lambda):
            name = node.name
            wrappers = eyes.METHOD_WRAPPERS if home.kind == _CLASS else eyes.WRAPPERS
            if not self._are_trusted(node.decorator_list, wrappers):
                return True
        elif function.borrower is not None:
            return not self._is_trusted(function.borrower)
        if name is None:
            return True
        owner = home.owner(name)
        if owner.kind == _CLASS:
            return name in self.attributes or not owner.is_plain
        return (owner, name) in touched

    def _shows_name(self, node: _Definition, inner: _Scope) -> bool:
        """Whether the name of a function can be seen though it is only called."""
        makes_objects = inner.yields or isinstance(node, ast.AsyncFunctionDef)
        return (
            self.shows_definitions
            or node.name not in self.called
            or (makes_objects and self.makes_text)
        )

    def _is_hidden(self, function: _Function, *, escapes: bool) -> bool:
        """Whether all calls of a function are in sight."""
        node, home = function.node, function.home
        if self.level == "stdin":
            # A library that is given a lambda calls it by position, but for eyes.KEYWORDS.
            return isinstance(node, ast.Lambda) or not escapes
        if escapes:
            return False
        name = function.holder if isinstance(node, ast.Lambda) else node.name
        if name is None or home.owner(name).kind in (_FUNCTION, _COMPREHENSION):
            return True
        return name.startswith("_") and not name.startswith("__")

    def _is_only_made(
        self, node: ast.ClassDef, variable: _Variable, escaped: set[_Variable]
    ) -> bool:
        """Whether a program does no more than make instances, whose class it never shows."""
        writes_itself = any(getattr(part, "name", None) == "__repr__" for part in node.body)
        return (
            variable[0] is self.module
            and variable not in escaped
            and node.name in self.called
            and not (node.bases or node.keywords or node.decorator_list)
            and not (self.shows_definitions or self.mangles)
            and (writes_itself or not self.makes_text)
        )

    # It is spelled.

    def _spell(self, pinned: set[_Variable]) -> str:
        keeps_module = self.level == "unit" or self.any_name
        spelled: dict[_Variable, str] = {}  # by occurrence
        numbers: dict[_Variable, str] = {}  # by variable
        words: list[str] = []
        for item in self.out:
            if isinstance(item, str):
                words.append(item)
                continue
            word = spelled.get(item)
            if word is None:
                scope, word = item
                variable = (scope.owner(word), word)
                if not (self._keeps(variable, keeps_module) or variable in pinned):
                    word = numbers.setdefault(variable, f"${len(numbers)}")
                spelled[item] = word
            words.append(word)
        return "\n".join(words)

    def _keeps(self, variable: _Variable, keeps_module: bool) -> bool:
        owner, name = variable
        if owner is self.module:
            unbound = name not in owner.bound
            return keeps_module or unbound or name in _BUILTINS or name.startswith("__")
        return owner.kind == _CLASS or name.startswith("__")


_EYES = frozenset().union(
    *(eyes.TEXT, eyes.NAMES_OF, eyes.DEFINITIONS, eyes.DOCSTRINGS, eyes.KEYWORDS),
    *eyes.NAMES_OF_MODULES.values(),
)
_GETTERS = eyes.words("attrgetter getattr methodcaller")
_SPECIAL_CALLS = _GETTERS | {"print", "type"}
_BUILTIN_EYES = eyes.NAMES | eyes.MAKES_TEXT | {"type", "repr", "ascii"}
_BUILTINS = frozenset(dir(builtins)) | eyes.words("copyright credits exit license quit")
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


def _functions_around(scope: _Scope | None) -> Iterable[_Variable]:
    while scope is not None:
        if scope.function is not None:
            home, name = scope.function
            yield home.owner(name), name
        scope = scope.parent


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


# The nodes of the tree. A kind that is not here is newer than this file.

_WRITERS: dict[type[Any], Callable[[_Form, Any, _Scope], None]] = {
    ast.Name: _Form._write_name,
    ast.Constant: _Form._write_constant,
    ast.Attribute: _Form._write_attribute,
    ast.Call: _Form._write_call,
    ast.Compare: _Form._write_compare,
    ast.Lambda: _Form._write_lambda,
    ast.NamedExpr: _Form._write_walrus,
    ast.JoinedStr: _Form._write_fstring,
    ast.FormattedValue: _Form._write_field,
    **dict.fromkeys((ast.Yield, ast.YieldFrom), _Form._write_yield),
    **dict.fromkeys(
        (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp), _Form._write_comprehension
    ),
    ast.Assign: _Form._write_assign,
    ast.AnnAssign: _Form._write_hinted_assign,
    **dict.fromkeys((ast.FunctionDef, ast.AsyncFunctionDef), _Form._write_function),
    ast.ClassDef: _Form._write_class,
    **dict.fromkeys((ast.Global, ast.Nonlocal), _Form._write_declaration),
    ast.Import: _Form._write_import,
    ast.ImportFrom: _Form._write_import_from,
    ast.ExceptHandler: _Form._write_handler,
    ast.Raise: _Form._write_raise,
    **dict.fromkeys((ast.MatchAs, ast.MatchStar, ast.MatchMapping), _Form._write_pattern),
    ast.MatchClass: _Form._write_class_pattern,
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
        _Form._write_node,
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
