"""A checker that evaluates both sides at random points. It shares nothing with math-verify."""

import operator
import random
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple

import mpmath
from mpmath import mp, mpf
from sympy.core.alphabets import greeks

#: Characters of a formula, items of a list, and the largest exponent. Limit the time.
_MAX_CHARACTERS, _MAX_ITEMS, _MAX_POWER = 2_000, 50, 100_000
#: Digits that are computed, and how much equal values may differ, as a share.
_DIGITS, _EQUAL = 120, mpf(10) ** -110

# fmt: off
_SIGNS = {
    "=": r"\approx \equiv \mapsto ≡", "<=": r"≤ \leq \le \leqslant", "**": "^", "%": r"\%",
    ">=": r"≥ \geq \ge \geqslant", "<": r"\lt", ">": r"\gt", "!=": r"≠ \neq \ne", "/": r"÷ ⁄ \div",
    "*": r"× · ⋅ \cdot \times \ast", ",": r"\lor ∨ ;", "∪": r"\cup", " d ": r"\partial",
    " oo ": r"\infty ∞ \infinity infinity inf", " pi ": "π", " theta ": "θ", " alpha ": "α",
    " beta ": "β", "⟦⟧": r"\emptyset \varnothing ∅", "±": r"\pm", "⟦": r"\{", "⟧": r"\}",
    "|": r"\lvert \rvert \vert \mid ∣", "floor(": r"\lfloor ⌊", "ceil(": r"\lceil ⌈", r"\in ": "∈",
    ")": r"\rfloor \rceil ⌋ ⌉", r"\sqrt ": "√", "**°": "°", "-": "− –",
    "(1/2)": "½", "(1/4)": "¼", "(3/4)": "¾", "(1/3)": "⅓", "(2/3)": "⅔", "°": r"\circ \degree",
}
_SIGN_OF = {name: sign for sign, names in _SIGNS.items() for name in names.split()}
_SIGN = "|".join(re.escape(each) + ("(?![A-Za-z])" if each[-1].isalpha() else "")
                 for each in sorted(_SIGN_OF, key=len, reverse=True))
_UNIT = (r"(?:square |cubic |sq\.? )?(?:units?|[cmk]?m|in|inches|feet|ft|miles?|k?g|degrees?|"
         r"radians?|dollars?|cents?|hours?|minutes?|seconds?|days?|years?|meters?|people|ways)")
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻ⁿ"
_LOWERED = str.maketrans(_RAISED, "0123456789-n")
#: What is rewritten before a formula is read, in this order.
_REWRITTEN: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"(?<![\d,.(\[{])\d{1,3}(?:,\d{3})+(?![\d,)\]}])", lambda m: m[0].replace(",", "")),
    (rf"\\(?:text(?:[a-z]{{2}})?|math[a-z]{{2}}|mbox|operatorname|vec)\s*"  # noqa: ISC004
     rf"\{{(?:\s*{_UNIT}\.?\s*|([^{{}}]*))\}}", r" \1 "),
    (f"[{_RAISED}]+", lambda m: f"^{{{m[0].translate(_LOWERED)}}}"),
    (r"\\begin\s*\{(?:[pbB]?matrix|array)\}(?:\{[^{}]*\})?(.*?)\\end\s*\{\w+\}",
     lambda m: _matrix(m[1])),
    (r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|limits|q?quad)(?![A-Za-z])", " "),
    (r"\\[,;:!> ]|\\?\$|\.$", " "),
    (_SIGN, lambda m: _SIGN_OF[m[0]]),
    (r"^(?=.*[<>]).*\band\b", lambda _: _refuse("inequalities that hold together")),
    (r"\\[dtc](?=frac|binom)", r"\\"),
    (r"\\(frac|binom)\s*(\d)\s*(\d)", r"\\\1{\2}{\3}"),
    (r"(?<![\w.])(\d+)\s*\\frac\s*\{(\d+)\}\s*\{(\d+)\}", r"(\1+\2/\3)"),
    (r"⟦\s*\w\s*(?:\\in\s*\\?\w+\s*)?[|:](.*)⟧", r"\1"),  # { x : x > 2 }
    (r"\|([^|]*)\|", r" abs(\1)"),
    (r"^[^,]*?\\in(?![A-Za-z])|^\s*[A-Z]\s*(?=\(.*,)", ""),  # x in, or a point A
    (r"^\s*([\d.]+)\s*:\s*([\d.]+)\s*$", r"(\1)/(\2)"),
    (r"(?<!log)_\s*\{(\w+)\}", r"_\1"), (r"\b(?:or|and)\b", ","),
    (r"^[\s,]+|[\s,]+$|,(?=(?:\s*,)+)", ""),
)
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(mpmath, name) for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh",
       "cosh", "tanh", "exp", "floor", "ceil", "sqrt")},
    "ln": mpmath.log, "lg": mpmath.log10, "arcsin": mpmath.asin, "arccos": mpmath.acos,
    "log": lambda x, base=mpmath.e: mpmath.log(x) / mpmath.log(base), "arctan": mpmath.atan,
    "binom": mpmath.binomial, "abs": abs, "frac": operator.truediv, "/": operator.truediv,
    "+": operator.add, "-": operator.sub, "*": operator.mul, "neg": operator.neg,
    "%": lambda x: x / 100,
    "**": lambda x, n: x**n if abs(n) <= _MAX_POWER else _refuse("a large power"),
    "root": lambda x, n: -((-x) ** (1 / n)) if (mpmath.sign(x), n % 2) == (-1, 1) else x ** (1 / n),
    "!": lambda x: mpmath.factorial(x) if abs(x) < 500 else _refuse("a large factorial"),
}
_NAMES = {"pi": mpmath.pi, "e": mpmath.e, "i": mpmath.mpc(0, 1), "oo": mpmath.inf}
_CALLED = {name for name in _FUNCTIONS if name.isalpha()} - {"neg", "root"}
_LONG_NAMES = *greeks, *map(str.title, greeks), "varepsilon", "varphi", "ell", "hbar", "angle", "oo"
_CALL, _NAME = ("|".join(sorted(each, key=len, reverse=True)) for each in (_CALLED, _LONG_NAMES))
_TOKEN = re.compile(
    rf"\d+(?:\.\d+)?[eE][-+]?\d+|\d+\.?\d*(?!_)|\.\d+|\\?(?:{_CALL})|"
    rf"\\?(?:{_NAME}|(?<!\\)[A-Za-z]|\d+(?=_))(?:_\s*(?:\w|\{{\w+\}}))?|\*\*|[<>!=]=|\S"
)
_BRACKETS = "()", "[]", "[)", "(]", "⟦⟧", "{}"
_STRUCTURES, _UNORDERED = {*_BRACKETS, "∪"}, {"⟦⟧", "∪"}
#: Relations, and what those that are not reversed are called.
_RELATIONS = {"=": "=", "==": "=", "!=": "!=", "<": "<", "<=": "<=", ">": "<", ">=": "<="}
_BINDS = {"∪": 0, "+": 1, "-": 1, "*": 2, "/": 2}  #: binary operators, and how much they bind
# fmt: on


