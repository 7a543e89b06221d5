"""A Python program written down for its normal form, and what it uses."""

import ast
from collections.abc import Callable
from typing import Any

from . import allowed
from .callables import resolve
from .expressions import ExpressionWriter
from .hints import GENERICS, Hint
from .nodes import KINDS, does_nothing, is_ordinary_error, is_special, is_text, is_thread, last_name
from .scopes import CLASS, FUNCTION, MODULE, Decorated, Function, Scope
from .uses import WORD, Level, ReflectsSource


class CanonicalWriter(ExpressionWriter):
    """Writes down a program's syntax tree with its variables left open, and what it uses.

    Raises:
        ReflectsSource: A part of the program may observe names or lines.
    """

    def __init__(self, program: ast.Module, level: Level) -> None:
        super().__init__(level)
        self.write_module(program)
        self.settle_hints()
        resolve(self)

    def write(self, node: Any, scope: Scope) -> None:
        """Write a node, or what else a field of a node has."""
        writer = _WRITERS.get(node.__class__)
        if writer is not None:
            writer(self, node, scope)
        elif isinstance(node, ast.AST):
            raise ReflectsSource  # newer than this file, or asynchronous
        else:
            self.out.append(repr(node))

    def write_node(self, node: ast.AST, scope: Scope) -> None:
        kind, fields = KINDS[node.__class__]
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
        begun = False
        for number, node in enumerate(program.body):
            self.statement = number
            if isinstance(node, ast.ImportFrom) and node.module == "__future__":
                if begun:
                    raise ReflectsSource  # an error, also after what is omitted
                self.future_hints |= any(alias.name == "annotations" for alias in node.names)
            elif number or not (isinstance(node, ast.Expr) and is_text(node.value)):
                begun = True
            if not does_nothing(node):
                self.write(node, self.module)
                self.hints.give(node, number)
                if isinstance(node, ast.Assign):
                    self.note_own(node.targets[0])

    def write_block(self, nodes: list[ast.stmt], scope: Scope) -> None:
        for node in nodes:
            if not does_nothing(node):
                self.write(node, scope)
        self.out.append("]")

    # Variables

    def write_delete(self, node: ast.Delete, scope: Scope) -> None:
        names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        self.deleted |= names
        if scope.kind == CLASS:
            scope.loaded |= names  # what they name afterwards is the module's
        self.write_node(node, scope)

    def write_declaration(self, node: ast.Global | ast.Nonlocal, scope: Scope) -> None:
        is_global = isinstance(node, ast.Global)
        self.out.append("global" if is_global else "nonlocal")
        for name in node.names:
            (scope.globals if is_global else scope.nonlocals).add(name)
            self.out.append((scope, name))
        self.out.append("]")

    # Imports

    def write_import(self, node: ast.Import, scope: Scope) -> None:
        self.out.append("import")
        for alias in node.names:
            top, dot, _ = alias.name.partition(".")
            if alias.name not in allowed.MODULES:
                raise ReflectsSource
            self.uses_numpy |= top == "numpy"
            self.makes_dataclasses |= top == "dataclasses"
            path = alias.name if alias.asname else top
            self.out += (alias.name, "." if dot and not alias.asname else "as")
            self.write_module_binding(alias.asname or top, path, scope)
        self.out.append("]")

    def write_import_from(self, node: ast.ImportFrom, scope: Scope) -> None:
        known = allowed.MODULES.get(node.module or "")
        if node.level or node.module is None or known is None:
            raise ReflectsSource
        self.uses_numpy |= node.module.startswith("numpy")
        self.makes_dataclasses |= node.module == "dataclasses"
        self.out += ("from", node.module)
        for alias in node.names:
            name, path = alias.asname or alias.name, f"{node.module}.{alias.name}"
            self.out.append(alias.name)
            self.makes_fields |= alias.name in allowed.FIELD_MAKERS or alias.name == "*"
            if alias.name == "*":
                if node.module not in allowed.STAR_NAMES:
                    raise ReflectsSource
                self.star_modules.add(node.module)
            elif path in allowed.MODULES:
                self.write_module_binding(name, path, scope)
            elif alias.name in known:
                self.any_keyword |= alias.name == "Thread" != name
                if alias.name in allowed.CHECKED_ONLY and alias.name != name:
                    raise ReflectsSource
                self.write_binding(name, scope)
                if not alias.asname and not node.module.startswith("numpy"):  # its max is another
                    self.imported[name] = self.imported.get(name, 0) + 1
            else:
                raise ReflectsSource
        self.out.append("]")

    def write_module_binding(self, name: str, path: str, scope: Scope) -> None:
        if scope.kind == CLASS:
            raise ReflectsSource  # the module is an attribute
        self.modules.append((scope, name, path))
        self.write_binding(name, scope)

    # Errors

    def write_handler(self, node: ast.ExceptHandler, scope: Scope) -> None:
        self.out.append("except")
        if node.type is None:
            self.out.append("None")
        else:
            self.write_borrowed(node.type, scope)
        if node.type is not None and node.name is not None:
            self.out.append("as")
            self.write_binding(node.name, scope)
            self.deleted.add(node.name)  # when the handler ends
            self.caught.append((node.type, scope, node.name))
        self.write_block(node.body, scope)

    def write_try(self, node: ast.Try | ast.TryStar, scope: Scope) -> None:
        kinds = [handler.type for handler in node.handlers]
        if node.finalbody or not all(map(is_ordinary_error, kinds)):
            scope.cleans_up = True
        self.write_node(node, scope)

    def write_with(self, node: ast.With, scope: Scope) -> None:
        scope.cleans_up = True
        self.write_node(node, scope)

    def write_raise(self, node: ast.Raise, scope: Scope) -> None:
        self.out.append("raise")
        for value in (node.exc, node.cause):
            if value is None:
                self.out.append("None")
            else:
                self.write_borrowed(value, scope)

    # Patterns

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
        if "format" in node.kwd_attrs:
            raise ReflectsSource
        self.attributes.update(node.kwd_attrs)
        self.values.update(node.kwd_attrs)
        self.write_node(node, scope)

    # Functions and classes

    def write_function(self, node: ast.FunctionDef, scope: Scope) -> None:
        self.out.append("def")
        inner = self.scope(FUNCTION, scope)
        self.write_head(node, scope, inner)
        if is_special(node.name) and node.name not in allowed.SPECIAL_METHODS:
            raise ReflectsSource
        inner.definition = (scope, node.name)
        self.functions.append(Function(node, scope, inner))
        self.write_arguments(node.args, scope, inner)
        if node.returns is not None:
            self.write_hint(node.returns, scope)
        self.write_block(node.body, inner)
        if node.name == "__exit__":
            self.exits.append((node, inner))

    def write_head(
        self, node: ast.FunctionDef | ast.ClassDef, scope: Scope, inner: Scope | None = None
    ) -> None:
        if getattr(node, "type_params", None):
            raise ReflectsSource  # newer than this file
        self.write_binding(node.name, scope)
        for decorator in node.decorator_list:
            if (
                isinstance(node, ast.FunctionDef)
                and isinstance(decorator, ast.Name)
                and inner is not None
                and scope.kind != CLASS
                and len(node.decorator_list) == 1
            ):
                self.decorated.append(Decorated(scope, decorator.id, node, inner))
                self.out.append((scope, decorator.id))
            else:
                self.write(decorator, scope)
        self.out.append("]")

    def write_class(self, node: ast.ClassDef, scope: Scope) -> None:
        self.out.append("class")
        self.write_head(node, scope)
        for base in node.bases:
            self.any_keyword |= last_name(base) == "Thread"
            if isinstance(base, ast.Attribute) and isinstance(base.value, ast.Name):
                self.write_dotted(base, scope)
            else:
                self.write_borrowed(base, scope)
        self.write_keywords(node.keywords, scope)
        self.classes.append((node, scope))
        self.classes_by_name.setdefault(node.name, []).append(node)
        inner = self.scope(CLASS, scope)
        inner.definition = (scope, node.name)
        inner.is_plain = not (node.bases or node.keywords or node.decorator_list)
        self.write_block(node.body, inner)

    # Loops, assignments and their hints

    def write_for(self, node: ast.For, scope: Scope) -> None:
        self.consumed[id(node.iter)] = ""
        self.write_node(node, scope)

    def write_assign(self, node: ast.Assign, scope: Scope) -> None:
        target, value = node.targets[0], node.value
        if len(node.targets) == 1 and isinstance(target, ast.Name):
            for item in value.values if isinstance(value, ast.Dict) else [value]:
                if item.__class__ is ast.Lambda:
                    self.holders[id(item)] = target.id
            if is_thread(value) and scope.kind != CLASS:
                self.closed.add(id(value))
                self.threads.append((scope, target.id))
        self.write_node(node, scope)

    def write_return(self, node: ast.Return, scope: Scope) -> None:
        if isinstance(node.value, ast.Name) and node.value.id not in (
            *allowed.CALLED_ONLY,
            "Thread",
        ):
            self.out += ("Return(", (scope, node.value.id))
            self.returned.append((scope, node.value.id))
        else:
            self.write_node(node, scope)

    def write_aug_assign(self, node: ast.AugAssign, scope: Scope) -> None:
        if isinstance(node.target, ast.Name):
            scope.loaded.add(node.target.id)  # a class loads it from the module, if need be
        self.write_node(node, scope)

    def write_hinted_assign(self, node: ast.AnnAssign, scope: Scope) -> None:
        """Write `x: int = 1` as `x = 1`, but in a class: there it may be a field."""
        target = node.target
        if isinstance(target, ast.Name) and not node.simple:
            raise ReflectsSource  # `(x): int` is another thing
        if scope.kind == CLASS:
            self.write_field_hint(node.annotation, scope)
            self.write_node(node, scope)
            return
        if node.value is None:
            self.out.append("hint(")  # in a function it makes a local, evaluates the target's parts
            self.write(target, scope)
        else:
            self.out.append(KINDS[ast.Assign][0])
            self.write(target, scope)
            self.out.append("]")
            self.write(node.value, scope)
        self.write_hint(node.annotation, scope, evaluated=scope.kind == MODULE)

    def write_field_hint(self, node: ast.expr, scope: Scope) -> None:
        """Write the text of a hint: a dataclass looks up its first words in the module."""
        if self.future_hints:
            text = ast.unparse(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        elif any(map(is_text, ast.walk(node))):
            text = ""
            if isinstance(node, ast.Subscript) and last_name(node.value) in GENERICS:
                self.used_as_known.add(last_name(node.value))
            else:
                self.any_name = True  # it may compute any text
        else:
            self.hints.of_fields.append(Hint(node, self.statement, scope))
            return
        self.looked_up.update(WORD.findall(text))
        self.out.append(ast.dump(node))

    def settle_hints(self) -> None:
        """Find the hints that do nothing. What others load, they may pass to anything."""
        for start, end, hint in self.hints.evaluated:
            if self.is_idle(hint):
                self.hints.idle.append((start, end))
            elif not isinstance(hint.node, ast.Name):
                hint.scope.loaded |= hint.loaded
                hint.scope.attribute_bases |= hint.attribute_bases
        if self.makes_dataclasses and not all(map(self.is_idle, self.hints.of_fields)):
            self.any_name = True  # they may evaluate to any text

    def is_idle(self, hint: Hint) -> bool:
        # A star import may rebind what a hint is made of.
        return not self.star_modules and self.hints.do_nothing(hint, self.bindings)


# The nodes of the tree. A kind that is not here is newer than this file, or asynchronous.

_WRITERS: dict[type[Any], Callable[[CanonicalWriter, Any, Scope], None]] = {
    ast.Name: CanonicalWriter.write_name,
    ast.Constant: CanonicalWriter.write_constant,
    ast.Attribute: CanonicalWriter.write_attribute,
    ast.Call: CanonicalWriter.write_call,
    ast.Compare: CanonicalWriter.write_compare,
    ast.Lambda: CanonicalWriter.write_lambda,
    ast.FormattedValue: CanonicalWriter.write_formatted,
    ast.NamedExpr: CanonicalWriter.write_walrus,
    ast.Starred: CanonicalWriter.write_starred,
    **dict.fromkeys((ast.Yield, ast.YieldFrom), CanonicalWriter.write_yield),
    **dict.fromkeys(
        (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp),
        CanonicalWriter.write_comprehension,
    ),
    ast.Assign: CanonicalWriter.write_assign,
    ast.AugAssign: CanonicalWriter.write_aug_assign,
    ast.AnnAssign: CanonicalWriter.write_hinted_assign,
    ast.Delete: CanonicalWriter.write_delete,
    ast.Return: CanonicalWriter.write_return,
    ast.For: CanonicalWriter.write_for,
    ast.With: CanonicalWriter.write_with,
    **dict.fromkeys((ast.Try, ast.TryStar), CanonicalWriter.write_try),
    ast.FunctionDef: CanonicalWriter.write_function,
    ast.ClassDef: CanonicalWriter.write_class,
    **dict.fromkeys((ast.Global, ast.Nonlocal), CanonicalWriter.write_declaration),
    ast.Import: CanonicalWriter.write_import,
    ast.ImportFrom: CanonicalWriter.write_import_from,
    ast.ExceptHandler: CanonicalWriter.write_handler,
    ast.Raise: CanonicalWriter.write_raise,
    **dict.fromkeys((ast.MatchAs, ast.MatchStar, ast.MatchMapping), CanonicalWriter.write_pattern),
    ast.MatchClass: CanonicalWriter.write_class_pattern,
    **dict.fromkeys(
        (
            *(ast.Expr, ast.While, ast.If, ast.withitem, ast.Match, ast.match_case),
            *(ast.Assert, ast.Break, ast.Continue, ast.Pass),
            *(ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Dict, ast.Set),
            *(ast.JoinedStr, ast.Subscript, ast.List, ast.Tuple, ast.Slice),
            *(ast.MatchValue, ast.MatchSingleton, ast.MatchSequence, ast.MatchOr),
            *ast.boolop.__subclasses__(),
            *ast.cmpop.__subclasses__(),
            *ast.operator.__subclasses__(),
            *ast.unaryop.__subclasses__(),
        ),
        CanonicalWriter.write_node,
    ),
}

_BLOCKS = ("body", "orelse", "finalbody")
