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
from collections.abc import Iterable

from . import eyes
from .hints import is_plain
from .scopes import (
    CLASS,
    COMPREHENSION,
    FUNCTION,
    Definition,
    Function,
    Scope,
    Variable,
    functions_around,
)
from .tree import Level, SeesNames, SeesText, Tree, last_name

#: Raised with every change of the form; part of the key, so that no old verdict answers a new form.
NORMAL_FORM_VERSION = 1

#: Longer sources are their own key. No solution is as long; and CPython's parser takes the square
#: of the fields of an f-string: about a second for this much.
LARGEST = 100_000  # characters


def normal_form(source: str, *, level: Level) -> str:
    """Return the key of a program; never raises, and takes at most seconds, mostly 0.1 ms.

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
                return "form", _Form(Tree(tree, level)).key()
            except SeesNames:
                if not eyes.TEXT_ANYWHERE.search(source):
                    return "tree", ast.dump(tree)
    except (SeesText, SyntaxError, ValueError, RecursionError, MemoryError):
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


class _Form:
    """A program's tree: judged, then spelled."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree

    def key(self) -> str:
        self._judge()
        self._omit()
        return self._spell(self._pinned())

    # Who looks?

    def _judge(self) -> None:
        """Raise where the program looks at more than a form leaves in sight."""
        for occurrence in set(self.tree.out):
            if isinstance(occurrence, tuple):
                self._look(*occurrence)
        for module in self.tree.modules:
            if not self.tree.looks.isdisjoint(eyes.TEXT_OF_MODULES.get(module, ())):
                raise SeesText
            if not self.tree.looks.isdisjoint(eyes.NAMES_OF_MODULES.get(module, ())):
                raise SeesNames
        if self.tree.logs_lines and "logging" in self.tree.modules:
            raise SeesText
        if any(name in scope.bound for scope, name in self.tree.walruses):
            raise SeesNames
        if not eyes.GETTERS.isdisjoint(self.tree.attributes):
            raise SeesNames
        for scope in self.tree.scopes:
            if not eyes.GETTERS.isdisjoint(scope.values | scope.dotted):
                raise SeesNames
        touched = self._variables("values", "dotted") if self.tree.caught else set()
        for kind, scope, name in self.tree.caught:
            if (scope.owner(name), name) in touched and not self._are_nameless(kind):
                raise SeesNames

    def _look(self, scope: Scope, name: str) -> None:
        if not name.startswith("__") and name not in _BUILTIN_EYES:
            return
        owner = scope.owner(name)
        # What a class binds and does not load is its own attribute, say a method `__repr__`.
        is_looked_up = owner is self.tree.module or (owner.kind == CLASS and name in owner.values)
        if name.startswith("__"):
            if not name.endswith("__"):
                self.tree.mangles = True
                if owner.kind != CLASS:
                    raise SeesNames  # in a class this is another name
            elif name != "__name__" and is_looked_up:  # that of the module is no secret
                self.tree.see(name)
        elif is_looked_up:
            if name in eyes.NAMES:
                raise SeesNames
            if name == "type":
                self.tree.shows_definitions |= self.tree.open_types > 0 or name in scope.values
            else:
                self.tree.shows_definitions |= name in eyes.DEFINITIONS
                # Not in a hint alone.
                used = name in scope.values or name in self.tree.called
                self.tree.makes_text |= used and name in eyes.MAKES_TEXT

    def _are_nameless(self, kind: ast.expr) -> bool:
        """Whether the texts of such errors name nothing; those of the program's own are its own."""
        if isinstance(kind, ast.Tuple):
            return all(map(self._are_nameless, kind.elts))
        if not isinstance(kind, ast.Name):
            return False
        bound = self.tree.bindings.get(kind.id, 0)
        own = any(node.name == kind.id for node, _ in self.tree.classes)
        return (kind.id in eyes.NAMELESS_ERRORS and not bound) or (own and bound == 1)

    def _variables(self, *uses: str) -> set[Variable]:
        return {
            (scope.owner(name), name)
            for scope in self.tree.scopes
            for use in uses
            for name in getattr(scope, use)
        }

    def _is_trusted(self, name: str) -> bool:
        """Whether it is the builtin or the library's: nobody else has bound the name."""
        return self.tree.bindings.get(name, 0) == self.tree.imported.get(name, 0)

    def _are_trusted(self, decorators: Iterable[ast.expr], known: frozenset[str]) -> bool:
        for node in decorators:
            name = last_name(node.func if isinstance(node, ast.Call) else node)
            if name not in known or not self._is_trusted(name):
                return False
        return True

    def _pinned(self) -> set[Variable]:
        """Return the variables that keep their names."""
        self.tree.makes_text |= self.tree.open_fstrings > 0
        escaped = self._variables("values") | {
            (scope.owner(name), name)
            for borrower, scope, name in self.tree.lent
            if not self._is_trusted(borrower)
        }
        touched = escaped | self._variables("dotted")
        pinned: set[Variable] = set()
        for function in self.tree.functions:
            pinned.update(self._pinned_by(function, touched))
        for node, home in self.tree.classes:
            pinned.update(functions_around(home))  # a class within has their names in its own
            variable = (home.owner(node.name), node.name)
            if not self._is_only_made(node, variable, escaped):
                pinned.add(variable)
        # What the body of a class binds, it may before have loaded from the module.
        for scope in self.tree.scopes:
            if scope.kind == CLASS:
                loaded = scope.bound & (scope.values | scope.hinted)
                pinned.update((self.tree.module, name) for name in loaded)
        return pinned

    def _pinned_by(self, function: Function, touched: set[Variable]) -> Iterable[Variable]:
        node, home, inner = function.node, function.home, function.inner
        escapes = self._escapes(function, touched)
        if escapes and self.tree.makes_text:
            yield from functions_around(home)  # likewise
        if not isinstance(node, ast.Lambda) and (escapes or self._shows_name(node, inner)):
            yield home.owner(node.name), node.name
        hidden = self._is_hidden(function, escapes=escapes) and not self.tree.any_keyword
        for arg in node.args.args:
            if not hidden or arg.arg in self.tree.keywords:
                yield inner, arg.arg
        for arg in node.args.kwonlyargs:  # made to be called by keyword, and few
            yield inner, arg.arg

    def _escapes(self, function: Function, touched: set[Variable]) -> bool:
        """Whether a function is more than called."""
        node, home, name = function.node, function.home, function.holder
        if not isinstance(node, ast.Lambda):
            name = node.name
            wrappers = eyes.METHOD_WRAPPERS if home.kind == CLASS else eyes.WRAPPERS
            if not self._are_trusted(node.decorator_list, wrappers):
                return True
        elif function.borrower is not None:
            return not self._is_trusted(function.borrower)
        if name is None:
            return True
        owner = home.owner(name)
        if owner.kind == CLASS:
            return name in self.tree.attributes or not owner.is_plain
        return (owner, name) in touched

    def _shows_name(self, node: Definition, inner: Scope) -> bool:
        """Whether the name of a function can be seen though it is only called."""
        makes_objects = inner.yields or isinstance(node, ast.AsyncFunctionDef)
        return (
            self.tree.shows_definitions
            or node.name not in self.tree.called
            or (makes_objects and self.tree.makes_text)
        )

    def _is_hidden(self, function: Function, *, escapes: bool) -> bool:
        """Whether all calls of a function are in sight."""
        node, home = function.node, function.home
        if self.tree.level == "stdin":
            # A library that is given a lambda calls it by position, but for eyes.KEYWORDS.
            return isinstance(node, ast.Lambda) or not escapes
        if escapes:
            return False
        name = function.holder if isinstance(node, ast.Lambda) else node.name
        if name is None or home.owner(name).kind in (FUNCTION, COMPREHENSION):
            return True
        return name.startswith("_") and not name.startswith("__")

    def _is_only_made(self, node: ast.ClassDef, variable: Variable, escaped: set[Variable]) -> bool:
        """Whether a program does no more than make instances, whose class it never shows."""
        writes_itself = any(getattr(part, "name", None) == "__repr__" for part in node.body)
        return (
            variable[0] is self.tree.module
            and variable not in escaped
            and node.name in self.tree.called
            and not (node.bases or node.keywords or node.decorator_list)
            and not (self.tree.shows_definitions or self.tree.mangles)
            and (writes_itself or not self.tree.makes_text)
        )

    # It is spelled.

    def _omit(self) -> None:
        """Leave the docstrings and hints out of what is written that nobody reads."""
        unread = [*self.tree.unread]
        if not self.tree.shows_docstrings:
            unread += self.tree.docstrings
        for start, end, node, statement in self.tree.hinted:
            if self.tree.future_hints:
                idle = is_plain(node)
            else:
                idle = self.tree.hints.are_idle(node, statement, self.tree.bindings)
            if idle:
                unread.append((start, end))
        if not unread:
            return
        kept, done = [], 0
        for start, end in sorted(unread):
            kept += self.tree.out[done:start]
            done = end
        self.tree.out = kept + self.tree.out[done:]

    def _spell(self, pinned: set[Variable]) -> str:
        keeps_module = self.tree.level == "unit" or self.tree.any_name
        spelled: dict[Variable, str] = {}  # by occurrence
        numbers: dict[Variable, str] = {}  # by variable
        words: list[str] = []
        for item in self.tree.out:
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

    def _keeps(self, variable: Variable, keeps_module: bool) -> bool:
        owner, name = variable
        if owner is self.tree.module:
            unbound = name not in owner.bound
            return keeps_module or unbound or name in _BUILTINS or name.startswith("__")
        return owner.kind == CLASS or name.startswith("__")


_BUILTIN_EYES = eyes.NAMES | eyes.MAKES_TEXT | {"type", "repr", "ascii"}
_BUILTINS = frozenset(dir(builtins)) | eyes.words("copyright credits exit license quit")
