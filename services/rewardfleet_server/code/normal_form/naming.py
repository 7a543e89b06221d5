"""Which variables keep their names in a normal form, and the normal form's text."""

import ast
from collections.abc import Iterable

from . import allowed
from .introspection import are_known, is_known, is_own_class
from .nodes import last_name
from .scopes import CLASS, COMPREHENSION, FUNCTION, Function, Scope, Variable, functions_around
from .uses import Uses


class Naming:
    """The names in a program of which `introspection.check` has shown that it cannot see them.

    Names that text can contain are kept: those of classes, and of functions that are values.
    """

    def __init__(self, program: Uses) -> None:
        self.program = program
        self.hides_targets: bool | None = None  # the result of `_hides_targets`
        #: Libraries call functions by keywords that are not written, if they are given such.
        self.any_keyword = program.any_keyword or "keywords" in program.values  # of a partial
        self.escaped = self._variables("loaded") | {
            (scope.owner(name), name)
            for caller, scope, name in program.callback_args
            if not self._is_known_caller(caller)
        }
        self.star_names = set[str]().union(
            *(allowed.STAR_NAMES[module] for module in program.star_modules)
        )
        self.plain: dict[str, bool] = {}  # classes, by name
        self.touched = self.escaped | self._variables("attribute_bases")
        #: Variables of which a call may show its result, if that is a generator.
        self.shown = {
            (scope.owner(name), name)
            for scope, name, consumer in program.calls
            if consumer is None or (consumer and not is_known(program, consumer))
        } | {(scope.owner(name), name) for _, scope, name in program.callback_args}
        self.shown |= {(each.scope.owner(each.name), each.name) for each in program.passed}
        self.decorated = {id(each.node) for each in program.decorated}

    def text(self) -> str:
        """Return the normal form."""
        self._omit_hints()
        program = self.program
        if program.shows_errors:
            return "\n".join(each if isinstance(each, str) else each[1] for each in program.out)
        kept = self._kept()
        keeps_module = program.level == "unit" or program.any_name
        spelled: dict[Variable, str] = {}  # by occurrence
        numbers: dict[Variable, str] = {}  # by variable
        words: list[str] = []
        for item in program.out:
            if isinstance(item, str):
                words.append(item)
                continue
            word = spelled.get(item)
            if word is None:
                scope, word = item
                variable = (scope.owner(word), word)
                if not (self._is_public(variable, keeps_module) or variable in kept):
                    word = numbers.setdefault(variable, f"${len(numbers)}")
                spelled[item] = word
            words.append(word)
        return "\n".join(words)

    def _omit_hints(self) -> None:
        """Leave out the hints that do nothing when they are evaluated."""
        out = self.program.out
        rest, done = [], 0
        for start, end in self.program.hints.idle:
            rest += out[done:start]
            done = end
        self.program.out = rest + out[done:]

    def _is_public(self, variable: Variable, keeps_module: bool) -> bool:
        owner, name = variable
        if owner is self.program.module:
            unbound = name not in owner.bound
            is_builtin = name in allowed.ALL_BUILTINS
            is_imported = name in self.star_names
            return keeps_module or unbound or is_builtin or is_imported or name.startswith("__")
        return owner.kind == CLASS or name.startswith("__")

    def _is_known_caller(self, caller: str) -> bool:
        """Return whether what gets a function is of a library, and shows its name to no one."""
        program = self.program
        if caller != "Thread" or not is_known(program, caller):
            return is_known(program, caller)
        if self.hides_targets is None:
            self.hides_targets = self._hides_targets()
        return self.hides_targets

    def _hides_targets(self) -> bool:
        """Return whether the program's threads show the names of their targets to no one."""
        program = self.program
        used = set().union(*(scope.loaded | scope.attribute_bases for scope in program.scopes))
        methods = allowed.OF_THREADS | {"Thread", "run"}
        if program.level == "unit" or not methods.isdisjoint(
            used & {"Thread"} | program.values | program.own_attributes
        ):
            return False
        if any(first == "Thread" and second for _, _, first, second in program.name_attributes):
            return False
        threads = {(scope.owner(name), name) for scope, name in filter(None, program.threads)}
        return threads.isdisjoint(self._variables("loaded")) and not any(
            (scope.owner(name), name) in threads and (first not in allowed.OF_THREADS or second)
            for scope, name, first, second in program.name_attributes
        )

    def _variables(self, uses: str) -> set[Variable]:
        return {
            (scope.owner(name), name)
            for scope in self.program.scopes
            for name in getattr(scope, uses)
        }

    def _kept(self) -> set[Variable]:
        program = self.program
        kept: set[Variable] = {(program.module, name) for name in program.looked_up}
        for function in program.functions:
            kept.update(self._kept_by(function))
        for node, home in program.classes:
            kept.add((home.owner(node.name), node.name))
            kept.update(functions_around(home))  # a class within has their names in its own
        for scope, consumer in program.generators:
            if consumer is None or (consumer and not is_known(program, consumer)):
                kept.update(functions_around(scope))
        # What the body of a class binds, it may have loaded from the module before.
        for scope in program.scopes:
            if scope.kind == CLASS:
                loaded = scope.bound & (scope.loaded | scope.annotated)
                kept.update((program.module, name) for name in loaded)
        return kept

    def _kept_by(self, function: Function) -> Iterable[Variable]:
        node, home, inner = function.node, function.home, function.inner
        escapes = self._escapes(function)
        name = function.holder if isinstance(node, ast.Lambda) else node.name
        is_shown = name is None or home.kind == CLASS or (home.owner(name), name) in self.shown
        is_shown |= isinstance(node, ast.Lambda)  # perhaps in a dictionary
        if escapes or (inner.yields and is_shown):
            yield from functions_around(home)
            if not isinstance(node, ast.Lambda):
                yield home.owner(node.name), node.name
        hidden = self._is_hidden(function, escapes=escapes) and not self.any_keyword
        for arg in node.args.args:
            if not hidden or arg.arg in self.program.keywords:
                yield inner, arg.arg
        for arg in node.args.kwonlyargs:  # made to be called by keyword, and few
            yield inner, arg.arg

    def _escapes(self, function: Function) -> bool:
        """Return whether a function is more than called."""
        node, home, name = function.node, function.home, function.holder
        if not isinstance(node, ast.Lambda):
            name = node.name
            wrappers = allowed.METHOD_WRAPPERS if home.kind == CLASS else allowed.WRAPPERS
            decorators = [] if id(node) in self.decorated else node.decorator_list
            if not are_known(self.program, decorators, wrappers):
                return True
        elif function.caller is not None:
            return not self._is_known_caller(function.caller)
        if name is None:
            return True
        owner = home.owner(name)
        if owner.kind == CLASS:
            return self._is_open_method(owner, name)
        return (owner, name) in self.touched

    def _is_open_method(self, owner: Scope, name: str) -> bool:
        """Return whether a library may call a method, or its object is a value."""
        # numpy.sum(x) calls x.sum by keyword.
        if name in self.program.values or owner.definition is None or self.program.uses_numpy:
            return True
        home, class_name = owner.definition
        is_value = (home.owner(class_name), class_name) in self.escaped
        return is_value or not (owner.is_plain or self._is_plain(class_name))

    def _is_plain(self, name: str) -> bool:
        """Return whether no library can call the methods of a class of the program."""
        is_plain = self.plain.get(name)
        if is_plain is None:
            is_plain = self.plain[name] = all(
                all(map(self._is_plain_keyword, node.keywords))
                and are_known(self.program, node.decorator_list, allowed.CLASS_WRAPPERS)
                and all(map(self._is_plain_base, node.bases))
                for node in self.program.classes_by_name[name]
            )
        return is_plain

    def _is_plain_base(self, node: ast.expr) -> bool:
        name = last_name(node)
        is_known_base = name in allowed.PLAIN_BASES and is_known(self.program, name)
        return is_known_base or is_own_class(self.program, name)

    def _is_plain_keyword(self, node: ast.keyword) -> bool:
        """Return whether it is `metaclass=ABCMeta`, as in a class that extends `ABC`."""
        name = last_name(node.value)
        return node.arg == "metaclass" and name == "ABCMeta" and is_known(self.program, name)

    def _is_hidden(self, function: Function, *, escapes: bool) -> bool:
        """Return whether all keywords in calls of a function are written in the program."""
        if self.program.level == "stdin" and not self.program.uses_numpy:
            return True  # of libraries, none but numpy calls functions by keywords of its own
        if escapes:
            return False
        node, home = function.node, function.home
        name = function.holder if isinstance(node, ast.Lambda) else node.name
        if self.program.level == "stdin" or name is None:
            return True
        if home.owner(name).kind in (FUNCTION, COMPREHENSION):
            return True
        return name.startswith("_") and not name.startswith("__")
