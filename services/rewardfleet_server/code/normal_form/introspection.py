"""Whether a program can observe its names or line numbers: it cannot if all it uses is allowed."""

import ast
from collections import Counter
from collections.abc import Iterable

from . import allowed
from .nodes import has_member, is_private, is_special, last_name
from .scopes import CLASS, Scope, Variable
from .uses import NamesOfTests, ReflectsSource, Uses

#: Attributes of modules that a program may set, by module.
_SETTABLE = {"sys": ("stdin=", "stdout=")}
_CLASS_ATTRIBUTES = allowed.SPECIAL_METHODS | {"__slots__"}


def check(program: Uses) -> None:
    """Check that a program uses nothing that is not allowed.

    Raises:
        ReflectsSource: It may observe its names or line numbers.
    """
    for occurrence in set(program.out):
        if isinstance(occurrence, tuple):
            _check_name(program, *occurrence)
    passed_on = {
        (scope, name)
        for caller, scope, name in program.callback_args
        if name in allowed.CALLED_ONLY
        and not (caller in ("isinstance", "issubclass") and is_known(program, caller))
    }
    for module in program.star_modules:
        # Which of both a name then refers to depends on the order of statements.
        if program.module.bound & (allowed.STAR_NAMES[module] - allowed.MODULES[module]):
            raise ReflectsSource
    for scope, name in program.called_only | passed_on:
        if scope.owner(name) is program.module or scope.owner(name).kind == CLASS:
            raise ReflectsSource
    for scope in program.scopes:
        # A generator that is destroyed runs code. The order of destruction depends on names.
        if scope.yields and scope.cleans_up:
            raise ReflectsSource
    if program.delegates and not is_known(program, "close"):
        raise ReflectsSource  # a generator closes what it delegates to
    _check_attributes(program, program.attributes | _check_modules(program))
    for node, _ in program.classes:
        _check_class(program, node)
    _check_errors(program)
    _check_types(program)


def check_tests(program: Uses, tests: NamesOfTests) -> None:
    """Check that a program's tests cannot observe more of it than names that it keeps.

    Raises:
        ReflectsSource: They use an attribute that the program does not have, or a builtin that is
            another object here.
    """
    own = program.own_attributes.union(
        *(scope.bound for scope in program.scopes if scope.kind == CLASS)
    )
    if program.makes_fields:
        own |= program.string_words
    if not (tests.attributes <= own and tests.builtins.isdisjoint(program.module.bound)):
        raise ReflectsSource
    for occurrence in {each for each in program.out if isinstance(each, tuple)}:
        scope, name = occurrence
        if scope.owner(name) is program.module and not _may_be_bound_by(program, tests, name):
            raise ReflectsSource


def _may_be_bound_by(program: Uses, tests: NamesOfTests, name: str) -> bool:
    """Return whether the analysis of a program holds also if the tests bind a name."""
    if name in tests.bound | tests.forbidden:
        return False
    bindings = program.bindings.get(name, 0) if name in program.module.bound else 0
    if bindings and name in tests.classes:
        return len(program.classes_by_name.get(name, ())) == bindings
    if bindings and name in tests.imported:
        imports = sum(other == name for _, other, _ in program.modules)
        return imports + program.imported.get(name, 0) == bindings
    return True


def find_names_of_tests(
    program: Uses, forbidden: frozenset[str], imported: frozenset[str]
) -> NamesOfTests:
    """Return what tests use of the programs that they test.

    Args:
        program: The tests, without star imports.
        forbidden: Names that these import and that are not allowed.
        imported: Names that these import after the program.

    Raises:
        ReflectsSource: They may observe more than public names.
    """
    check(program)
    occurrences = {each for each in program.out if isinstance(each, tuple)}
    names = {name for _, name in occurrences} | program.attributes | program.keywords
    names.update(*(each[2:] for each in program.name_attributes))
    if program.star_modules or program.shows_errors or any(map(is_private, names)):
        raise ReflectsSource
    free = {name for scope, name in occurrences if scope.owner(name) is program.module}
    builtins = (free - program.module.bound) & allowed.ALL_BUILTINS
    if not forbidden.isdisjoint(free):
        raise ReflectsSource
    own = program.own_attributes.union(
        *(scope.bound for scope in program.scopes if scope.kind == CLASS)
    )
    if not own.isdisjoint(allowed.KNOWN_METHODS):
        raise ReflectsSource  # a program may call them
    bound = set(program.module.bound)
    classes = {
        name
        for name in bound & program.classes_by_name.keys()
        if len(program.classes_by_name[name]) == program.bindings[name]
        and not any(node.bases or node.keywords for node in program.classes_by_name[name])
    } - (allowed.ALL_BUILTINS | allowed.LIBRARY_NAMES)
    modules = Counter(name for _, name, _ in program.modules)
    imports = {
        name
        for name in bound
        if program.bindings[name] == modules[name] + program.imported.get(name, 0)
    }
    return NamesOfTests(
        attributes=frozenset(program.unknown_attributes),
        builtins=frozenset(builtins),
        forbidden=forbidden,
        bound=frozenset(bound - classes - imports),
        classes=frozenset(classes),
        imported=imported | imports,
    )


