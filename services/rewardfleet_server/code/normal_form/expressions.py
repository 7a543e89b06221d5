"""Expressions in a normal form, and what they use."""

import ast
import re
from abc import ABC, abstractmethod
from typing import Any

from . import allowed
from .hints import Hint, is_plain
from .nodes import (
    CHECKED_CALLS,
    KINDS,
    has_literal_fields,
    is_plain_format,
    is_thread,
    is_type_of,
    last_name,
)
from .scopes import CLASS, COMPREHENSION, FUNCTION, Function, Passed, Scope
from .uses import ReflectsSource, Uses

_Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp


class ExpressionWriter(Uses, ABC):
    """Writes down expressions and the heads of functions."""

    @abstractmethod
    def write(self, node: Any, scope: Scope) -> None:
        """Write a node, or what else a field of a node has."""

    @abstractmethod
    def write_node(self, node: ast.AST, scope: Scope) -> None:
        """Write a node, and all its fields in their order."""

    # Variables

    def write_binding(self, name: str, scope: Scope) -> None:
        self.bind(scope, name)
        self.out.append((scope, name))

    def write_name(self, node: ast.Name, scope: Scope) -> None:
        if node.ctx.__class__ is ast.Load:
            scope.loaded.add(node.id)
            self.any_keyword |= node.id == "Thread"
            if node.id in allowed.CALLED_ONLY:
                self.called_only.add((scope, node.id))
        else:
            self.bind(scope, node.id)
        self.out.append((scope, node.id))

    def write_borrowed(self, node: ast.expr, scope: Scope) -> None:
        """Write an expression whose value, where it is a variable's, goes no further."""
        if isinstance(node, ast.Name) and scope.kind != CLASS:
            self.out.append((scope, node.id))
        elif isinstance(node, ast.Tuple):
            self.out.append("Tuple(")
            for item in node.elts:
                self.write_borrowed(item, scope)
            self.out.append("]")
        else:
            self.write(node, scope)

    def write_walrus(self, node: ast.NamedExpr, scope: Scope) -> None:
        """Bind in the block around the comprehensions."""
        name, home = node.target.id, scope
        while home.kind == COMPREHENSION and home.parent is not None:
            home = home.parent
        self.bind(home, name)
        self.out += (":=", (home, name))
        self.write(node.value, scope)

    # Functions and generators

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

    def write_lambda(self, node: ast.Lambda, scope: Scope, caller: str | None = None) -> None:
        self.out.append("lambda")
        inner = self.scope(FUNCTION, scope)
        self.functions.append(Function(node, scope, inner, self.holders.get(id(node)), caller))
        self.write_arguments(node.args, scope, inner)
        self.write(node.body, inner)

    def write_yield(self, node: ast.Yield | ast.YieldFrom, scope: Scope) -> None:
        scope.yields = True
        if isinstance(node, ast.YieldFrom):
            self.delegates = True
            self.consumed[id(node.value)] = ""
        self.write_node(node, scope)

    def write_comprehension(self, node: _Comprehension, scope: Scope) -> None:
        """Write where the items come from, then what is made of them."""
        self.out.append(KINDS[node.__class__][0])
        if isinstance(node, ast.GeneratorExp):
            self.generators.append((scope, self.consumed.pop(id(node), None)))
        inner = self.scope(COMPREHENSION, scope)
        around = scope  # the first iterable is evaluated outside
        for part in node.generators:
            if part.is_async:
                raise ReflectsSource
            self.out.append("for")
            self.consumed[id(part.iter)] = ""
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

    def write_starred(self, node: ast.Starred, scope: Scope) -> None:
        self.consumed[id(node.value)] = ""
        self.write_node(node, scope)

    # Literals, attributes, comparisons

    def write_constant(self, node: ast.Constant, _: Scope) -> None:
        value = node.value
        if value.__class__ is str:
            self.strings.append(value)
            if "__" in value and value != "__main__" and _SPECIAL_WORD.search(value):
                raise ReflectsSource
        self.out.append("=" + repr(value))  # ValueError where a number is too long to be written

    def write_attribute(self, node: ast.Attribute, scope: Scope) -> None:
        self.values.add(node.attr)
        self.any_keyword |= node.attr == "Thread"
        self.write_dotted(node, scope)

    def write_dotted(self, node: ast.Attribute, scope: Scope) -> None:
        """Write an attribute; of a name, also which one, as it may be that of a module."""
        base, name = node.value, node.attr
        if name == "format" and not is_plain_format(base):
            raise ReflectsSource
        self.makes_fields |= name in allowed.FIELD_MAKERS
        if name == "__class__" and id(node) not in self.closed:
            raise ReflectsSource
        if name in ("__name__", "__qualname__"):
            self.close_type(base)
        use = name
        if node.ctx.__class__ is not ast.Load:
            self.own_attributes.add(name)
            use += "="
        if name == "__init__" and self.write_init_base(base, scope):
            pass
        elif isinstance(base, ast.Attribute) and isinstance(base.value, ast.Name):
            if base.attr == "format" or (base.attr == "__class__" and id(base) not in self.closed):
                raise ReflectsSource
            self.values.add(base.attr)
            self.write_base(base.value, scope)
            self.out.append("." + base.attr)
            self.name_attributes.add((scope, base.value.id, base.attr, use))
        elif isinstance(base, ast.Name):
            self.write_base(base, scope, is_wrapper=name in allowed.OF_WRAPPERS)
            self.name_attributes.add((scope, base.id, use, ""))
        else:
            if name != "__class__":
                self.attributes.add(name)
            self.write(base, scope)
        self.out.append("." + name)

    def write_init_base(self, base: ast.expr, scope: Scope) -> bool:
        """Write `super()` or the name of a class before `.__init__`.

        Of a library's object, `__init__` replaces what is in it, e.g. where output goes.
        """
        if isinstance(base, ast.Call) and isinstance(base.func, ast.Name):
            self.used_as_known.add(base.func.id)
            if base.func.id != "super":
                raise ReflectsSource
            self.write(base, scope)
        elif isinstance(base, ast.Name):
            if base.id not in allowed.BASES:
                self.used_as_types.add(base.id)
            else:
                self.used_as_known.add(base.id)
            self.write_base(base, scope)
        else:
            raise ReflectsSource
        return True

    def close_type(self, node: ast.expr) -> None:
        """Note a place where the type of an object is not passed on."""
        if is_type_of(node):
            self.closed.add(id(node))

    def write_base(self, node: ast.Name, scope: Scope, *, is_wrapper: bool = False) -> None:
        if not is_wrapper:
            scope.attribute_bases.add(node.id)
        if node.id in allowed.CALLED_ONLY:
            self.called_only.add((scope, node.id))
        if scope.kind == CLASS:
            scope.annotated.add(node.id)  # looked up in the class, then in the module
        self.out.append((scope, node.id))

    def write_compare(self, node: ast.Compare, scope: Scope) -> None:
        self.out.append("compare(")
        self.close_types(node)
        self.write(node.left, scope)
        for operator, value in zip(node.ops, node.comparators, strict=True):
            self.out.append(KINDS[operator.__class__][0])
            if isinstance(operator, ast.In | ast.NotIn) and isinstance(value, ast.Name):
                self.write_borrowed(value, scope)  # of a dictionary, it sees the keys
            else:
                self.write(value, scope)
        self.out.append("]")

    def close_types(self, node: ast.Compare) -> None:
        """Note the types of objects that are compared by identity, or with names of classes."""
        sides = [node.left, *node.comparators]
        is_identity = all(isinstance(each, ast.Is | ast.IsNot) for each in node.ops)
        if not is_identity and any(map(is_type_of, sides)):
            for side in sides:
                parts = side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else [side]
                for part in parts:
                    if isinstance(part, ast.Name):
                        self.used_as_types.add(part.id)
                    elif not is_type_of(part):
                        raise ReflectsSource
                    self.close_type(part)
        elif is_identity:
            for side in sides:
                self.close_type(side)

    def write_formatted(self, node: ast.FormattedValue, scope: Scope) -> None:
        self.close_type(node.value)
        self.write_node(node, scope)

    # Calls

    def write_call(self, node: ast.Call, scope: Scope) -> None:
        self.out.append("(")
        consumer = self.consumed.pop(id(node), None)
        if isinstance(node.func, ast.Name) and node.func.id in allowed.TYPE_CONSUMERS:
            for arg in filter(is_type_of, node.args):
                self.used_as_known.add(node.func.id)
                self.close_type(arg)
        name, caller = self.write_callee(node, scope)
        if name and isinstance(node.func, ast.Name):
            self.calls.append((scope, name, consumer))
        if name in allowed.CALLED_ONLY:
            self.check_call(name, node)
        elif name == "Thread":  # whose fifth argument has keywords for a function
            self.any_keyword |= bool(node.args)
            if id(node) in self.closed:
                self.closed.update(map(id, node.keywords))
        elif name in allowed.CHECKED_ONLY:
            self.check_maker(name, node)
        self.write_args(node, name, caller, scope)
        self.write_keywords(node.keywords, scope, caller, allowed.HIGHER_ORDER.get(caller, ()))

    def write_args(self, call: ast.Call, name: str, caller: str, scope: Scope) -> None:
        places = allowed.HIGHER_ORDER.get(caller, ())
        consumers = allowed.CONSUMERS
        if not isinstance(call.func, ast.Name):  # numpy.max(x) may be x
            consumers = allowed.METHOD_CONSUMERS
        consumes = name in consumers and (len(call.args) == 1 or name in allowed.CONSUMERS_OF_MANY)
        if caller in allowed.MODULE_CONSUMERS and len(call.args) == 1:
            consumes, name = True, caller
        passes = isinstance(call.func, ast.Name) or last_name(call.func) == "wraps"
        passes &= scope.kind != CLASS
        for number, arg in enumerate(call.args):
            passes &= not isinstance(arg, ast.Starred)
            if consumes:
                self.consumed[id(arg)] = name
            if number in places:
                self.write_callback(caller, arg, scope)
            elif name == "type":  # which is checked
                self.write_borrowed(arg, scope)
            elif isinstance(arg, ast.Name) and passes:  # perhaps to a function of the program
                self.pass_on(name, number, arg, scope)
            else:
                self.write(arg, scope)

    def pass_on(self, callee: str, place: int, node: ast.Name, scope: Scope) -> None:
        """Write an argument; `callables.resolve` decides whether its value goes further."""
        if node.id in allowed.CALLED_ONLY | {"Thread"}:
            self.write(node, scope)
            return
        self.out.append((scope, node.id))
        if callee == "wraps":
            self.wrapped.append((scope, node.id))
        else:
            self.passed.append(Passed(scope, callee, place, node.id))

    def check_maker(self, name: str, call: ast.Call) -> None:
        """Check a call that makes attributes."""
        if name == "wraps":
            is_allowed = len(call.args) == 1 and not call.keywords
            is_allowed &= not any(isinstance(each, ast.Starred) for each in call.args)
        else:
            is_allowed = name in allowed.FIELD_MAKERS and has_literal_fields(call)
        if not is_allowed:
            raise ReflectsSource

    def write_callee(self, call: ast.Call, scope: Scope) -> tuple[str, str]:
        """Return the last name of what is called, and the same if it may be a known callable."""
        func = call.func
        if isinstance(func, ast.Attribute):
            checked = CHECKED_CALLS.get(func.attr)
            if checked is not None and isinstance(func.value, ast.Name) and checked(call):
                self.write_base(func.value, scope)
                self.out.append("." + func.attr)
                kind = "0" if func.attr in ("read", "fstat") else "ignore"
                self.name_attributes.add((scope, func.value.id, f"{func.attr}({kind})", ""))
                return func.attr, ""
            if func.attr == "start" and is_thread(func.value):
                self.closed.add(id(func.value))
                self.threads.append(None)
            self.write_dotted(func, scope)
            # A method `sort` is that of lists, unless the program has another one.
            is_known = func.attr == "sort" or isinstance(func.value, ast.Name)
            if func.attr == "format":
                return func.attr, ".format"  # of a literal
            if isinstance(func.value, ast.Name) and func.value.id in _QUALIFIED:
                return func.attr, f"{func.value.id}.{func.attr}"
            return func.attr, func.attr if is_known else ""
        if isinstance(func, ast.Name):
            self.write_borrowed_callee(func, scope)
            return func.id, func.id
        if isinstance(func, ast.Lambda):
            self.write_lambda(func, scope, "")
        elif isinstance(func, ast.Subscript):
            self.out.append("[")
            self.write_borrowed_callee(func.value, scope)
            self.write(func.slice, scope)
        else:
            self.write(func, scope)
        return "", ""

    def write_borrowed_callee(self, node: ast.expr, scope: Scope) -> None:
        if isinstance(node, ast.Name) and scope.kind != CLASS:
            self.out.append((scope, node.id))
        elif isinstance(node, ast.Name):
            scope.loaded.add(node.id)
            self.out.append((scope, node.id))
        else:
            self.write(node, scope)

    def write_callback(self, caller: str, node: ast.expr, scope: Scope) -> None:
        if isinstance(node, ast.Lambda):
            self.write_lambda(node, scope, caller)
        elif isinstance(node, ast.Name) and scope.kind != CLASS:
            self.callback_args.append((caller, scope, node.id))
            self.any_keyword |= node.id == "Thread"
            self.out.append((scope, node.id))
        elif isinstance(node, ast.Tuple) and caller in ("isinstance", "issubclass"):
            self.out.append("Tuple(")
            for item in node.elts:
                self.write_callback(caller, item, scope)
            self.out.append("]")
        else:
            self.write(node, scope)

    def write_keywords(
        self,
        keywords: list[ast.keyword],
        scope: Scope,
        caller: str = "",
        places: tuple[int | str, ...] = (),
    ) -> None:
        for keyword in keywords:
            name = keyword.arg
            if name is None:
                self.used_as_known.update(["dict"] if caller == "dict" else [])
                if isinstance(keyword.value, ast.Name) and caller not in ("dict", ".format"):
                    self.out += ("**", (scope, keyword.value.id))
                    self.forwarded.append((scope, keyword.value.id))
                    continue
                self.any_keyword |= caller not in ("dict", ".format")
            elif name in _KEYWORD_KEYWORDS:
                self.any_keyword = True
            else:
                self.keywords.add(name)
            self.out.append("**" if name is None else name + "=")
            if name == "metaclass" and isinstance(keyword.value, ast.Name):
                self.write_borrowed(keyword.value, scope)
            elif name == "target" and caller == "Thread" and id(keyword) in self.closed:
                self.write_callback(caller, keyword.value, scope)
            elif name == "metaclass" and isinstance(keyword.value, ast.Attribute):
                self.write_dotted(keyword.value, scope)
            elif name == "file" and last_name(keyword.value) == "stderr" and caller == "print":
                self.write_stderr(keyword.value, scope)
            elif name in places:
                self.write_callback(caller, keyword.value, scope)
            else:
                self.write(keyword.value, scope)
        self.out.append(")")

    def write_stderr(self, node: ast.expr, scope: Scope) -> None:
        """Write standard error as the file of `print`."""
        self.used_as_known.add("print")
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            self.write_base(node.value, scope)
            self.name_attributes.add((scope, node.value.id, "stderr", "write"))
            self.out.append(".stderr")
        elif isinstance(node, ast.Name):
            self.write_base(node, scope)
            self.name_attributes.add((scope, node.id, "write", ""))
        else:
            raise ReflectsSource

    # Hints

    def write_hint(self, node: ast.expr, scope: Scope, *, evaluated: bool = True) -> None:
        if is_plain(node) and (self.future_hints or not evaluated):
            return
        start = len(self.out)
        loaded, bases = scope.loaded, scope.attribute_bases
        scope.loaded, scope.attribute_bases = set(), set()
        self.out.append(":")
        self.write(node, scope)
        hint = Hint(node, self.statement, scope, scope.loaded, scope.attribute_bases)
        scope.loaded, scope.attribute_bases = loaded, bases
        scope.annotated |= hint.loaded | hint.attribute_bases
        if evaluated and not self.future_hints:
            self.hints.evaluated.append((start, len(self.out), hint))


#: Modules whose callables are known by their full names.
_QUALIFIED = ("collections", "math", "re", "statistics")
#: Keywords with which a library calls a function, or a class, with further keywords.
_KEYWORD_KEYWORDS = ("cls", "kw", "kwargs", "kwds")
_SPECIAL_WORD = re.compile(r"__\w+__")
