r"""The normal form of a Python program: a key for the cache of verdicts, never the code that runs.

Two programs with one key behave alike; so a verdict on one of them is a verdict on the other.
The key is the syntax tree with every variable that nobody can see written as a number, `$0`, `$1`,
in the order in which they first occur. Such a tree is the program again under fresh names, whence
equal trees are equal programs. The rest of this file is about who can see a name.

    form:   the tree, as above. Layout and comments are gone; so are docstrings, `pass` and, where
            evaluating them does nothing, type hints.
    tree:   the plain tree: the program looks at its names, its hints or its docstrings
            (`locals`, `eval`, `__doc__`, the text of a caught TypeError), or a module might.
    text:   the very text: it looks at its source or its lines (`inspect`, `__file__`, tracebacks),
            or it is no Python, or too large or too deep to be read.

What keeps its name in a form:

    attributes, methods, keywords, modules, all __dunders__, everything in a class body
    the module's names              for `unit`, as the tests use them. For `stdin`, those that
                                    shadow a builtin, or that a star import might replace
    parameters                      where a call by keyword can reach them: by one in the program;
                                    by the tests, for `unit` (a public function or method, or one
                                    that is returned, stored or given away)
    functions                       that are more than called: their name can be printed
    classes                         unless the program only makes and uses their instances

Not seen by it, by decision: that the *tests* read docstrings, hints, or the texts in which the
interpreter itself names a local (`cannot access local variable 'x'`), or call a function whose
name begins with an underscore by keyword; sizes, addresses and timings.
"""

import ast
import builtins
import keyword
import re
import threading
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

Level = Literal["unit", "stdin"]

#: Raised with every change of the form; part of the key, so that no old verdict answers a new form.
NORMAL_FORM_VERSION = 1

#: Longer sources are their own key. No solution is as long, and reading takes about 2 s a million.
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
    form, key = _read(source, level)
    return f"{form} {NORMAL_FORM_VERSION} {level}\n{key}"


def _read(source: str, level: Level) -> tuple[str, str]:
    # A file is decoded as its coding line says, but a string is not: there a comment matters.
    if len(source) <= LARGEST and not _CODING.match(source):
        try:
            tree = _parse(source)
            return "form", _Form(level).key(tree)
        except _SeesNames:
            if not _SEES_TEXT_SOMEWHERE.search(source):
                return _plain(source, tree)
        except (_SeesText, SyntaxError, ValueError, RecursionError, MemoryError):
            pass
    return "text", repr(source)


def _plain(source: str, tree: ast.Module) -> tuple[str, str]:
    try:
        return "tree", ast.dump(tree)
    except (ValueError, RecursionError, MemoryError):
        return "text", repr(source)


_CODING = re.compile(r"(?:[^\n]*\n)?[ \t\f]*#[^\n]*coding[:=][ \t]*(?!utf-?8\b)", re.IGNORECASE)

#: Python's list of warning filters is one for all threads.
_QUIET = threading.Lock()


def _parse(source: str) -> ast.Module:
    with _QUIET, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "\d" is the author's affair
        return ast.parse(source)


class _SeesNames(Exception):  # noqa: N818
    """The program looks at its own names, or may: only the plain tree is safe."""


class _SeesText(Exception):  # noqa: N818
    """The program looks at its own text or lines: only the text is safe."""


# What a program can look with


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Names, attributes and modules that lead to the source, its lines, or the names of locals.
_SEES_TEXT = _words("""
    __file__ __cached__ __loader__ __spec__ __traceback__ __code__ _getframe _current_frames
    _getframemodulename exc_info settrace setprofile gi_frame cr_frame ag_frame gi_code cr_code
    f_back f_code f_lineno f_locals f_globals tb_frame tb_lineno tb_next lineno excepthook
    print_exc format_exc print_exception exception unraisablehook argv orig_argv dup2 listdir
    scandir iterdir rglob glob iglob
    inspect traceback linecache tokenize dis doctest pdb bdb trace profile cProfile tracemalloc
    faulthandler unittest asyncio runpy importlib pkgutil zipimport modulefinder symtable pyclbr
""")
_SEES_TEXT_SOMEWHERE = re.compile(
    rf"\b(?:{'|'.join(sorted(_SEES_TEXT))}|funcName)\b|\.py\b|%\((?:pathname|filename|module)\)"
)

#: Builtins that look at names, unless the program has a variable of this name.
_SEES_NAMES = _words("""
    eval exec compile locals globals vars dir help breakpoint execfile reload __import__
    __builtins__ __doc__ __annotations__ __dict__
""")

#: Other words after a dot, or imported, that do: of classes, functions and known modules.
_LOOKS = _words("""
    eval query bmat who get_type_hints get_annotations get_overloads signature singledispatch
    singledispatchmethod modules return_exceptions displayhook
""")

