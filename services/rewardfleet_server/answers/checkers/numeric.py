r"""A checker that evaluates both sides at random points. It shares nothing with math-verify.

A formula, in LaTeX or plain text, is rewritten as an expression of Python's grammar, which is read
by `ast` and never run: `\frac{1}{2}x` as `((1)/(2)) * x`, `[0, 1)` as `HalfOpen0(0, 1)`.
"""

import ast
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import mpmath
from mpmath import mp, mpf

#: Characters of a formula, items of a list, and the largest logarithm of a value. Limit the time.
_MAX_CHARACTERS, _MAX_ITEMS, _MAX_LOG = 2_000, 50, 100_000
#: Digits that are computed; those of the second try, where both sides are near; those that agree.
_DIGITS, _MORE_DIGITS, _EQUAL = 120, 240, mpf(10) ** -110

# fmt: off
_SIGNS = {
    "=": r"\approx \equiv \mapsto ≡", "<=": r"≤ \leq \le \leqslant",
    ">=": r"≥ \geq \ge \geqslant", "<": r"\lt", ">": r"\gt", "!=": r"≠ \neq \ne", "-": "− –",
    "/": r"÷ ⁄ \div", "*": r"× · ⋅ \cdot \times \ast", "**": "^", "%": r"\%", ",": r"\lor ∨ ;",
    "|": r"\cup ∪", " oo ": r"\infty ∞ \infinity infinity", " pi ": "π", " theta ": "θ",
    " alpha ": "α", " beta ": "β", " Set() ": r"\emptyset \varnothing ∅", " pm ": r"\pm ±",
    "~": r"\lvert \rvert \vert \mid ∣", "floor(": r"\lfloor ⌊", "ceil(": r"\lceil ⌈",
    ")": r"\rfloor \rceil ⌋ ⌉", " ⟦": r"\{", "⟧ ": r"\}", r"\sqrt ": "√", "** deg ": "°",
    " deg ": r"\circ \degree", "(1/2)": "½", "(1/4)": "¼", "(3/4)": "¾", "(1/3)": "⅓",
    "(2/3)": "⅔", r"\in ": "∈", " d ": r"\partial",
}
_SIGN_OF = {name: sign for sign, names in _SIGNS.items() for name in names.split()}
_SIGN = re.compile("|".join(
    re.escape(each) + ("(?![A-Za-z])" if each[-1].isalpha() else "")
    for each in sorted(_SIGN_OF, key=len, reverse=True)
))
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻ⁿ", "0123456789-n")
#: What only changes how a formula looks.
_LOOKS = re.compile(
    r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|limits|quad|qquad|mathstrut)(?![A-Za-z])"
    r"|\\[,;:!> ]|\$|\\\$|\.$|(?<=\d)\{,\}(?=\d{3})"
)
_TEXT = re.compile(
    r"\\(?:text|math[a-z]{2}|text[a-z]{2}|mbox|operatorname|vec|boldsymbol)\s*\{([^{}]*)\}"
)
_UNITS = re.compile(
    r"\s*(?:square |cubic |sq\.? )?(?:units?|[cmk]?m|in|inches|feet|ft|miles?|k?g|degrees?|"
    r"radians?|dollars?|cents?|hours?|minutes?|seconds?|days?|years?|meters?|people|ways|points?|"
    r"percent)\.?\s*"
)
_THOUSANDS = re.compile(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d,])")
_MATRIX = re.compile(
    r"\\begin\s*\{(?:[pbB]?matrix|array)\}(?:\{[^{}]*\})?(.*?)\\end\s*\{\w+\}", re.DOTALL
)
_ARGUMENT = r"(\((?:[^()]|\([^()]*\))*\)|\d*\\?[A-Za-z]+|[\d.]+)"
#: What is rewritten, from the innermost braces on.
_REWRITTEN = tuple((re.compile(pattern), to) for pattern, to in (
    (r"\\[dtc]frac", r"\\frac"),
    (r"\\frac\s*(\d)\s*(?=[\d{])", r"\\frac{\1}"),
    (r"\\frac\s*(\{[^{}]*\})\s*(\w)", r"\\frac\1{\2}"),
    (r"(?<![\w.])(\d+)\s*\\frac\s*\{(\d+)\}\s*\{(\d+)\}", r"(\1+\2/\3)"),
    (r"\\frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"((\1)/(\2))"),
    (r"\\[dt]?binom\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r" binom((\1),(\2))"),
    (r"\\?sqrt\s*\[([^\[\]{}]*)\]\s*\{([^{}]*)\}", r" root((\2),(\1))"),
    (r"\\?sqrt\s*(?:\{([^{}]*)\}|(\d|[a-z]))", r" sqrt(\1\2)"),
    (rf"\\?log\s*_\s*(?:\{{([^{{}}]*)\}}|(\w))\s*{_ARGUMENT}", r" logb((\1\2),(\3))"),
    (r"_\s*\{(\w*)\}", r"_\1"),
    (r"\\?(sin|cos|tan)\s*\*\*\s*[{(]?\s*-\s*1\s*[})]?", r" arc\1 "),
    (r"\\?(sin|cos|tan|cot|sec|csc|ln|log)\s*\*\*\s*(?:\{([^{}]*)\}|\(([^()]*)\)|(\w))\s*"
     + _ARGUMENT, r"( \1(\5))**(\2\3\4)"),
))
_GROUP = re.compile(r"(?<!frac)(?<!sqrt)(?<!binom)(?<!\})\{([^{}]*)\}")
_SAME_NAME = ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "exp", "floor",
              "ceil", "sqrt")
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(mpmath, name) for name in _SAME_NAME}, "binom": mpmath.binomial, "abs": abs,
    "ln": mpmath.log, "log": mpmath.log, "lg": mpmath.log10, "arcsin": mpmath.asin,
    "arccos": mpmath.acos, "arctan": mpmath.atan,
    "logb": lambda base, x: mpmath.log(x) / mpmath.log(base),
    "root": lambda x, n: -_power(-x, 1 / n) if _is_negative(x) and n % 2 == 1 else _power(x, 1 / n),
    "fact": lambda x: mpmath.factorial(x) if abs(x) < 500 else _refuse("a large factorial"),
}
_STRUCTURES = {"Set", "Matrix", "Row", "HalfOpen0", "HalfOpen1"}
_NAMES = {"pi": mpmath.pi, "e": mpmath.e, "i": mpmath.mpc(0, 1), "oo": mpmath.inf}
_NAMES["inf"] = mpmath.inf
_KNOWN = _FUNCTIONS.keys() | _NAMES.keys() | _STRUCTURES | {"pm", "deg", "fact"}
_GREEK = ("alpha beta gamma delta epsilon varepsilon zeta eta theta kappa lambda mu nu xi rho "
          "sigma tau phi varphi chi psi omega ell hbar Delta Omega Gamma Sigma Phi Theta angle")
