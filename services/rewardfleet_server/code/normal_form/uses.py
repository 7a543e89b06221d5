"""What a program uses, as its parts are written."""

import ast
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from . import allowed
from .hints import Hints
from .nodes import is_text, reads_zero
from .scopes import MODULE, Decorated, Function, Passed, Scope, Variable

Level = Literal["unit", "stdin"]

#: A name within text.
WORD = re.compile(r"[^\W\d]\w*")


class ReflectsSource(Exception):
    """The program may observe its names or lines: only its text is a safe key."""


@dataclass(frozen=True, slots=True)
class NamesOfTests:
    """What tests use of the programs that they test, besides public names."""

    attributes: frozenset[str]  #: attributes that only a program can have
    builtins: frozenset[str]  #: builtins, which must not be other objects of the program
    forbidden: frozenset[str]  #: names that the setup gives to the program and that are not allowed
    bound: frozenset[str]  #: variables, of which the program must have no other
    #: Classes that extend nothing. The program may have classes of these names.
    classes: frozenset[str]
    #: Imports. The program may import these names.
    imported: frozenset[str]


class Uses:
    """What a program uses, and its normal form with variables left open."""

    def __init__(self, level: Level) -> None:
        self.level = level
        self.is_test = False
        self.unknown_attributes: set[str] = set()  # of tests: that only a program can have
        self.module = Scope(MODULE, None)
        self.scopes = [self.module]
        #: Words and occurrences of variables. Every node begins with a word for its kind, which is
        #: no name, and every list has an end, so that no two trees are written alike.
        self.out: list[str | Variable] = []
        self.hints = Hints()
        self.statement = 0  # the number of the module's statement that is being written
        self.future_hints = False

        self.functions: list[Function] = []
        self.classes: list[tuple[ast.ClassDef, Scope]] = []
        self.classes_by_name: dict[str, list[ast.ClassDef]] = {}
        self.own_classes: dict[str, bool] = {}  # results of `is_own_class`
        self.caught: list[tuple[ast.expr, Scope, str]] = []
        self.exits: list[tuple[ast.FunctionDef, Scope]] = []  # methods that get errors
        self.callback_args: list[tuple[str, Scope, str]] = []
        self.passed: list[Passed] = []  # names that are arguments of functions of the program
        self.decorated: list[Decorated] = []  # functions, by functions of the program
        self.wrapped: list[tuple[Scope, str]] = []  # arguments of `wraps`
        self.returned: list[tuple[Scope, str]] = []  # names that functions return
        self.threads: list[Variable | None] = []  # what `Thread(target=)` is bound to, if anything
        self.forwarded: list[tuple[Scope, str]] = []  # `kwargs` of a function in `f(**kwargs)`
        self.holders: dict[int, str] = {}  # the names of lambdas, by the ids of their nodes
        self.consumed: dict[int, str] = {}  # who uses up a generator, by the ids of its node
        self.calls: list[tuple[Scope, str, str | None]] = []  # of names, and who uses up the result
        self.generators: list[tuple[Scope, str | None]] = []  # expressions, likewise

        self.bindings: dict[str, int] = {}  # how often a name is bound, in any scope
        self.imported: dict[str, int] = {}  # how often by `from module import name`
        self.modules: list[tuple[Scope, str, str]] = []  # imported, by name, and which
        self.star_modules: set[str] = set()
        self.attributes: set[str] = set()  # that are read, except those in `name_attributes`
        self.values: set[str] = set()  # attributes that are more than called
        self.own_attributes: set[str] = set()  # that the program itself sets
        self.name_attributes: set[tuple[Scope, str, str, str]] = set()  # `name.one.two`, or ""
        self.called_only: set[Variable] = set()  # builtins of this kind that are not called
        self.used_as_known: set[str] = set()  # names that must be those of builtins
        self.used_as_types: set[str] = set()  # names that must be those of classes
        self.closed: set[int] = set()  # ids of nodes that evaluate to the type of an object, unseen
        self.own_names: set[str] = set()  # that are bound before they are used
        self.deleted: set[str] = set()
        self.strings: list[str] = []
        self.uses_numpy = False
        self.makes_fields = False  # strings may name attributes
        self.makes_dataclasses = False
        self.keywords: set[str] = set()
        self.delegates = False  # with `yield from`
        self.any_keyword = False  # a call may have keywords that are not written
        self.any_name = False  # any name of the module may be looked up
        self.shows_errors = False  # the texts of errors, which may have names
        self.looked_up: set[str] = set()  # names of the module that texts look up

    @cached_property
    def string_words(self) -> set[str]:
        """The words of all strings, which may name attributes."""
        return {word for text in self.strings for word in WORD.findall(text)}

    def scope(self, kind: int, parent: Scope) -> Scope:
        """Return a new scope."""
        scope = Scope(kind, parent)
        self.scopes.append(scope)
        return scope

    def bind(self, scope: Scope, name: str) -> None:
        """Note that a block binds a name."""
        self.bindings[name] = self.bindings.get(name, 0) + 1
        (self.module if name in scope.globals else scope).bound.add(name)

    def note_own(self, target: ast.expr) -> None:
        """Note a variable that is called like a builtin, and nowhere refers to the builtin."""
        name = target.id if isinstance(target, ast.Name) else ""
        if name in allowed.OTHER_BUILTINS and self.bindings[name] == 1:
            named = (item for item in self.out if item.__class__ is tuple and item[1] == name)
            if len(list(named)) == 1:
                self.own_names.add(name)

    def check_call(self, name: str, call: ast.Call) -> None:
        """Check a call that opens a file, makes a class, or takes an attribute by a string."""
        if name == "open":
            if not reads_zero(call):
                raise ReflectsSource
            return
        if name == "type":
            self.used_as_known.add(name)
            if id(call) not in self.closed:
                raise ReflectsSource
            return
        word = call.args[1] if len(call.args) > 1 else None
        if not is_text(word):
            raise ReflectsSource
        attribute = word.value  # type: ignore[union-attr]
        if attribute == "format" or isinstance(call.args[0], ast.Starred):
            raise ReflectsSource
        self.values.add(attribute)  # not of a module, which is no value
        (self.own_attributes if name == "setattr" else self.attributes).add(attribute)