#: The dunder attributes that say nothing of names. Any other is a look.
_PLAIN_DUNDERS = _words("""
    abs add aenter aexit aiter all and anext author await bool bytes call ceil class_getitem complex
    contains copy debug deepcopy del delattr delete delitem divmod enter eq exit float floor
    floordiv format ge get getattr getitem getnewargs gt hash iadd iand ifloordiv ilshift imatmul
    imod imul index init init_subclass instancecheck int invert ior ipow irshift isub iter itruediv
    ixor le len length_hint lshift lt main match_args matmul missing mod mul ne neg new next or
    package path pos post_init pow radd rand rdivmod repr reversed rfloordiv rlshift rmatmul rmod
    rmul ror round rpow rrshift rshift rsub rtruediv rxor set set_name setattr setitem slots str sub
    subclasscheck truediv trunc version xor future
""") | {"name", "qualname", "class", "module"}

#: These show the names of functions and classes, but not those of variables.
_SHOWS_DEFINITIONS = _words("""
    __name__ __qualname__ __class__ __repr__ __str__ __format__ mro repr ascii pprint
""")

#: Modules of which I know that only the words above look at names. Any other may look.
_MODULES = _words("""
    __future__ abc array base64 binascii bisect calendar cmath collections colorsys contextlib copy
    csv dataclasses datetime decimal difflib enum fractions functools hashlib heapq hmac html io
    ipaddress itertools json math numbers numpy operator os pandas queue random re secrets
    statistics string struct sys textwrap threading time types typing typing_extensions unicodedata
    urllib uuid zlib zoneinfo
""")

#: Those that may call by keyword what they are given.
_KEYWORD_CALLERS = _words("numpy pandas Thread Timer kwargs kwds kw")

#: Callables that call what they are given by position, and give it to nobody.
_BORROWERS = _words("""
    accumulate dropwhile filter filterfalse groupby isinstance issubclass map max merge min
    nlargest nsmallest reduce sort sorted starmap sub subn takewhile
""")

#: Decorators whose function is still only what it is called.
_WRAPPERS = _words("cache lru_cache wraps")
_METHOD_WRAPPERS = _words("classmethod staticmethod property setter abstractmethod") | _WRAPPERS

#: Errors of which the interpreter's text never names a variable, function or class.
_NAMELESS_ERRORS = _words("""
    ArithmeticError AssertionError BlockingIOError BrokenPipeError BufferError ConnectionError
    EOFError FileExistsError FileNotFoundError FloatingPointError IOError IndexError
    InterruptedError IsADirectoryError KeyError KeyboardInterrupt LookupError MemoryError
    NotADirectoryError NotImplementedError OSError OverflowError PermissionError RecursionError
    StopAsyncIteration StopIteration TimeoutError UnicodeDecodeError UnicodeEncodeError
    UnicodeError ValueError ZeroDivisionError
""")

_BUILTINS = frozenset(dir(builtins)) | _words("exit quit copyright credits license")


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _is_private(name: str) -> bool:
    return name.startswith("_") and not _is_dunder(name)


# Scopes, as in https://docs.python.org/3/reference/executionmodel.html

_MODULE, _CLASS, _FUNCTION, _COMPREHENSION = range(4)


class _Scope:
    """A block that binds names.

    Attributes:
        values: Names that are loaded to be more than called: what they stand for may go anywhere.
        dotted: Names of which an attribute is taken.
        hinted: Names that are loaded in hints alone.
        holds_class: A class within bears this function's name in its own.
        is_plain: A class whose methods no one else calls: without bases and decorators.
    """

    __slots__ = (
        "bound", "dotted", "globals", "hinted", "holds_class", "is_plain", "kind", "nonlocals",
        "owners", "parent", "values", "yields",
    )  # fmt: skip

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
        self.holds_class = False
        self.is_plain = False
        self.yields = False

    def owner(self, name: str) -> "_Scope":
        """Return the scope whose variable this is; the module's are also the builtins."""
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


#: A variable, by the scope that owns it; or an occurrence, by the scope where it stands.
_Variable = tuple[_Scope, str]

_Definition = ast.FunctionDef | ast.AsyncFunctionDef
_Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp


@dataclass(frozen=True, slots=True)
class _Function:
    """A function, and what decides who can call it and who can see its name.

    Attributes:
        holder: The name under which a lambda is kept.
        borrower: The callable to which a lambda is given; "" where it is called at once.
    """

    node: _Definition | ast.Lambda
    home: _Scope
    inner: _Scope
    holder: str | None = None
    borrower: str | None = None