_WORDS = "|".join(sorted({*_KNOWN, *_GREEK.split()}, key=len, reverse=True))
_TOKEN = re.compile(
    rf"\d+(?:\.\d+)?[eE][-+]?\d+|\d+\.?\d*|\.\d+|\\?(?:{_WORDS})(?:_\w+)?|[A-Za-z](?:_\w+)?|\*\*|[<>!=]=|\S"
)
_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b, ast.Pow: lambda a, b: _power(a, b),  # noqa: PLW0108 - below
}
_FLIPPED: dict[type, type] = {ast.Gt: ast.Lt, ast.GtE: ast.LtE}
# fmt: on


class Unreadable(Exception):
    """A text is no formula that can be read here."""


def _refuse(why: str) -> Any:
    raise Unreadable(why)


def compare(answer: str, reference: str, form: str, tolerance: float | None = None) -> bool:
    """Return whether an answer equals the reference.

    Raises:
        Unreadable: One of them cannot be read.
    """
    mp.dps = _DIGITS
    given, right = parse(answer), parse(reference)
    ordered = form == "list"
    if form in {"set", "list"} or len(given) != len(right):
        lists = [_named(each) for each in (given, right)]
        is_tuple = any(len(each) == 1 and _kind(each[0]) == "Tuple" for each in lists)
        given, right = (sorted(each, key=_name_of) if is_tuple else each for each in lists)
        ordered = ordered or (form != "set" and is_tuple)
        given, right = _items(given), _items(right)
    return _Comparison(tolerance).all_equal(given, right, ordered=ordered)


