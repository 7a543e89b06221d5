"""Whether a program can observe its local names or line numbers."""

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from . import allowed, nodes

#: Attributes of modules that a program may set.
_SETTABLE = frozenset({"sys.stdin=", "sys.stdout="})
_CLASS_ATTRIBUTES = allowed.SPECIAL_METHODS | {"__slots__"}
_SPECIAL_WORD = re.compile(r"__\w+__")


class ReflectsSource(Exception):
    """The program may observe its names or lines: only its text is a safe key."""


@dataclass(frozen=True, slots=True)
class Uses:
    """What source code uses and binds, as far as it decides on what it can observe."""

    values: set[str] = field(default_factory=set)  #: names that are more than `name.attribute`
    #: `name.one`, `name.one.two` or `.one`; with "=" where it is set, "(0)" where it is checked.
    attributes: set[str] = field(default_factory=set)
    own: set[str] = field(default_factory=set)  #: attributes that it sets
    modules: set[str] = field(default_factory=set)  #: `name=path`
    stars: set[str] = field(default_factory=set)  #: modules all of whose names are imported
    imported: set[str] = field(default_factory=set)  #: bound by `from module import name`
    classes: set[str] = field(default_factory=set)  #: bound to a class of its own
    others: set[str] = field(default_factory=set)  #: bound to anything else
    known: set[str] = field(default_factory=set)  #: must be those of builtins or libraries
    types: set[str] = field(default_factory=set)  #: must be those of classes
    caught: set[str] = field(default_factory=set)  #: kinds of errors whose objects are used

    def __or__(self, other: "Uses") -> "Uses":
        return Uses(
            *(getattr(self, each.name) | getattr(other, each.name) for each in fields(Uses))
        )

    def check(self) -> bool:
        """Return whether texts of errors may show local names; raise ReflectsSource if more may."""
        if not all(map(self._is_known, self.known)):
            raise ReflectsSource
        for name in self.types:
            if not (name in allowed.TYPES and self._is_known(name)) and not self._is_class(name):
                raise ReflectsSource
        self._check_names()
        self._check_attributes()
        return not all(
            (kind in allowed.NAMELESS_ERRORS and self._is_known(kind)) or self._is_class(kind)
            for kind in self.caught
        )

    def _is_known(self, name: str) -> bool:
        return name not in self.classes | self.others

    def _is_class(self, name: str) -> bool:
        is_other = name in self.others | self.imported or name in allowed.ALL_BUILTINS
        return name in self.classes and not is_other

    def _check_names(self) -> None:
        """Check the names that star imports bind, and that modules are not values."""
        if not self.values.isdisjoint(each.partition("=")[0] for each in self.modules):
            raise ReflectsSource
        if not self.stars:
            return
        bound = self.classes | self.others | self.imported
        given = frozenset[str]().union(*(allowed.star_names(each) for each in self.stars))
        # Which of both a name then refers to depends on the order of statements.
        for module in self.stars:
            if not bound.isdisjoint(allowed.unlisted_names(module) - given):
                raise ReflectsSource
        bases = {each.partition(".")[0] for each in self.attributes} - {""}
        modules = {each.partition("=")[0] for each in self.modules}
        if not self.values | bases <= bound | modules | given | allowed.BUILTINS:
            raise ReflectsSource

    def _check_attributes(self) -> None:
        modules: dict[str, set[str]] = {}
        for each in self.modules:
            name, _, path = each.partition("=")
            modules.setdefault(name, set()).add(path)
        read: set[str] = set()
        for each in self.attributes:
            base, *names = each.split(".")
            paths = modules.get(base, set())
            if base in allowed.MODULES and self._is_known(base) and base not in self.imported:
                paths = paths | {base}
            for path in paths:
                _check_path(path, names)
            is_module = paths and self._is_known(base) and base not in self.imported
            read.update(names[1:] if is_module else names)
        read = {each.partition("(")[0] for each in read}
        own = self.own | {each[:-1] for each in read if each.endswith("=")}
        for name in {each.rstrip("=") for each in read}:
            if name in allowed.INTROSPECTIVE:
                raise ReflectsSource
            if nodes.is_special(name) and name not in allowed.SPECIAL_ATTRIBUTES:
                raise ReflectsSource
            if nodes.is_private(name) and name not in own | allowed.PRIVATE_ATTRIBUTES:
                raise ReflectsSource
        for name in own:
            is_open = nodes.is_special(name) and name not in allowed.SETTABLE_METHODS
            if name + "=" in read and (is_open or name in allowed.OF_STDERR):
                raise ReflectsSource


def _check_path(path: str, names: list[str]) -> None:
    first, *more = names
    if more and f"{path}.{first}" in allowed.MODULES:
        if more[0] not in allowed.MODULES[f"{path}.{first}"]:
            raise ReflectsSource
    elif first not in allowed.MODULES[path] and f"{path}.{first}" not in _SETTABLE:
        raise ReflectsSource
    elif f"{path}.{first}" in allowed.MODULES or (more and more[0].endswith("=")):
        raise ReflectsSource  # a module is no value