class Unreadable(Exception):
    """A text is no formula that can be read here."""


def _refuse(why: str) -> Any:
    raise Unreadable(why)


class _Node(NamedTuple):
    kind: str  #: an operator, a function, brackets or `relation`; or a number or a name
    args: tuple["_Node", ...] = ()
    signs: tuple[str, ...] = ()  #: those between the sides of a relation

    @property
    def variables(self) -> set[str]:
        is_name = re.match(r"[^\W\d]|.+_", self.kind) and self.kind not in _NAMES
        own = {self.kind} if is_name and not self.args else set()
        return own.union(*(each.variables for each in self.args))


_OO = _Node("oo")


def compare(answer: str, reference: str, form: str, tolerance: float | None) -> bool:
    """Return whether an answer equals the reference; raise Unreadable if one is no formula."""
    mp.dps = _DIGITS
    given, right = parse(answer), parse(reference)
    is_tuple = any(len(each) == 1 and each[0].kind == "()" for each in (given, right))
    ordered = form == "list" or (is_tuple and form != "set")
    if form in {"set", "list"} or len(given) != len(right):
        given, right = _items(given), _items(right)
    share = _EQUAL if tolerance is None else mpf(tolerance)
    return _all_equal(given, right, share, ordered=ordered)


def parse(text: str) -> Sequence[_Node]:
    """Return the items of a formula: several of a list only; raise Unreadable for no formula."""
    if len(text) > _MAX_CHARACTERS:
        _refuse("too long")
    for pattern, to in _REWRITTEN:
        text = re.sub(pattern, to, text, flags=re.DOTALL)
    if re.search(r"[A-Za-z]{4}", re.sub(rf"\\?(?:{_CALL}|{_NAME})", "", text)):
        _refuse("it has words")
    degree = "(pi/180)" if re.search("sin|cos|tan", text) else ""
    text = re.sub(r"\*\*\s*\{?\s*°\s*\}?", degree, text)
    signs = "+-" if "±" in text else " "
    return [item for sign in signs for item in _Reader(text.replace("±", sign)).items("")]