def parse(text: str) -> list[ast.expr]:
    """Return the items of a formula: one, unless it is a list without brackets.

    Raises:
        Unreadable: It is none.
    """
    if len(text) > _MAX_CHARACTERS:
        _refuse("too long")
    text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻ⁿ]+", lambda m: f"^{{{m[0].translate(_RAISED)}}}", text)
    if not re.search(r"[(\[{]", text):
        text = _THOUSANDS.sub(lambda m: m[0].replace(",", ""), text)
    text = _TEXT.sub(lambda m: " " if _UNITS.fullmatch(m[1]) else f" {m[1]} ", text)
    text = _MATRIX.sub(_matrix, text)
    text = _SIGN.sub(lambda m: _SIGN_OF[m[0]], _LOOKS.sub(" ", text))
    text = re.sub(r"\b([A-Za-z])\(\s*(\d+)\s*\)(?=\s*(?:=|,|$))", r"\1_\2", text)  # f(0)
    if re.fullmatch(r"\W*(?:(?:all )?real(?: number)?s?|\\mathbb\s*\{?R\}?)\W*", text):
        text = "(-oo, oo)"
    text = re.sub(r"(?i)^\W*no (?:real )?solutions?\W*$", "Set()", text)
    text = re.sub(r"⟦\s*\w\s*(?:\\in\s*\\?\w+\s*)?[~:|](.*)⟧", r"\1", text)  # { x : x > 2 }
    text = re.sub(r",?\s*(?:for\s)?\s*[a-z]\s*\\in\s*\\mathbb\s*\{?[ZN]\}?", "", text)
    text = re.sub(r"^[^,]*?\\in(?![A-Za-z])|^\s*[A-Z]\s*(?=\(.*,)", "", text)  # x in, or a point A
    degrees = "*pi/180" if re.search("sin|cos|tan", text) else ""
    text = re.sub(r"\*\*\s*\{?\s*deg\s*\}?", degrees, text)
    if re.fullmatch(r"[\d.\s]+(?::[\d.\s]+)+", text):  # a ratio
        first, *others = text.split(":")
        text = ",".join(f"({each})/({first})" for each in others)
        text = f"({first})/({others[0]})" if len(others) == 1 else f"({text})"
    before = ""
    while before != text:
        before = text
        for pattern, to in _REWRITTEN:
            text = pattern.sub(to, text)
        if before == text:
            text = _GROUP.sub(r"(\1)", text, count=1)
    text = text.replace("⟦", "Set(").replace("⟧", ")")
    if not re.search(r"[\])]\s*\|\s*(?:[\[(]|Set)", text):  # no union
        text = text.replace("|", "~")
    text = re.sub(r"~([^~]*)~", r" abs(\1)", text)
    if re.search(r"\band\b", text) and re.search("[<>]", text):
        _refuse("inequalities that hold together")
    if (call := re.match(r"\s*([A-Za-z])\s*\(.*\)\s*=", text)) and f"{call[1]}(" in text[
        call.end() :
    ]:
        _refuse("a recursion")
    text = re.sub(r",(?:\s*,)+", ",", re.sub(r"\b(?:or|and)\b", ",", text)).strip(" ,")
    if re.search(r"[A-Za-z]{4}", re.sub(rf"\\?(?:{_WORDS})", "", text)):
        _refuse("it has words")
    pm = re.compile(r"\bpm\b")
    forms = [pm.sub(sign, text) for sign in "+-"] if pm.search(text) else [text]
    try:
        calls = [ast.parse(f"Set({_python(each)})", mode="eval").body for each in forms]
    except (SyntaxError, ValueError, RecursionError) as error:
        raise Unreadable(str(error)) from None
    return [item for call in calls for item in _parts(call)] or _refuse("empty")


def _matrix(match: re.Match[str]) -> str:
    rows = [row.replace("&", ",") for row in match[1].split(r"\\") if row.strip()]
    return f"Matrix({', '.join(f'Row({row})' for row in rows)})"