class _Form:
    """One reading of one program: written with its variables left open, judged, and spelled.

    `out` is a list of words and of occurrences of variables. Every node begins with its kind and
    every list has an end, so no two trees are written alike.
    """

    def __init__(self, level: Level) -> None:
        self.level = level
        self.module = _Scope(_MODULE, None)
        self.scopes = [self.module]
        self.out: list[str | _Variable] = []

        self.bindings: dict[str, int] = {}  # how often a name is bound, in whatever scope
        self.imported: dict[str, int] = {}  # how often by `from known_module import name`
        self.attributes: set[str] = set()  # that are more than called
        self.called: set[str] = set()
        self.keywords: set[str] = set()
        self.any_keyword = False  # some call has keywords that are not written
        self.star = False
        self.mangled = False
        self.shows_definitions = False
        self.makes_text = False
        self.bare_fstrings = 0
        self.bare_types = 0

        self.statement = 0  # the number of the module's statement that is being written
        self.future_hints = False
        self.hints: list[tuple[int, int, ast.expr, int, bool]] = []
        self.given: dict[str, tuple[str, int]] = {}  # what hints are made of, and since when

        self.functions: list[_Function] = []
        self.classes: list[tuple[ast.ClassDef, _Scope]] = []
        self.caught: list[tuple[ast.expr, _Scope, str]] = []
        self.lent: list[tuple[str, _Scope, str]] = []
        self.walruses: list[_Variable] = []
        self.holders: dict[int, str] = {}

    def key(self, tree: ast.Module) -> str:
        self._write_module(tree)
        self._drop_hints()
        self._look()
        return self._spelled(self._pinned())

    # First, the tree is written.

    def _write(self, node: ast.AST, scope: _Scope) -> None:
        writer = _WRITERS.get(node.__class__)
        if writer is None:
            raise _SeesNames  # a kind that this file does not know
        writer(self, node, scope)

    def _write_node(self, node: ast.AST, scope: _Scope) -> None:
        kind, fields = _KINDS[node.__class__]
        self.out.append(kind)
        for field in fields:
            value = getattr(node, field)
            if value.__class__ is not list:
                self._write_value(value, scope)
            elif field in _BLOCKS:
                self._write_block(value, scope)
            else:
                for item in value:
                    self._write_value(item, scope)
                self.out.append("]")

    def _write_value(self, value: Any, scope: _Scope) -> None:
        writer = _WRITERS.get(value.__class__)
        if writer is not None:
            writer(self, value, scope)
        elif isinstance(value, ast.AST):
            raise _SeesNames
        else:
            self.out.append(repr(value))

    def _write_module(self, tree: ast.Module) -> None:
        begun = False
        for number, node in enumerate(tree.body):
            if isinstance(node, ast.ImportFrom) and node.module == "__future__":
                if begun:
                    raise _SeesNames  # a syntax error that ast.parse leaves to the compiler
                self.future_hints |= any(alias.name == "annotations" for alias in node.names)
            elif number or not _is_docstring(node):
                begun = True
            self.statement = number
            if not _is_idle(node):
                self._write(node, self.module)
                self._give(node)

    def _write_block(self, nodes: list[ast.stmt], scope: _Scope) -> None:
        for node in nodes:
            if not _is_idle(node):
                self._write(node, scope)
        self.out.append("]")

    # Variables

    def _scope(self, kind: int, parent: _Scope) -> _Scope:
        scope = _Scope(kind, parent)
        self.scopes.append(scope)
        return scope

    def _bind(self, scope: _Scope, name: str) -> None:
        self.bindings[name] = self.bindings.get(name, 0) + 1
        (self.module if name in scope.globals else scope).bound.add(name)

    def _write_binding(self, scope: _Scope, name: str) -> None:
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
        if node.__class__ is ast.Name and scope.kind != _CLASS:
            self.out.append((scope, node.id))  # type: ignore[attr-defined]
        else:
            self._write(node, scope)

    def _write_walrus(self, node: ast.NamedExpr, scope: _Scope) -> None:
        """Bind in the block around the comprehensions. Rebinding their variables is an error."""
        name, home = node.target.id, scope
        while home.kind == _COMPREHENSION and home.parent is not None:
            self.walruses.append((home, name))
            home = home.parent
        if home.kind == _CLASS and home is not scope:
            raise _SeesNames  # a syntax error, likewise
        self.out.append(":=")
        self._bind(home, name)
        self.out.append((scope, name))
        self._write(node.value, scope)

    def _write_declaration(self, node: ast.Global | ast.Nonlocal, scope: _Scope) -> None:
        is_global = node.__class__ is ast.Global
        self.out.append("global" if is_global else "nonlocal")
        for name in node.names:
            if name in scope.bound or name in scope.values:
                raise _SeesNames  # a syntax error, likewise
            (scope.globals if is_global else scope.nonlocals).add(name)
            self.out.append((scope, name))
        self.out.append("]")

    def _write_import(self, node: ast.Import, scope: _Scope) -> None:
        self.out.append("import")
        for alias in node.names:
            self._see_module(alias.name)
            top, dot, _ = alias.name.partition(".")
            self.out.append(alias.name)
            self.out.append("top" if dot and not alias.asname else "as")
            self._write_binding(scope, alias.asname or top)
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
                self.star = True
                continue
            self._write_binding(scope, alias.asname or alias.name)
            if not alias.asname:
                self.imported[alias.name] = self.imported.get(alias.name, 0) + 1
        self.out.append("]")

    def _write_handler(self, node: ast.ExceptHandler, scope: _Scope) -> None:
        self.out.append("except")
        self._write_value(node.type, scope)
        if node.name is not None and node.type is not None:
            self.out.append("as")
            self._write_binding(scope, node.name)
            self.caught.append((node.type, scope, node.name))
        self._write_block(node.body, scope)

    def _write_raise(self, node: ast.Raise, scope: _Scope) -> None:
        self.out.append("raise")
        for value in (node.exc, node.cause):
            if value is None:
                self.out.append("None")
            else:
                self._write_borrowed(value, scope)

    def _write_capture(
        self, node: ast.MatchAs | ast.MatchStar | ast.MatchMapping, scope: _Scope
    ) -> None:
        name = node.rest if isinstance(node, ast.MatchMapping) else node.name
        self._write_node(node, scope)
        if name is None:
            self.out.append("_")
        else:
            self._write_binding(scope, name)

    def _write_match_class(self, node: ast.MatchClass, scope: _Scope) -> None:
        for name in node.kwd_attrs:
            self._see(name)
        self._write_node(node, scope)

    # Functions and classes

    def _write_function(self, node: _Definition, scope: _Scope) -> None:
        self.out.append("def" if node.__class__ is ast.FunctionDef else "async def")
        self._write_head(node, scope)
        inner = self._scope(_FUNCTION, scope)
        self.functions.append(_Function(node, scope, inner))
        self._write_arguments(node.args, scope, inner)
        self._write_hint(node.returns, scope)
        self._write_block(node.body, inner)
        if node.name == "__prepare__":
            raise _SeesNames  # the body of a class is then run in a dictionary of the program's
        if node.name in ("__exit__", "__aexit__"):
            given = {arg.arg for arg in node.args.args[1:]} | {getattr(node.args.vararg, "arg", "")}
            if given & (inner.values | inner.dotted):
                raise _SeesNames  # it may be the text of an error

    def _write_head(self, node: _Definition | ast.ClassDef, scope: _Scope) -> None:
        if getattr(node, "type_params", None):
            raise _SeesNames
        self._write_binding(scope, node.name)
        for decorator in node.decorator_list:
            self._write(decorator, scope)
        self.out.append("]")

    def _write_arguments(self, args: ast.arguments, scope: _Scope, inner: _Scope) -> None:
        for default in (*args.defaults, None, *args.kw_defaults):
            self._write_value(default, scope)
        for kind, group in (
            ("/", args.posonlyargs),
            (",", args.args),
            ("*", [args.vararg] if args.vararg else []),
            ("=", args.kwonlyargs),
            ("**", [args.kwarg] if args.kwarg else []),
        ):
            for arg in group:
                self.out.append(kind)
                self._write_binding(inner, arg.arg)
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
        self._write_block(node.body, inner)
        around: _Scope | None = scope
        while around is not None:
            around.holds_class = True
            around = around.parent

    def _write_comprehension(self, node: _Comprehension, scope: _Scope) -> None:
        """Write where the names come from before what is made of them."""
        self.out.append(_KINDS[node.__class__][0])
        inner = self._scope(_COMPREHENSION, scope)
        around = scope  # where the first iterable is evaluated
        for part in node.generators:
            self.out.append("async for" if part.is_async else "for")
            self._write(part.iter, around)
            around = inner
            self._write(part.target, inner)
            for condition in part.ifs:
                self._write(condition, inner)
        self.out.append("]")
        if isinstance(node, ast.DictComp):
            self._write(node.key, inner)
            self._write(node.value, inner)
        else:
            self._write(node.elt, inner)

    # Expressions

    def _write_constant(self, node: ast.Constant, scope: _Scope) -> None:  # noqa: ARG002
        value = node.value
        if value.__class__ is str:
            if "__" in value:
                for word in _DUNDER.findall(value):
                    self._see_dunder(word)
            if "%" in value or "{" in value:
                self.makes_text = True
                self.shows_definitions |= bool(_SHOWN.search(value))
        self.out.append("=" + repr(value))  # ValueError where a number is too long to be written

    def _write_formatted(self, node: ast.FormattedValue, scope: _Scope) -> None:
        if node.conversion in (ord("r"), ord("a")):
            self.shows_definitions = True
        self._write_node(node, scope)

    def _write_fstring(self, node: ast.JoinedStr, scope: _Scope) -> None:
        self.bare_fstrings += 1
        self._write_node(node, scope)

    def _write_attribute(self, node: ast.Attribute, scope: _Scope) -> None:
        self.attributes.add(node.attr)
        self._write_dotted(node, scope)

    def _write_dotted(self, node: ast.Attribute, scope: _Scope) -> None:
        self._see(node.attr)
        if node.attr == "stderr" and node.ctx.__class__ is ast.Store:
            raise _SeesText  # the traceback goes where the program says
        value = node.value
        if value.__class__ is ast.Name and scope.kind != _CLASS:
            name: str = value.id  # type: ignore[attr-defined]
            if node.attr not in _OF_CACHES:
                scope.dotted.add(name)
            self.out.append((scope, name))
        else:
            self._write(value, scope)
        self.out.append("." + node.attr)

    def _write_compare(self, node: ast.Compare, scope: _Scope) -> None:
        self.out.append("compare")
        for value in (node.left, *node.comparators):
            if isinstance(value, ast.Call) and _called(value.func) == "type":
                self.bare_types -= 1  # `type(x) is int` shows no name
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
        func = node.func
        name = _called(func)
        if func.__class__ is ast.Attribute:
            self._write_dotted(func, scope)  # type: ignore[arg-type]
        elif func.__class__ is ast.Lambda:
            self._write_lambda(func, scope, "")  # type: ignore[arg-type]
        elif func.__class__ is ast.Subscript:
            self.out.append("[")
            self._write_borrowed(func.value, scope)  # type: ignore[attr-defined]
            self._write(func.slice, scope)  # type: ignore[attr-defined]
        else:
            self._write_borrowed(func, scope)
            self.called.add(name)
        if name in _SPECIAL_CALLS:
            self._see_call(name, node)
        borrows = name in _BORROWERS
        for arg in node.args:
            if borrows:
                self._write_lent(name, arg, scope)
            else:
                self._write(arg, scope)
        self._write_keywords(node.keywords, scope, name if borrows else None)

    def _write_lent(self, borrower: str, node: ast.expr, scope: _Scope) -> None:
        if isinstance(node, ast.Lambda):
            self._write_lambda(node, scope, borrower)
        elif isinstance(node, ast.Name) and scope.kind != _CLASS:
            self.lent.append((borrower, scope, node.id))
            self.out.append((scope, node.id))
        else:
            self._write(node, scope)

    def _write_keywords(
        self, keywords: list[ast.keyword], scope: _Scope, borrower: str | None = None
    ) -> None:
        for word in keywords:
            if word.arg is None or word.arg in _KEYWORD_CALLERS:
                self.any_keyword = True
            if word.arg is not None:
                self.keywords.add(word.arg)
            self.out.append("**" if word.arg is None else word.arg + "=")
            if borrower is not None:
                self._write_lent(borrower, word.value, scope)
            else:
                self._write(word.value, scope)
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
        if isinstance(target, ast.Name):
            odd = not node.simple or target.id in scope.globals or target.id in scope.nonlocals
            if odd:
                raise _SeesNames  # `(x): int`, or a syntax error
        if scope.kind == _CLASS:
            self._write_node(node, scope)
            return
        if node.value is None:
            # In a function this makes a local, and evaluates the target's parts.
            self.out.append("hint")
            self._write(target, scope)
        else:
            self.out.append(_KINDS[ast.Assign][0])
            self._write(target, scope)
            self.out.append("]")
            self._write(node.value, scope)
        self._write_hint(node.annotation, scope, evaluated=scope.kind == _MODULE)

    def _write_hint(self, node: ast.expr | None, scope: _Scope, *, evaluated: bool = True) -> None:
        if node is None:
            return
        start, values, dotted = len(self.out), scope.values, scope.dotted
        # Nobody reads hints, or all this is in vain: what they load does not go anywhere.
        scope.values, scope.dotted = scope.hinted, scope.hinted
        self.out.append(":")
        self._write(node, scope)
        scope.values, scope.dotted = values, dotted
        self.hints.append((start, len(self.out), node, self.statement, evaluated))

    def _give(self, node: ast.stmt) -> None:
        """Note what a statement of the module gives to the hints of the later ones."""
        if isinstance(node, ast.ClassDef) and not node.keywords:
            self.given[node.name] = ("class", self.statement)
        elif isinstance(node, ast.ImportFrom) and node.module in _HINT_MODULES:
            for alias in node.names:
                names = _ARITY if alias.name == "*" else (alias.name,)
                for name in names:
                    self.given[alias.asname or name] = (name, self.statement)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in _HINT_MODULES | {"numpy"}:
                    self.given[alias.asname or alias.name] = (alias.name, self.statement)

    def _drop_hints(self) -> None:
        for start, end, node, statement, evaluated in reversed(self.hints):
            if evaluated and not self.future_hints:
                idle = self._is_idle_hint(node, statement)
            else:
                idle = all(part.__class__ in _HINT_PARTS for part in ast.walk(node))
            if idle:
                del self.out[start:end]

    def _is_idle_hint(self, node: ast.expr, statement: int) -> bool:
        """Whether to evaluate it is sure to do nothing."""
        if isinstance(node, ast.Constant):
            return node.value is None or isinstance(node.value, str)
        return self._is_type(node, statement) or self._hint_name(node, statement) in _SPECIAL_HINTS

    def _is_type(self, node: ast.expr, statement: int) -> bool:
        """Whether it evaluates to something that other hints may hold."""
        if isinstance(node, ast.Constant):
            text = node.value
            return text is None or (
                isinstance(text, str) and text.isidentifier() and not keyword.iskeyword(text)
            )
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            sides = (node.left, node.right)
            return all(self._is_type(side, statement) for side in sides) and not any(
                isinstance(side, ast.Constant) and (side.value is not None or side is node.left)
                for side in sides
            )
        if isinstance(node, ast.Subscript):
            return self._is_generic(self._hint_name(node.value, statement), node.slice, statement)
        name = self._hint_name(node, statement)
        return name is not None and name not in _SPECIAL_HINTS

    def _is_generic(self, name: str | None, index: ast.expr, statement: int) -> bool:
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        count = _ARITY.get(name or "", 0)
        if not parts or count not in (len(parts), _ANY):
            return False
        if name == "Callable" and isinstance(parts[0], ast.List):
            parts = [*parts[0].elts, parts[1]]
        elif name == "Callable":
            parts = parts[1:] if _is_ellipsis(parts[0]) else parts
        elif name in ("tuple", "Tuple") and len(parts) == 2 and _is_ellipsis(parts[1]):
            parts = parts[:1]
        return all(self._is_type(part, statement) for part in parts)

    def _hint_name(self, node: ast.expr, statement: int) -> str | None:
        """Return the known type that a name stands for, if it does so surely."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = self._hint_name(node.value, statement)
            known = module in _HINT_MODULES and node.attr in _ARITY
            return node.attr if known or (module, node.attr) == ("numpy", "ndarray") else None
        if not isinstance(node, ast.Name):
            return None
        bound = self.bindings.get(node.id, 0)
        if node.id in self.given and bound <= 1:
            name, since = self.given[node.id]
            known = name == "class" or name in _ARITY or name in _HINT_MODULES or name == "numpy"
            return name if known and since < statement else None
        return node.id if node.id in _BUILTIN_TYPES and not bound else None

    # Then it is judged: who looks, and at what?

    def _see_module(self, name: str) -> None:
        top = name.partition(".")[0]
        self._see(top)
        if top not in _MODULES:
            raise _SeesNames
        for part in name.split("."):
            self._see(part)

    def _see(self, word: str) -> None:
        """Look at an attribute, or at something that is imported."""
        if word in _EYES:
            if word in _SEES_TEXT:
                raise _SeesText
            if word in _LOOKS:
                raise _SeesNames
            if word in _KEYWORD_CALLERS:
                self.any_keyword = True
            if word in _SHOWS_DEFINITIONS:
                self.shows_definitions = True
        if word.startswith("__"):
            self._see_dunder(word)

    def _see_dunder(self, word: str) -> None:
        if word in _SEES_TEXT:
            raise _SeesText
        if not word.strip("_"):
            return
        if not (word.startswith("__") and word.endswith("__")):
            self.mangled = True
        elif word[2:-2] not in _PLAIN_DUNDERS:
            raise _SeesNames
        elif word in _SHOWS_DEFINITIONS:
            self.shows_definitions = True

    def _see_call(self, name: str, node: ast.Call) -> None:
        if name == "print":
            self.bare_fstrings -= sum(arg.__class__ is ast.JoinedStr for arg in node.args)
        elif name == "type":
            self.bare_types += 1
        else:
            words = node.args[1:2] if name == "getattr" else node.args
            for word in words:
                if not (isinstance(word, ast.Constant) and isinstance(word.value, str)):
                    raise _SeesNames
                for part in word.value.split("."):
                    self.attributes.add(part)
                    self._see(part)

    def _look(self) -> None:
        """Raise where the program looks at more than a form may hide."""
        for occurrence in self.out:
            if occurrence.__class__ is tuple:
                scope, name = occurrence
                if name in _BUILTIN_EYES:
                    self._look_at(scope, name)  # type: ignore[arg-type]
                elif name.startswith("__"):  # type: ignore[union-attr]
                    if name in _SEES_TEXT:
                        raise _SeesText
                    if not _is_dunder(name):  # type: ignore[arg-type]
                        raise _SeesNames  # in a class it would be another name
        if any(name in scope.bound for scope, name in self.walruses):
            raise _SeesNames
        for scope in self.scopes:
            if not scope.values.isdisjoint(_GETTERS):
                raise _SeesNames
        touched = self._variables("values", "dotted")
        for kind, scope, name in self.caught:
            if (scope.owner(name), name) in touched and not self._is_nameless(kind):
                raise _SeesNames

    def _look_at(self, scope: _Scope, name: str) -> None:
        owner = scope.owner(name)
        if owner is not self.module and not (owner.kind == _CLASS and name in owner.values):
            return
        if name in _SEES_NAMES:
            raise _SeesNames
        if name == "type":
            self.shows_definitions |= self.bare_types > 0 or name in scope.values
        elif name in _SHOWS_DEFINITIONS:
            self.shows_definitions = True
        else:
            self.makes_text = True

    def _is_nameless(self, kind: ast.expr) -> bool:
        """Whether the texts of such errors name no variable; the program's own say what it says."""
        if isinstance(kind, ast.Tuple):
            return all(map(self._is_nameless, kind.elts))
        if not isinstance(kind, ast.Name):
            return False
        bound = self.bindings.get(kind.id, 0)
        own = any(node.name == kind.id for node, _ in self.classes)
        return (kind.id in _NAMELESS_ERRORS and not bound) or (own and bound == 1)

    def _variables(self, *uses: str) -> set[_Variable]:
        return {
            (scope.owner(name), name)
            for scope in self.scopes
            for use in uses
            for name in getattr(scope, use)
        }

    def _is_trusted(self, name: str) -> bool:
        """Whether it is the builtin or the library's, as no one else has bound the name."""
        return self.bindings.get(name, 0) == self.imported.get(name, 0)

    # Last, it is spelled.

    def _pinned(self) -> set[_Variable]:
        """Return the variables that keep their names."""
        self.makes_text |= self.bare_fstrings > 0
        lost = {
            (scope.owner(name), name)
            for borrower, scope, name in self.lent
            if not self._is_trusted(borrower)
        }
        escaped = self._variables("values") | lost
        touched = escaped | self._variables("dotted")
        pinned: set[_Variable] = set()
        for function in self.functions:
            pinned |= self._pinned_by_function(function, touched)
        for node, home in self.classes:
            variable = (home.owner(node.name), node.name)
            if not (variable[0] is self.module and self._is_only_made(node, variable, escaped)):
                pinned.add(variable)
        # What a class body binds, it may first load from the module.
        for scope in self.scopes:
            if scope.kind == _CLASS:
                loaded = scope.values | scope.hinted
                pinned |= {(self.module, name) for name in scope.bound & loaded}
        return pinned

    def _pinned_by_function(self, function: _Function, touched: set[_Variable]) -> set[_Variable]:
        node, inner = function.node, function.inner
        pinned: set[_Variable] = set()
        if not isinstance(node, ast.Lambda):
            variable = (function.home.owner(node.name), node.name)
            if variable in touched or self._shows_name(node, inner):
                pinned.add(variable)
        callable_by_name = {arg.arg for arg in (*node.args.args, *node.args.kwonlyargs)}
        if self._is_hidden(function, touched) and not self.any_keyword:
            callable_by_name &= self.keywords
        return pinned | {(inner, name) for name in callable_by_name}

    def _shows_name(self, node: _Definition, inner: _Scope) -> bool:
        """Whether a function's name can be seen though it is only called."""
        generator = inner.yields or isinstance(node, ast.AsyncFunctionDef)
        return (
            self.shows_definitions
            or inner.holds_class
            or node.name not in self.called | {name for _, _, name in self.lent}
            or not self._are_trusted(node.decorator_list, _WRAPPERS)
            or (generator and self.makes_text)
        )

    def _is_hidden(self, function: _Function, touched: set[_Variable]) -> bool:
        """Whether all calls of it are in sight."""
        node, home = function.node, function.home
        if isinstance(node, ast.Lambda):
            if self.level == "stdin":
                return True
            if function.borrower is not None:
                return self._is_trusted(function.borrower)
            name = function.holder
        else:
            name = node.name
            wrappers = _METHOD_WRAPPERS if home.kind == _CLASS else _WRAPPERS
            if not self._are_trusted(node.decorator_list, wrappers):
                return False
        if name is None:
            return False
        owner = home.owner(name)
        public = self.level == "unit" and not _is_private(name)
        if owner.kind == _CLASS:
            return not public and name not in self.attributes and owner.is_plain
        return (owner, name) not in touched and not (owner is self.module and public)

    def _are_trusted(self, decorators: list[ast.expr], known: frozenset[str]) -> bool:
        names = [_called(node.func if isinstance(node, ast.Call) else node) for node in decorators]
        return all(name in known and self._is_trusted(name) for name in names)

    def _is_only_made(
        self, node: ast.ClassDef, variable: _Variable, escaped: set[_Variable]
    ) -> bool:
        """Whether the program does no more than make instances, whose class it never shows."""
        has_text = any(getattr(part, "name", None) == "__repr__" for part in node.body)
        return (
            variable not in escaped
            and node.name in self.called
            and not (node.bases or node.keywords or node.decorator_list)
            and not (self.shows_definitions or self.mangled)
            and (has_text or not self.makes_text)
        )

    def _spelled(self, pinned: set[_Variable]) -> str:
        renames_module = self.level == "stdin" and not self.star
        spelled: dict[_Variable, str] = {}
        numbers: dict[_Variable, str] = {}
        words: list[str] = []
        for item in self.out:
            if isinstance(item, str):
                words.append(item)
                continue
            word = spelled.get(item)
            if word is None:
                scope, name = item
                variable = owner, _ = scope.owner(name), name
                if owner is self.module:
                    kept = not renames_module or name not in owner.bound or name in _BUILTINS
                else:
                    kept = owner.kind == _CLASS
                if kept or variable in pinned or name.startswith("__"):
                    word = name
                else:
                    word = numbers.setdefault(variable, f"${len(numbers)}")
                spelled[item] = word
            words.append(word)
        return "\n".join(words)