def is_known(program: Uses, name: str) -> bool:
    """Return whether a name is a builtin or of a library: the program has no other of this name."""
    module, dot, attribute = name.rpartition(".")
    if dot:
        paths = [path for _, bound, path in program.modules if bound == module]
        is_module = program.bindings.get(module, 0) == paths.count(module) == len(paths)
        return is_module and attribute not in program.own_attributes
    return program.bindings.get(name, 0) == program.imported.get(name, 0) and (
        name not in program.own_attributes
        and not (program.makes_fields and name in program.string_words)
    )


def _check_name(program: Uses, scope: Scope, name: str) -> None:
    owner = scope.owner(name)
    if name.startswith("__"):
        if owner.kind == CLASS:
            is_allowed = name in _CLASS_ATTRIBUTES or not name.endswith("__")
        else:  # of `__x`, the name depends on the class around
            is_allowed = name == "__name__" and name not in owner.bound
        if not is_allowed:
            raise ReflectsSource
    elif owner is program.module:
        if name in allowed.OTHER_BUILTINS and name not in program.own_names - program.deleted:
            raise ReflectsSource
        if name not in owner.bound and name not in allowed.BUILTINS:
            _check_unbound(program, name)
    elif (
        owner.kind == CLASS
        and name in allowed.OTHER_BUILTINS
        and (name in owner.loaded or name in owner.annotated)
    ):
        raise ReflectsSource  # perhaps loaded before the class binds it


def _check_unbound(program: Uses, name: str) -> None:
    """Check a name that only a star import or the setup of unit tests can bind.

    Without either, it is a NameError, and keeps its name.
    """
    if program.star_modules and not any(
        name in allowed.MODULES[module] for module in program.star_modules
    ):
        raise ReflectsSource


def _check_modules(program: Uses) -> set[str]:
    """Check that modules are not values, and what is used of them.

    Returns:
        The attributes that are taken of anything else.
    """
    modules: dict[Variable, set[str]] = {}
    for scope, name, path in program.modules:
        modules.setdefault((scope.owner(name), name), set()).add(path)
    others: set[str] = set()
    for scope, name, first, second in program.name_attributes:
        variable = (scope.owner(name), name)
        is_free = variable[0] is program.module and name not in program.module.bound
        if is_free and name in allowed.MODULES:  # imported by the setup of the tests
            modules.setdefault(variable, {name})
        paths = modules.get(variable, set())
        for path in paths:
            if f"{path}.{first}" in allowed.MODULES:
                is_allowed = second in allowed.MODULES[f"{path}.{first}"]
            else:
                is_allowed = first in allowed.MODULES[path] or first in _SETTABLE.get(path, ())
                is_allowed &= not second.endswith("=")
                others.add(second)
            if not is_allowed:
                raise ReflectsSource
        if not paths or program.bindings.get(name, 0) > len(paths):
            others |= {first, second}
    if modules and not _values(program).isdisjoint(modules):
        raise ReflectsSource
    # The writer checks `__class__`.
    return {name.removesuffix("=").partition("(")[0] for name in others - {"", "__class__"}}


def _values(program: Uses) -> set[Variable]:
    """Return the variables whose values may go anywhere."""
    return {(scope.owner(name), name) for scope in program.scopes for name in scope.loaded} | {
        (scope.owner(name), name) for _, scope, name in program.callback_args
    }


def _check_attributes(program: Uses, read: set[str]) -> None:
    """Check that attributes of objects are the program's own, or are known."""
    own = program.own_attributes
    if not (
        allowed.INTROSPECTIVE.isdisjoint(read | own)
        and allowed.OF_STDERR.isdisjoint(own)
        and allowed.OF_LIBRARIES.isdisjoint(own)
    ):
        raise ReflectsSource
    if any(map(is_special, own - allowed.SETTABLE_METHODS)):
        raise ReflectsSource
    unknown = read - allowed.ATTRIBUTES - allowed.SPECIAL_ATTRIBUTES - own
    if any(map(is_special, unknown)):
        raise ReflectsSource
    if unknown:
        unknown = unknown.difference(*(each.bound for each in program.scopes if each.kind == CLASS))
    if unknown and program.makes_fields:
        unknown -= program.string_words
    if unknown and not program.is_test:
        raise ReflectsSource
    program.unknown_attributes = unknown