def _python(text: str) -> str:
    """Return a formula with all operators and brackets."""
    signs = [
        each.removeprefix("\\") or _refuse("an unknown command") for each in _TOKEN.findall(text)
    ]
    opened: list[int] = []
    for place, sign in enumerate(signs):
        if sign in "([":
            opened.append(place)
        elif sign in ")]" and opened:
            opening = opened.pop()
            if (kind := signs[opening] + sign) in {"[)", "(]"}:
                signs[opening], signs[place] = f"HalfOpen{int(kind == '(]')}(", ")"
    out, calls = [""], 0  # and functions whose argument has no brackets
    for place, sign in enumerate(signs):
        is_end = sign in "+-,)]|" or sign in _FUNCTIONS or (sign[0] in "<>=!" and sign != "!")
        if calls and out[-1] != "(" and is_end:
            out.append(")" * calls)
            calls = 0
        is_call = out[-1] in _FUNCTIONS.keys() | _STRUCTURES and sign == "("
        is_factor = out[-1][-1:].isalnum() or out[-1][-1:] in {")", "]", ".", "_"}
        if is_factor and not is_call and (sign[0].isalnum() or sign[0] in "(["):
            out.append("*")
        plain = _exact(sign) if sign[-1].isdigit() and sign[0] in ".0123456789" else sign
        out.append({"!": "**fact", "%": "/100", "=": "=="}.get(sign, plain))
        if sign in _FUNCTIONS and signs[place + 1 : place + 2] != ["("]:
            out.append("(")
            calls += 1
    return " ".join(out) + ")" * calls


def _exact(number: str) -> str:
    """Return a number without a point, which Python would round."""
    digits, _, exponent = number.lower().partition("e")
    whole, _, fraction = digits.partition(".")
    power = int(exponent or 0) - len(fraction)
    if abs(power) > _MAX_LOG:
        _refuse("a large exponent")
    value = int(f"{whole}{fraction}")
    return str(value) if power == 0 else f"({value}*10**({power}))"


class _Comparison:
    def __init__(self, tolerance: float | None) -> None:
        self.share = _EQUAL if tolerance is None else mpf(tolerance)
        self.of_zero = tolerance or 0  # what equals 0

    def all_equal(self, a: Sequence[ast.expr], b: Sequence[ast.expr], *, ordered: bool) -> bool:
        if len(a) != len(b) or len(a) > _MAX_ITEMS:
            return False
        rest = list(b)
        for each in a:
            places = [0] if ordered else range(len(rest))
            place = next((n for n in places if self.equal(each, rest[n])), None)
            if place is None:
                return False
            rest.pop(place)
        return True

    def equal(self, a: ast.expr, b: ast.expr) -> bool:
        if isinstance(a, ast.Compare) or isinstance(b, ast.Compare):
            is_other = len({*map(type, (a, b))}) == 1 and _variables([a]) != _variables([b])
            if is_other and _interval(a) is not a:
                return False
            return self.relations(_interval(a), _interval(b))
        a, b = (
            _parts(each)[0] if _kind(each) == "List" and len(_parts(each)) == 1 else each
            for each in (a, b)
        )
        kinds = {_kind(a), _kind(b)}
        if kinds == {""}:
            return self.values(a, b)
        if len(kinds) == 2 and "Matrix" in kinds and kinds <= {"Matrix", "Tuple", "List"}:
            rows = [_parts(each) for each in (a, b)]
            is_vector = all(
                not _kind(row[0]) or len(row) == 1 or all(len(_parts(each)) == 1 for each in row)
                for row in rows
            )
            both = [_leaves(each) if is_vector else _parts(each) for each in (a, b)]
            return self.all_equal(*both, ordered=True)
        if kinds <= {"Row", "List", "Tuple"} and "Row" in kinds:
            return self.all_equal(_parts(a), _parts(b), ordered=True)
        ordered = not kinds & {"Set", "Union"}
        return len(kinds) == 1 and self.all_equal(_parts(a), _parts(b), ordered=ordered)

    def relations(self, a: ast.expr, b: ast.expr) -> bool:
        if not (isinstance(a, ast.Compare) and isinstance(b, ast.Compare)):
            a, b = _right_side(a), _right_side(b)
            return ast.Compare not in {type(a), type(b)} and self.equal(a, b)
        ops = [_FLIPPED.get(type(each.ops[-1]), type(each.ops[-1])) for each in (a, b)]
        sides = [ast.BinOp(each.left, ast.Sub(), each.comparators[-1]) for each in (a, b)]
        values = [[_value(side, point) for side in sides] for point in _points(sides)]
        ratios = [x / y for x, y in values if x and y]
        if (
            ops[0] is not ops[1]
            or len(ratios) < 2
            or any(abs(r - ratios[0]) > _EQUAL * abs(r) for r in ratios)
        ):
            return False
        is_flipped = type(a.ops[-1]) is not type(b.ops[-1])
        return ops[0] in {ast.Eq, ast.NotEq} or _is_negative(ratios[0]) == is_flipped

    def values(self, a: ast.expr, b: ast.expr) -> bool:
        tried = [(p, _value(a, p), _value(b, p)) for p in _points([a, b])]
        known = [each for each in tried if each[1] is not None and each[2] is not None]
        if all("C" in _variables([each]) for each in (a, b)):  # constants of integration
            shifts = [mpmath.re(x - y) for _, x, y in known[:3]]
            return len(shifts) > 1 and all(abs(each - shifts[0]) < _EQUAL * 100 for each in shifts)
        # At points that are not positive, roots and logarithms have branches.
        counted = [each for each in known if each in tried[:3] or not any(map(mpmath.im, each[1:]))]
        return bool(counted) and all(self.near(x, y) or _vanishes(a, b, p) for p, x, y in counted)

    def near(self, x: Any, y: Any) -> bool:
        if mpmath.isinf(x) or mpmath.isinf(y):
            return bool(x == y)
        return bool(abs(x - y) <= self.share * abs(y) or (y == 0 and abs(x) <= self.of_zero))