class Collector:
    """Collects what a program uses."""

    def __init__(self) -> None:
        self.uses = Uses()
        self.checked: set[int] = set()  # the ids of nodes that are used in a way that is allowed
        self.caught: list[tuple[str, Sequence[ast.expr | None]]] = []
        self.loaded: set[str] = set()
        self.delegates = False

    def collect(self, tree: ast.Module) -> Uses:
        """Return it; raise ReflectsSource if the program observes names, whatever else it has."""
        for node in ast.walk(tree):  # parents come first
            if node.__class__.__name__ in allowed.OTHER_NODES or getattr(node, "type_params", None):
                raise ReflectsSource
            collector = _COLLECTORS.get(node.__class__)
            if collector is not None:
                collector(self, node)
        for name, kinds in self.caught:
            if name in self.loaded:
                self.uses.caught.update(getattr(each, "id", "") for each in kinds)
        if self.delegates and "close" in self.uses.own:
            raise ReflectsSource  # a generator closes what it delegates to
        return self.uses

    def bind(self, name: str, kind: set[str] | None = None) -> None:
        if nodes.is_special(name) and name not in _CLASS_ATTRIBUTES:
            raise ReflectsSource
        if name == "__exit__":
            self.uses.caught.add("")  # it gets any error
        (self.uses.others if kind is None else kind).add(name)

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self.bind(node.id)
            return
        self.loaded.add(node.id)
        if nodes.is_special(node.id) and node.id not in allowed.SPECIAL_NAMES:
            raise ReflectsSource
        if id(node) in self.checked:
            return
        if node.id in allowed.CALLED_ONLY:
            raise ReflectsSource
        self.uses.values.add(node.id)

    def visit_Global(self, node: ast.Global | ast.Nonlocal) -> None:
        for name in node.names:
            self.bind(name)

    visit_Nonlocal = visit_Global

    def visit_arg(self, node: ast.arg) -> None:
        self.bind(node.arg)

    def visit_MatchAs(self, node: ast.MatchAs | ast.MatchStar | ast.MatchMapping) -> None:
        name = node.rest if isinstance(node, ast.MatchMapping) else node.name
        if name is not None:
            self.bind(name)

    visit_MatchStar = visit_MatchMapping = visit_MatchAs

    def visit_MatchClass(self, node: ast.MatchClass) -> None:
        if "format" in node.kwd_attrs:
            raise ReflectsSource
        self.uses.attributes.update(f".{name}" for name in node.kwd_attrs)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        names = {each.id for each in kinds if isinstance(each, ast.Name)}
        self.uses.known.update(names & allowed.ORDINARY_ERRORS)
        if node.name is not None:
            self.bind(node.name)
            self.caught.append((node.name, kinds))

    def visit_comprehension(self, node: ast.comprehension) -> None:
        if node.is_async:
            raise ReflectsSource

    def visit_YieldFrom(self, _: ast.YieldFrom) -> None:
        self.delegates = True

    def visit_Constant(self, node: ast.Constant) -> None:
        text = node.value
        if isinstance(text, str) and text != "__main__" and _SPECIAL_WORD.search(text):
            raise ReflectsSource

    # Imports

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name not in allowed.MODULES:
                raise ReflectsSource
            top = alias.name.partition(".")[0]
            self.module(alias.asname or top, alias.name if alias.asname else top)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = "." if node.level else node.module or ""
        for alias in node.names:
            name, path = alias.asname or alias.name, f"{module}.{alias.name}"
            if alias.name == "*" and module in allowed.STAR_MODULES:
                self.uses.stars.add(module)
            elif path in allowed.MODULES:
                self.module(name, path)
            elif alias.name not in allowed.MODULES.get(module, ()):
                raise ReflectsSource
            else:
                self.bind(name, None if alias.asname else self.uses.imported)

    def module(self, name: str, path: str) -> None:
        if nodes.is_special(name):
            raise ReflectsSource
        self.uses.modules.add(f"{name}={path}")

    # Functions and classes

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.bind(node.name)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        decorators = {
            nodes.last_name(each.func if isinstance(each, ast.Call) else each)
            for each in node.decorator_list
        }
        is_itself = decorators <= allowed.CLASS_WRAPPERS
        self.uses.known.update(decorators if is_itself else ())
        self.bind(node.name, self.uses.classes if is_itself else self.uses.others)
        if any(each.arg in (None, "metaclass") for each in node.keywords):
            raise ReflectsSource
        for base in node.bases:
            self.base(base)
        self.uses.own.update(_bound_in(node))

    def base(self, node: ast.expr) -> None:
        """Check a base class: some libraries call its methods when objects are destroyed."""
        if isinstance(node, ast.Subscript):
            self.base(node.value)
            return
        is_call = isinstance(node, ast.Call)
        name = nodes.last_name(node.func if isinstance(node, ast.Call) else node)
        if is_call and name != "namedtuple":
            raise ReflectsSource
        (self.uses.known if is_call or name in allowed.BASES else self.uses.types).add(name)
        if name in ("NameError", "UnboundLocalError"):
            self.uses.caught.add(name)  # whoever catches the class

    # Attributes and calls

    def visit_Attribute(self, node: ast.Attribute) -> None:
        base, name = node.value, node.attr
        if name == "__class__" or (name == "format" and not nodes.is_plain_format(base)):
            raise ReflectsSource
        if name in ("__name__", "__qualname__"):
            self.close_type(base)
        if name == "__init__":
            self.init(base)
        use = name if isinstance(node.ctx, ast.Load) else name + "="
        if isinstance(base, ast.Name):
            self.checked.add(id(base))
        if id(node) in self.checked:
            return
        if isinstance(base, ast.Name):
            if base.id in allowed.CALLED_ONLY:
                raise ReflectsSource
            self.uses.attributes.add(f"{base.id}.{use}")
        elif isinstance(base, ast.Attribute) and isinstance(base.value, ast.Name):
            if base.attr == "format":
                raise ReflectsSource
            self.checked.add(id(base))
            self.uses.attributes.add(f"{base.value.id}.{base.attr}.{use}")
        else:
            self.uses.attributes.add(f".{use}")

    def init(self, base: ast.expr) -> None:
        """Check what is before `.__init__`, which opens the file of a library's object again."""
        if isinstance(base, ast.Call) and isinstance(base.func, ast.Name):
            self.uses.known.add(base.func.id)
            if base.func.id != "super":
                raise ReflectsSource
        elif isinstance(base, ast.Name):
            (self.uses.known if base.id in allowed.BASES else self.uses.types).add(base.id)
        else:
            raise ReflectsSource

    def visit_Call(self, node: ast.Call) -> None:
        func = node.func
        if isinstance(func, ast.Name):
            if func.id in allowed.TYPE_CONSUMERS and any(map(nodes.is_type_of, node.args)):
                self.uses.known.add(func.id)
                for arg in node.args:
                    self.close_type(arg)
            if func.id in allowed.CALLED_ONLY:
                self.checked_call(func.id, node)
                self.checked.add(id(func))
            if func.id == "print":
                self.print_to(node)
        elif isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name):
            is_allowed = nodes.CHECKED_CALLS.get(func.attr)
            if is_allowed is not None and is_allowed(node):
                self.checked.add(id(func))
                kind = "0" if func.attr in ("read", "fstat") else "ignore"
                self.uses.attributes.add(f"{func.value.id}.{func.attr}({kind})")

    def checked_call(self, name: str, call: ast.Call) -> None:
        """Check a call that opens a file, makes a class, or takes an attribute by a string."""
        self.uses.known.add(name)
        if name == "open":
            if not nodes.reads_zero(call):
                raise ReflectsSource
            return
        if name == "type":
            if id(call) not in self.checked or not nodes.has_one_argument(call):
                raise ReflectsSource
            return
        word = call.args[1] if len(call.args) > 1 else None
        if not nodes.is_text(word) or isinstance(call.args[0], ast.Starred):
            raise ReflectsSource
        attribute = word.value  # type: ignore[union-attr]
        if attribute in ("format", "__init__"):
            raise ReflectsSource
        # Not of a module, which is no value.
        self.uses.attributes.add(f".{attribute}{'=' if name == 'setattr' else ''}")

    def print_to(self, call: ast.Call) -> None:
        """Note standard error as the file of `print`: nothing else may have it."""
        for keyword in call.keywords:
            match keyword:
                case ast.keyword("file", ast.Name("stderr") as value):
                    self.uses.attributes.add("stderr.write")
                case ast.keyword("file", ast.Attribute(ast.Name(module), "stderr") as value):
                    self.uses.attributes.add(f"{module}.stderr.write")
                case ast.keyword("file", ast.Attribute(attr="stderr")):
                    raise ReflectsSource
                case _:
                    continue
            self.uses.known.add("print")
            self.checked.add(id(value))

    # Types of objects, which nothing gets but a comparison or a text

    def close_type(self, node: ast.expr) -> None:
        if nodes.is_type_of(node):
            self.checked.add(id(node))

    def visit_Compare(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        is_identity = all(isinstance(each, ast.Is | ast.IsNot) for each in node.ops)
        if not is_identity and any(map(nodes.is_type_of, sides)):
            for side in sides:
                parts = side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else [side]
                for part in parts:
                    if isinstance(part, ast.Name):
                        self.uses.types.add(part.id)
                    elif not nodes.is_type_of(part):
                        raise ReflectsSource
                    self.close_type(part)
        elif is_identity:
            for side in sides:
                self.close_type(side)

    def visit_FormattedValue(self, node: ast.FormattedValue) -> None:
        self.close_type(node.value)


def _bound_in(node: ast.ClassDef) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.FunctionDef | ast.ClassDef):
            yield part.name
        elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            yield part.id


#: By the kinds of nodes, which the methods are named after.
_COLLECTORS: dict[type[Any], Callable[[Collector, Any], None]] = {
    getattr(ast, name.removeprefix("visit_")): method
    for name, method in vars(Collector).items()
    if name.startswith("visit_")
}