def _check_types(program: Uses) -> None:
    """Check that the types of objects go nowhere, and that what makes attributes is only called."""
    if not all(is_known(program, name) for name in program.used_as_known):
        raise ReflectsSource
    for name in program.used_as_types:
        is_type = name in allowed.TYPES and is_known(program, name)
        if not (is_type or is_own_class(program, name)):
            raise ReflectsSource
    used = set().union(*(scope.loaded | scope.attribute_bases for scope in program.scopes))
    used.update(program.values, (name for _, _, name in program.callback_args))
    if not allowed.CHECKED_ONLY.isdisjoint(used):
        raise ReflectsSource


def _check_class(program: Uses, node: ast.ClassDef) -> None:
    for base in node.bases:
        if not _is_base(program, base):
            raise ReflectsSource
        if last_name(base) in allowed.ENUMS and not (
            has_member(node) and is_known(program, "auto")
        ):
            raise ReflectsSource
    for keyword in node.keywords:
        if keyword.arg == "metaclass" and not (
            (name := last_name(keyword.value)) in allowed.METACLASSES and is_known(program, name)
        ):
            raise ReflectsSource
        if keyword.arg is None:
            raise ReflectsSource


def _is_base(program: Uses, node: ast.expr) -> bool:
    if isinstance(node, ast.Subscript):
        return _is_base(program, node.value)
    if isinstance(node, ast.Call):
        return last_name(node.func) == "namedtuple" and is_known(program, "namedtuple")
    name = last_name(node)
    return is_own_class(program, name) or (name in allowed.BASES and is_known(program, name))


def is_own_class(program: Uses, name: str) -> bool:
    """Return whether a name is surely that of a class of the program, wherever it is used."""
    is_own = program.own_classes.get(name)
    if is_own is None:  # once per name: there may be thousands of classes of one name
        is_own = program.own_classes[name] = _is_own_class(program, name)
    return is_own


def _is_own_class(program: Uses, name: str) -> bool:
    nodes = program.classes_by_name.get(name, ())
    if not nodes or len(nodes) != program.bindings.get(name) or name in allowed.ALL_BUILTINS:
        return False  # where such a class is not bound, the name is that of the builtin
    if any(name in allowed.MODULES[module] for module in program.star_modules):
        return False
    return all(are_known(program, node.decorator_list, allowed.CLASS_WRAPPERS) for node in nodes)


def are_known(program: Uses, decorators: Iterable[ast.expr], known: frozenset[str]) -> bool:
    """Return whether all decorators are of libraries, and among the known ones."""
    for node in decorators:
        name = last_name(node.func if isinstance(node, ast.Call) else node)
        if name not in known or not is_known(program, name):
            return False
    return True


def _check_errors(program: Uses) -> None:
    """Check that errors are unused by `__exit__`, and note whether their texts may be shown."""
    if len(program.exits) != program.bindings.get("__exit__", 0):
        raise ReflectsSource  # it may be any function
    if not (program.caught or program.exits):
        return
    used = _values(program) | {
        (scope.owner(name), name) for scope in program.scopes for name in scope.attribute_bases
    }
    for kind, scope, name in program.caught:
        if (scope.owner(name), name) in used and not _is_nameless(program, kind):
            program.shows_errors = True
    for node, scope in program.exits:
        args = [*node.args.posonlyargs, *node.args.args][1:]
        names = [*(arg.arg for arg in args), getattr(node.args.vararg, "arg", "")]
        if node.decorator_list or any((scope, name) in used for name in names):
            raise ReflectsSource


def _is_nameless(program: Uses, kind: ast.expr) -> bool:
    """Return whether the texts of such errors name nothing; the program's own are its own."""
    if isinstance(kind, ast.Tuple):
        return all(_is_nameless(program, each) for each in kind.elts)
    if not isinstance(kind, ast.Name):
        return False
    is_builtin = kind.id in allowed.NAMELESS_ERRORS and kind.id not in program.bindings
    return is_builtin or (is_own_class(program, kind.id) and program.bindings[kind.id] == 1)