def _vanishes(a: ast.expr, b: ast.expr, point: dict[str, Any]) -> bool:
    """Return whether a difference is one of rounding: it shrinks as digits are added."""
    if abs(_value(a, point) - _value(b, point)) > mpf(10) ** -80:
        return False
    with mp.workdps(_MORE_DIGITS):
        return bool(abs(_value(a, point) - _value(b, point)) < mpf(10) ** -200)


def _variables(trees: Sequence[ast.expr]) -> set[str]:
    nodes = [node for tree in trees for node in ast.walk(tree)]
    return {node.id for node in nodes if isinstance(node, ast.Name)} - _KNOWN


def _points(trees: Sequence[ast.expr]) -> list[dict[str, Any]]:
    """Return values of the variables: three times positive ones, then others."""
    variables = sorted(_variables(trees))
    chance = random.Random(7)  # noqa: S311 - the same each time
    ranges = [(0.3, 2.9)] * 3 + [(-2.9, 2.9)] * 3 if variables else [(0, 1)]
    return [{name: mpf(chance.uniform(*each)) for name in variables} for each in ranges]


def _value(tree: ast.expr, point: dict[str, Any]) -> Any:
    """Return the value of a formula; None where it has none."""
    try:
        value = _evaluated(tree, point)
    except (ZeroDivisionError, ValueError, OverflowError, TypeError):
        return None
    return None if mpmath.isnan(value) else value


def _evaluated(tree: ast.expr, point: dict[str, Any]) -> Any:  # noqa: PLR0911 - one for each
    match tree:
        case ast.Constant(value=int() | float()):
            return mpf(ast.unparse(tree))
        case ast.Name(id=name) if name in point or name in _NAMES:
            return point[name] if name in point else +_NAMES[name]
        case ast.UnaryOp(op=op, operand=operand):
            return _evaluated(operand, point) * (-1 if isinstance(op, ast.USub) else 1)
        case ast.BinOp(op=ast.Pow(), left=left, right=ast.Name(id="fact")):
            return _FUNCTIONS["fact"](_evaluated(left, point))
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_evaluated(left, point), _evaluated(right, point))
        case ast.Call(func=ast.Name(id=name), args=args) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_evaluated(each, point) for each in args))
    return _refuse("a structure within a formula")


def _power(base: Any, exponent: Any) -> Any:
    if abs(exponent) > 1 and base and abs(exponent * mpmath.log(abs(base))) > _MAX_LOG:
        _refuse("a large power")
    return base**exponent


def _is_negative(value: Any) -> bool:
    return bool(mpmath.im(value) == 0 and mpmath.re(value) < 0)