class _Reader:
    def __init__(self, text: str) -> None:
        tokens = [each.removeprefix("\\") for each in _TOKEN.findall(text)]
        self.tokens = [*tokens, ""] if all(tokens) else _refuse("an unknown command")

    def take(self, *wanted: str) -> str:
        """Return the next token if it is one of some, else an empty text."""
        return self.tokens.pop(0) if self.tokens[0] in wanted else ""

    def items(self, opening: str) -> tuple[_Node, ...]:
        items = [] if opening + self.tokens[0] in _BRACKETS else [self.relation()]
        while self.take(","):
            items.append(self.relation())
        return tuple(items) if opening or self.tokens == [""] else _refuse(self.tokens[0])

    def relation(self) -> _Node:
        sides, signs = [self.formula()], []
        while sign := self.take(*_RELATIONS):
            signs.append(sign)
            sides.append(self.formula())
        order = -1 if ">" in "".join(signs) else 1
        named = tuple(_RELATIONS[each] for each in signs[::order])
        return _Node("relation", tuple(sides[::order]), named) if signs else sides[0]

    def formula(self, lowest: int = 0) -> _Node:
        """Read operators that bind at least so much; a product may have no sign."""
        node = self.factor()
        while (binds := _BINDS.get(self.tokens[0], 2 if self.has_factor() else -1)) >= lowest:
            sign = self.take(*_BINDS) or "*"
            node = _Node(sign, (node, self.formula(binds + 1)))
        return node

    def has_factor(self) -> bool:
        """Return whether a factor follows without a sign."""
        return bool(re.match(r"[\w.(\[{]", self.tokens[0]))

    def factor(self) -> _Node:
        if sign := self.take("-", "+"):
            return _Node("neg", (self.factor(),)) if sign == "-" else self.factor()
        node = self.atom()
        while sign := self.take("!", "%", "**"):
            node = _Node(sign, (node, self.factor()) if sign == "**" else (node,))
        return node

    def atom(self) -> _Node:
        first = self.tokens.pop(0) if len(self.tokens) > 1 else _refuse("its end")
        if first in {"(", "[", "{", "⟦"}:
            items = self.items(first)
            kind = first + self.take(*")]}⟧")
            if kind not in _BRACKETS:
                _refuse(kind)
            is_group = len(items) == 1 and first != "⟦"
            return items[0] if is_group else _Node("⟦⟧" if kind == "{}" else kind, items)
        if first in _CALLED:
            return self.call(first)
        return _Node(first) if re.match(r"\w|\.\d", first) else _refuse(first)

    def call(self, name: str) -> _Node:
        """Read a function, its power, base and argument: `sin^2 x`, `log_2 8`, `sqrt[3]{x}`."""
        if name in {"frac", "binom"}:
            return _Node(name, (self.atom(), self.atom()))
        if name == "sqrt":
            degree = [self.atom()] if self.tokens[0] == "[" else []
            return _Node("root" if degree else "sqrt", (self.atom(), *degree))
        base = [self.atom()] if self.take("_") else []
        power = self.factor() if self.take("**") else None
        if power == _Node("neg", (_Node("1"),)):
            name, power = f"arc{name}", None
        has_brackets = self.tokens[0] in {"(", "{"}
        argument = self.atom() if has_brackets else self.factor()
        while not has_brackets and self.has_factor() and self.tokens[0] not in _CALLED:
            argument = _Node("*", (argument, self.factor()))
        node = _Node(name, (argument, *base))
        return _Node("**", (node, power)) if power else node


def _all_equal(a: Sequence[_Node], b: Sequence[_Node], share: mpf, *, ordered: bool = True) -> bool:
    if len(a) != len(b) or len(a) > _MAX_ITEMS:
        return False
    rest = list(b)
    for each in a:
        candidates = rest[:1] if ordered else rest
        same = next((other for other in candidates if _equal(each, other, share)), None)
        if same is None:
            return False
        rest.remove(same)
    return True


def _equal(a: _Node, b: _Node, share: mpf) -> bool:
    if a.signs and b.signs:
        x, y = _interval(a), _interval(b)
        are_intervals = a.variables == b.variables and not (x.signs or y.signs)
        return _same_relation(a, b) or (are_intervals and _equal(x, y, share))
    a, b = (_right_side(_interval(each)) for each in (a, b))
    if {a.kind, b.kind} & _STRUCTURES or a.signs or b.signs:
        ordered = a.kind not in _UNORDERED
        return a.kind == b.kind and _all_equal(a.args, b.args, share, ordered=ordered)
    return _same_value(a, b, share)


