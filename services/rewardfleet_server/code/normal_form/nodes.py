"""Questions about single nodes of a syntax tree, and the words for their kinds."""

import ast
import string

from . import allowed


def does_nothing(node: object) -> bool:
    """Return whether it is `pass`, or a constant by itself."""
    return isinstance(node, ast.Pass) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )


def is_text(node: ast.AST | None) -> bool:
    """Return whether it is a literal string."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def is_special(name: str) -> bool:
    """Return whether a name is one of Python's own, like `__len__`."""
    return name.startswith("__") and name.endswith("__")


def is_private(name: str) -> bool:
    """Return whether a name begins with an underscore and is not one of Python's own."""
    return name.startswith("_") and name.strip("_") != "" and not is_special(name)


def last_name(node: ast.expr) -> str:
    """Return the name of a variable or an attribute; "" for anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def is_ordinary_error(node: ast.expr | None) -> bool:
    """Return whether it is surely no error that ends a generator."""
    if isinstance(node, ast.Tuple):
        return all(map(is_ordinary_error, node.elts))
    return isinstance(node, ast.Name) and node.id in allowed.ORDINARY_ERRORS


def is_plain_format(node: ast.expr) -> bool:
    """Return whether it is a literal format string that takes no attributes."""
    return is_text(node) and _takes_no_attributes(node.value)  # type: ignore[attr-defined]


def _takes_no_attributes(text: str) -> bool:
    try:
        fields = list(string.Formatter().parse(text))
    except ValueError:
        return False
    return all(
        "." not in (field or "") and ("{" not in (spec or "") or _takes_no_attributes(spec or ""))
        for _, field, spec, _ in fields
    )


def has_zero(call: ast.Call) -> bool:
    """Return whether it is a call for standard input."""
    first = call.args[0] if call.args else None
    return isinstance(first, ast.Constant) and first.value.__class__ is int and not first.value


def reads_zero(call: ast.Call) -> bool:
    """Return whether it opens standard input to read it."""
    mode = call.args[1] if len(call.args) > 1 else ast.Constant("r")
    modes = [mode, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    return (
        has_zero(call)
        and all(isinstance(each, ast.Constant) and each.value in _READ_MODES for each in modes)
        and not any(isinstance(each, ast.Starred) for each in call.args)
        and all(keyword.arg in _READ_KEYWORDS for keyword in call.keywords)
    )


_READ_MODES = ("r", "rb", "rt")
_READ_KEYWORDS = ("buffering", "encoding", "errors", "mode", "newline")


def is_type_of(node: ast.expr) -> bool:
    """Return whether it is `type(x)`: the type of an object."""
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return is_call and node.func.id == "type" and has_one_argument(node)  # type: ignore[attr-defined, arg-type]


def has_one_argument(call: ast.Call) -> bool:
    """Return whether a call has one argument, by position."""
    return len(call.args) == 1 and not isinstance(call.args[0], ast.Starred) and not call.keywords


def _ignores(call: ast.Call) -> bool:
    """Return whether it is a call that ignores warnings, wherever they come from."""
    match call.args, call.keywords:
        case [ast.Constant("ignore")], [] | [ast.keyword("category")]:
            return True
    return False


#: Functions of modules that are allowed with some arguments.
CHECKED_CALLS = {
    **dict.fromkeys(("read", "fstat"), has_zero),
    **dict.fromkeys(("filterwarnings", "simplefilter"), _ignores),
}

#: What `write_node` need not write, or another method writes.
_SKIPPED = {ast.MatchAs: ("name",), ast.MatchStar: ("name",), ast.MatchMapping: ("rest",)}

#: The word for each kind, which is no name, and its fields.
KINDS = {
    kind: (
        kind.__name__ + "(",
        tuple(
            field
            for field in kind._fields
            if field not in ("ctx", "kind", "simple", "type_comment", *_SKIPPED.get(kind, ()))
        ),
    )
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}