# The tables of the tree

_DUNDER = re.compile(r"\w*__\w*")
_SHOWN = re.compile(r"%[-#0 +\d.]*[ra]|![ra]|\.__")
_OF_CACHES = _words("cache_clear cache_info")
_GETTERS = _words("getattr attrgetter methodcaller")
_SPECIAL_CALLS = _GETTERS | {"print", "type"}
_EYES = _SEES_TEXT | _LOOKS | _KEYWORD_CALLERS | _SHOWS_DEFINITIONS
_MAKES_TEXT = _words("str format StringIO")
_BUILTIN_EYES = _SEES_NAMES | _MAKES_TEXT | {"type", "repr", "ascii"}

_BLOCKS = ("body", "orelse", "finalbody")


def _is_idle(node: ast.stmt) -> bool:
    """Whether it is `pass`, a docstring, or a constant by itself."""
    kind = node.__class__
    return kind is ast.Pass or (kind is ast.Expr and node.value.__class__ is ast.Constant)  # type: ignore[attr-defined]


def _is_docstring(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def _called(func: ast.expr) -> str:
    """Return the last name of what is called, or nothing."""
    if func.__class__ is ast.Name:
        return func.id  # type: ignore[attr-defined, no-any-return]
    return func.attr if isinstance(func, ast.Attribute) else ""


# Hints

_ANY = -1  # any number of parameters

_BUILTIN_TYPES = _words("""
    int str float bool bytes bytearray complex object list dict set tuple frozenset type
""")

#: Modules that give names to hints.
_HINT_MODULES = _words("typing collections.abc collections")

#: How many parameters a type takes: 0 where it is not generic.
_ARITY = {
    **dict.fromkeys(_BUILTIN_TYPES, 0),
    **dict.fromkeys(_words("Any Hashable Sized NoReturn Text AnyStr"), 0),
    **dict.fromkeys(
        _words("""
            list set frozenset type List Set FrozenSet Type Optional Iterable Iterator Sequence
            MutableSequence Collection Container Reversible Deque deque AbstractSet MutableSet
            Counter KeysView ValuesView
        """),
        1,
    ),
    **dict.fromkeys(
        _words("""
            dict Dict Mapping MutableMapping DefaultDict defaultdict OrderedDict ItemsView Callable
        """),
        2,
    ),
    "Generator": 3,
    **dict.fromkeys(_words("tuple Tuple Union"), _ANY),
}

#: These mean nothing alone, as a parameter of another or beside `|`.
_SPECIAL_HINTS = _words("Optional Union NoReturn typing collections collections.abc numpy")

#: What a hint that is not evaluated may be made of, so as to change nothing for the compiler.
_HINT_PARTS = frozenset(
    {ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.Tuple, ast.List, ast.BinOp}
    | {ast.BitOr, ast.Load}
)


# The nodes of the tree

_Writer = Callable[[_Form, Any, _Scope], None]

_WRITERS: dict[type[Any], _Writer] = {
    ast.Name: _Form._write_name,
    ast.Constant: _Form._write_constant,
    ast.Attribute: _Form._write_attribute,
    ast.Call: _Form._write_call,
    ast.Assign: _Form._write_assign,
    ast.AnnAssign: _Form._write_hinted_assign,
    ast.NamedExpr: _Form._write_walrus,
    ast.Compare: _Form._write_compare,
    ast.JoinedStr: _Form._write_fstring,
    ast.FormattedValue: _Form._write_formatted,
    ast.Lambda: _Form._write_lambda,
    ast.FunctionDef: _Form._write_function,
    ast.AsyncFunctionDef: _Form._write_function,
    ast.ClassDef: _Form._write_class,
    ast.Yield: _Form._write_yield,
    ast.YieldFrom: _Form._write_yield,
    **dict.fromkeys(
        (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp), _Form._write_comprehension
    ),
    ast.Global: _Form._write_declaration,
    ast.Nonlocal: _Form._write_declaration,
    ast.Import: _Form._write_import,
    ast.ImportFrom: _Form._write_import_from,
    ast.ExceptHandler: _Form._write_handler,
    ast.Raise: _Form._write_raise,
    **dict.fromkeys((ast.MatchAs, ast.MatchStar, ast.MatchMapping), _Form._write_capture),
    ast.MatchClass: _Form._write_match_class,
    **dict.fromkeys(
        (
            *(ast.Expr, ast.Return, ast.Delete, ast.AugAssign, ast.For, ast.AsyncFor, ast.While),
            *(ast.If, ast.With, ast.AsyncWith, ast.withitem, ast.Match, ast.match_case, ast.Try),
            *(ast.TryStar, ast.Assert, ast.Break, ast.Continue, ast.Pass),
            *(ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Dict, ast.Set, ast.Await),
            *(ast.Subscript, ast.Starred, ast.List, ast.Tuple, ast.Slice),
            *(ast.MatchValue, ast.MatchSingleton, ast.MatchSequence, ast.MatchOr),
            *ast.operator.__subclasses__(),
            *ast.unaryop.__subclasses__(),
            *ast.boolop.__subclasses__(),
            *ast.cmpop.__subclasses__(),
        ),
        _Form._write_node,
    ),
}

#: The word for each kind, which is no name, and its fields; variables are written apart.
_KINDS = {
    kind: (
        kind.__name__ + "(",
        tuple(
            field
            for field in kind._fields
            if field not in ("ctx", "type_comment", "kind", "simple")
            and not (kind in (ast.MatchAs, ast.MatchStar) and field == "name")
            and not (kind is ast.MatchMapping and field == "rest")
        ),
    )
    for kind in _WRITERS
}