def _same_relation(a: _Node, b: _Node) -> bool:
    sides = zip(a.signs, pairwise(a.args), pairwise(b.args), strict=False)
    return a.signs == b.signs and all(
        _is_multiple(_Node("-", x), _Node("-", y), is_order="<" in sign) for sign, x, y in sides
    )


def _is_multiple(a: _Node, b: _Node, *, is_order: bool) -> bool:
    values = [(_value(a, point), _value(b, point)) for point in _points(a, b)]
    ratios = [x / y for x, y in values if x and y]
    is_same = len(ratios) > 1 and all(abs(x - ratios[0]) <= _EQUAL * abs(x) for x in ratios)
    return is_same and not (is_order and mpmath.sign(ratios[0]) == -1)


def _same_value(a: _Node, b: _Node, share: mpf = _EQUAL) -> bool:
    tried = [(_value(a, point), _value(b, point)) for point in _points(a, b)]
    known = [each for each in tried if None not in each]
    if "C" in a.variables & b.variables:  # constants of integration
        shifts = [mpmath.re(x - y) for x, y in known[:3]]
        return len(shifts) > 1 and all(abs(each - shifts[0]) < _EQUAL * 100 for each in shifts)
    # At points that are not positive, roots and logarithms have branches.
    counted = [each for each in known if each in tried[:3] or not any(map(mpmath.im, each))]
    return bool(counted) and all(
        x == y or (mpmath.isfinite(y) and abs(x - y) <= share * (abs(y) or 1)) for x, y in counted
    )


def _points(a: _Node, b: _Node) -> list[dict[str, Any]]:
    """Return values of the variables: three times positive ones, then others."""
    variables = sorted(a.variables | b.variables)
    chance = random.Random(7)  # noqa: S311 - the same each time
    ranges = [(0.3, 2.9)] * 3 + [(-2.9, 2.9)] * 3 if variables else [(0, 1)]
    return [{name: mpf(chance.uniform(*each)) for name in variables} for each in ranges]


def _value(node: _Node, point: dict[str, Any]) -> Any:
    """Return the value of a formula; None where it has none."""
    if node.kind in _FUNCTIONS:
        args = [_value(each, point) for each in node.args]
        with suppress(ZeroDivisionError, ValueError, OverflowError, TypeError):
            value = _FUNCTIONS[node.kind](*args)
            return None if mpmath.isnan(value) else value
        return None
    if node.args or node.kind in _STRUCTURES:
        _refuse("a structure within a formula")
    if node.kind in _NAMES:
        return +_NAMES[node.kind]
    return point[node.kind] if node.kind in point else mpf(node.kind)


def _matrix(rows: str) -> str:
    """Return a matrix as a list of lists, a column as a tuple."""
    brackets, between = ("[[%s]]", "],[") if "&" in rows else ("(%s)", ",")
    return brackets % rows.strip("\\ \n").replace("&", ",").replace(r"\\", between)


def _items(nodes: Sequence[_Node]) -> Sequence[_Node]:
    first = _right_side(nodes[0])
    is_list = len(nodes) == 1 and first.kind in {"()", "[]", "⟦⟧", "∪"}
    return first.args if is_list else nodes


def _interval(node: _Node) -> _Node:
    """Return the interval that an inequality of one variable is; the node, if it is none."""
    signs, sides = node.signs, node.args
    if len(signs) == 1 and sides[0].kind == "abs":
        signs, sides = signs * 2, (_Node("neg", sides[1:]), *sides[0].args, *sides[1:])
    sides = (_Node("neg", (_OO,)), *sides, _OO)
    place = next((n for n, each in enumerate(sides) if {each.kind} == each.variables), 0)
    low, high = sides[place - 1], sides[min(place + 1, len(sides) - 1)]
    is_inequality = signs and {*signs} <= {"<", "<="} and len(sides) < 6
    if not (is_inequality and place) or low.variables | high.variables:
        return node
    signs = ("<", *signs, "<")
    brackets = "(["[signs[place - 1] == "<="] + ")]"[signs[place] == "<="]
    return _Node(brackets, (low, high))


def _right_side(node: _Node) -> _Node:
    """Return the value of an equation such as `x = 5`, `f(x) = x^2` or `6! = 720`."""
    if node.signs[-1:] != ("=",):
        return node
    left, value = node.args[0], node.args[-1]
    is_label = left.kind in {"()", *_CALLED} or (left.variables and _is_product(left))
    is_value = not (value.kind in _STRUCTURES or node.variables)
    is_true = len(node.args) > 2 or is_label or (is_value and _same_value(left, value))
    return value if is_true else node


def _is_product(node: _Node) -> bool:
    return not node.args or (node.kind in {"*", "/", "frac"} and all(map(_is_product, node.args)))