def _kind(tree: ast.expr) -> str:
    """Return the structure that a tree is; empty for a formula."""
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.BitOr):
        return "Union"
    name = getattr(tree.func, "id", "") if isinstance(tree, ast.Call) else type(tree).__name__
    return name if name in _STRUCTURES | {"Tuple", "List"} else ""


def _parts(tree: Any) -> list[ast.expr]:
    if _kind(tree) == "Union":
        sides = [
            [each] if _kind(each) != "Union" else _parts(each) for each in (tree.left, tree.right)
        ]
        return [part for side in sides for part in side]
    return list(tree.args if isinstance(tree, ast.Call) else tree.elts)


def _leaves(tree: ast.expr) -> list[ast.expr]:
    """Return the entries of a matrix, row by row."""
    return [leaf for part in _parts(tree) for leaf in _leaves(part)] if _kind(tree) else [tree]


def _items(trees: Sequence[ast.expr]) -> list[ast.expr]:
    """Return the items of a list, whatever its brackets."""
    first = _right_side(trees[0])
    if len(trees) > 1 or _kind(first) in {"", "HalfOpen0", "HalfOpen1"}:
        return [*trees] if len(trees) > 1 else [first]
    return _leaves(first) if _kind(first) == "Matrix" else _parts(first)


def _named(trees: Sequence[ast.expr]) -> list[ast.expr]:
    """Return `(x, y) = (1, 2)` as two equations; other items as they are."""
    match trees:
        case [ast.Compare(left=ast.Tuple(elts=names), comparators=[ast.Tuple(elts=values)])]:
            pairs = zip(names, values, strict=False)
            return [ast.Compare(name, [ast.Eq()], [value]) for name, value in pairs]
    return [*trees]


def _name_of(tree: ast.expr) -> str:
    return ast.unparse(tree.left) if isinstance(tree, ast.Compare) else ""


def _interval(tree: ast.expr) -> ast.expr:
    """Return the interval that an inequality of one variable is; the tree, if it is none."""
    ops = [type(op) for op in tree.ops] if isinstance(tree, ast.Compare) else []
    sides: list[Any] = [tree.left, *tree.comparators] if isinstance(tree, ast.Compare) else []
    if {*ops} <= _FLIPPED.keys():
        ops, sides = [_FLIPPED[op] for op in reversed(ops)], sides[::-1]
    if not {*ops} <= {*_FLIPPED.values()} or not 1 <= len(ops) <= 2:
        return tree
    oo: ast.expr = ast.Name("oo")
    if len(ops) == 1 and getattr(getattr(sides[0], "func", None), "id", "") == "abs":
        ops, sides = ops * 2, [ast.UnaryOp(ast.USub(), sides[1]), sides[0].args[0], sides[1]]
    elif len(ops) == 1:  # x < 2, or 2 < x
        is_low = bool(_variables(sides[1:]))
        ops = [*ops, ast.Lt] if is_low else [ast.Lt, *ops]
        sides = [*sides, oo] if is_low else [ast.UnaryOp(ast.USub(), oo), *sides]
    if not isinstance(sides[1], ast.Name) or _variables([sides[0], sides[2]]):
        return tree
    ends = [sides[0], sides[2]]
    if ops[0] is ops[1]:
        return ast.Tuple(ends) if ops[0] is ast.Lt else ast.List(ends)
    return ast.Call(ast.Name(f"HalfOpen{int(ops[0] is ast.Lt)}"), ends, [])


def _right_side(tree: ast.expr) -> ast.expr:
    """Return the value of an equation such as `x = 5`, `f(x) = x^2` or `6! = 720`."""
    if not (isinstance(tree, ast.Compare) and isinstance(tree.ops[-1], ast.Eq)):
        return tree
    left, value = tree.left, tree.comparators[-1]
    nodes = [*ast.walk(left)]
    is_label = all(
        isinstance(n, ast.Name | ast.BinOp | ast.Mult | ast.Div | ast.Load) for n in nodes
    )
    is_name = is_label or isinstance(left, ast.Tuple)
    if is_name or len(tree.ops) > 1:
        return value
    is_true = not _kind(value) and not _variables([tree]) and _Comparison(None).values(left, value)
    return value if is_true or isinstance(left, ast.Call) else tree
