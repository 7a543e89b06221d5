"""Functions of a program that other functions of it get, and only call."""

import ast
from collections import Counter

from . import allowed
from .introspection import is_known
from .nodes import last_name
from .scopes import CLASS, Decorated, Function, Passed, Scope, Variable
from .uses import ReflectsSource, Uses

#: How often functions may pass on what others pass on. Limits the time.
_MAX_ROUNDS = 30


def resolve(program: Uses) -> None:
    """Note as loaded what functions get and return, unless they are sure only to call it.

    A function `check(candidate)` that only calls its parameter shows its name to no one. Nor does a
    decorator that only calls its parameter and returns a function of its own, if what it decorates
    is only called. What remains in `passed` and `decorated` is of this kind.

    Raises:
        ReflectsSource: It takes too long to find out.
    """
    _resolve_keywords(program)
    _Resolver(program).resolve()


def variable(scope: Scope, name: str) -> Variable:
    """Return the variable that a name refers to."""
    return scope.owner(name), name


def _resolve_keywords(program: Uses) -> None:
    """Find where a function passes on its own keywords, which a call of it has written."""
    owners = {
        (function.inner, function.node.args.kwarg.arg)
        for function in program.functions
        if program.forwarded and function.node.args.kwarg is not None
    }
    counts = Counter(name for _, name in owners)
    loaded = {variable(scope, name) for scope in program.scopes for name in scope.loaded}
    loaded.update(variable(scope, name) for scope, name in program.returned + program.wrapped)
    loaded.update(variable(each.scope, each.name) for each in program.passed)
    loaded.update(variable(scope, name) for _, scope, name in program.callback_args)
    changed = {
        variable(scope, name)
        for scope, name, first, _ in program.name_attributes
        if program.forwarded and first not in allowed.OF_KEYWORDS
    }
    for scope, name in program.forwarded:
        kwargs = variable(scope, name)
        if (
            program.level == "unit"  # the tests may call it with any keyword
            or program.uses_numpy  # likewise
            or kwargs not in owners - loaded - changed
            or program.bindings[name] != counts[name]
        ):
            program.any_keyword = True
            scope.loaded.add(name)


class _Resolver:
    def __init__(self, program: Uses) -> None:
        self.program = program
        self.functions: dict[Variable, Function] = {}
        counts = Counter[str]()
        for function in program.functions:
            if isinstance(function.node, ast.FunctionDef):
                name = function.node.name
                counts[name] += 1
                if function.home.kind != CLASS:
                    self.functions[variable(function.home, name)] = function
        places = Counter(name for _, name in self.functions)
        self.functions = {
            (owner, name): function
            for (owner, name), function in self.functions.items()
            if program.bindings[name] == counts[name] == places[name]
        }
        self.called = {variable(scope, name) for scope, name, _ in program.calls}

    def resolve(self) -> None:
        program = self.program
        passed, program.passed = program.passed, []
        for each in passed:
            if self._target(each) is None or variable(each.scope, each.name) not in self.functions:
                each.scope.loaded.add(each.name)
            else:
                program.passed.append(each)
        for _ in range(_MAX_ROUNDS):
            if not self._find_loaded():
                break
        else:
            raise ReflectsSource
        results, parameters = self._of_decorators()
        for scope, name in program.returned:
            if (scope, name) not in results:
                scope.loaded.add(name)
        for scope, name in program.wrapped:
            if variable(scope, name) not in parameters:
                scope.loaded.add(name)

    def _target(self, passed: Passed) -> Variable | None:
        """Return the parameter that gets an argument."""
        function = self.functions.get(variable(passed.scope, passed.callee))
        if function is None or not isinstance(function.node, ast.FunctionDef):
            return None
        place, args = passed.place, function.node.args.posonlyargs
        if place >= len(args):
            place, args = place - len(args), function.node.args.args
        if function.node.decorator_list or place >= len(args):
            return None
        return function.inner, args[place].arg

    def _find_loaded(self) -> bool:
        """Note what is loaded as more is; return whether there was any."""
        program = self.program
        results, parameters = self._of_decorators()
        loaded = {
            variable(scope, name)
            for scope in program.scopes
            for name in scope.loaded | scope.attribute_bases
        }
        loaded.update(variable(scope, name) for _, scope, name in program.callback_args)
        loaded.update(
            variable(scope, name)
            for scope, name in program.returned
            if (scope, name) not in results
        )
        wrapped = {variable(scope, name) for scope, name in program.wrapped}
        loaded |= wrapped - parameters
        transparent = self._transparent(loaded)
        decorated, program.decorated = program.decorated, []
        for each in decorated:
            name = variable(each.scope, each.node.name)
            if (
                variable(each.scope, each.decorator) in transparent
                and name in self.functions
                and name not in loaded
                and not each.inner.yields
            ):
                program.decorated.append(each)
            else:
                each.scope.loaded.add(each.decorator)
        passed, program.passed = program.passed, []
        loaded |= wrapped
        for argument in passed:
            if self._target(argument) in loaded:
                argument.scope.loaded.add(argument.name)
            else:
                program.passed.append(argument)
        return len(program.decorated) + len(program.passed) < len(decorated) + len(passed)

    def _decorator(self, decorated: Decorated) -> Function | None:
        return self.functions.get(variable(decorated.scope, decorated.decorator))

    def _of_decorators(self) -> tuple[set[Variable], set[Variable]]:
        """Return the functions that decorators return, and the parameters of decorators."""
        decorators = [
            function
            for each in self.program.decorated
            if (function := self._decorator(each)) is not None and function.node.args.args
        ]
        inner = {function.inner for function in decorators}
        results = {
            each for each in self.program.returned if each[0] in inner and each in self.functions
        }
        if not is_known(self.program, "wraps"):
            return results, set()
        return results, {(each.inner, each.node.args.args[0].arg) for each in decorators}

    def _transparent(self, loaded: set[Variable]) -> set[Variable]:
        """Return the decorators that, with their functions, cannot show the name of another."""
        program = self.program
        returned: dict[Scope, list[Variable]] = {}
        for each in program.returned:
            returned.setdefault(each[0], []).append(each)
        passed = {variable(each.scope, each.name) for each in program.passed}
        wrapped = Counter(variable(*each) for each in program.wrapped)
        decorators = {variable(each.scope, each.decorator) for each in program.decorated}

        def is_transparent(itself: Variable) -> bool:
            function = self.functions.get(itself)
            if function is None or program.level == "unit":
                return False
            node, args = function.node, function.node.args
            if not isinstance(node, ast.FunctionDef) or len(args.args) != 1:
                return False
            if args.posonlyargs or args.vararg or args.kwonlyargs or args.kwarg or args.defaults:
                return False
            parameter = function.inner, args.args[0].arg
            results = set(returned.get(function.inner, ()))
            if not results <= self.functions.keys():
                return False
            functions = [self.functions[each] for each in results]
            return (
                (not wrapped[parameter] or is_known(program, "wraps"))
                and not node.decorator_list
                and loaded.isdisjoint({parameter, itself, *results})
                and passed.isdisjoint({parameter, itself, *results})
                and itself not in self.called
                and not any(each.inner.yields for each in (function, *functions))
                and wrapped[parameter] == sum(map(_count_wraps, functions))
            )

        return {each for each in decorators if is_transparent(each)}


def _count_wraps(function: Function) -> int:
    return sum(
        isinstance(each, ast.Call) and last_name(each.func) == "wraps"
        for each in getattr(function.node, "decorator_list", ())
    )
