"""The checker math-verify 0.9, with guards.

It is not symmetric, finds the first of several formulas, and rounds: small numbers equal zero.
"""

import re
from typing import Any

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from sympy import Expr, srepr

_LATEX = (LatexExtractionConfig(boxed_match_priority=-1),)
_PLAIN = (ExprExtractionConfig(),)
_DECIMALS, _DIGITS = 12, 15  #: decimals and significant digits that must agree
_SHARE = 1e-9  #: how much equal numbers may differ, as a share, for errors of rounding
#: Names that LaTeX has with a backslash.
_NAME = re.compile(r"(?<![\\A-Za-z])(sqrt|sin|cos|tan|ln|log|exp|pi|infty)(?![A-Za-z])")
#: Of which math-verify reads a part: ratios, other bases, derivatives, sequences, words, commands.
_MISREAD = re.compile(
    r"\d\s*(?:_|:\s*\d)|['\"$≈]|\\approx|"
    r"[A-Za-z]\(\s*-?\d+\s*\)\s*=|\(\s*or\b|\.\.|\d\(|\.\d{11}|"
    r"10\s*\^\s*\{?-\s*\d{2}|^[^A-Za-z\\]*=|"
    r"\\(?:mathbf|[lr]angle|partial|nabla|equiv|p?mod|n?mid|[lc]?dots|dot|to|"
    r"max|min|begin\{cases\}|Rightarrow|not)(?![a-z])|^\W*\\?(?:neq?|[lg]eq?)\b|^\s*[<>≤≥≠]|"
    r"\\text\s*\{[^{}]*[a-z]{4}|(?<![A-Za-z\\{])(?!or\b|and\b)[A-Za-z]{3,}(?![A-Za-z(])|d[a-z]\}"
)
#: What is equal to the right side of an equation.
_VALUE_OF = re.compile(
    r"\s*\$?[A-Za-z](?:_\{?\w+\}?)?\s*(?:\([a-z]\))?\s*=|[^A-Za-z=]*=[^A-Za-z=]*$"
)
#: A set, and what has an order, which math-verify takes for equal.
_SET, _ORDERED = (re.compile(rf"[\s$]*(?:\\left)?{each}") for each in (r"\\?\{", r"[(\[][^()]*,"))


class Unreadable(Exception):
    """A text is no formula that math-verify can read."""


def read(text: str) -> list[Any]:
    """Return what math-verify reads a formula as; raise Unreadable if it reads nothing."""
    if not text.isascii() or _MISREAD.search(text):
        raise Unreadable("math-verify reads a part of it")
    text = re.sub(r"\\?sqrt\(([^()]*)\)", r"\\sqrt{\1}", text)
    text = _NAME.sub(r"\\\1", text.replace("**", "^").replace("\\mathrm{e}", "e"))
    # Without its own time limit, which is a signal.
    options: dict[str, Any] = {"parsing_timeout": None, "fallback_mode": "no_fallback"}
    found: list[Any] = parse(f"${text}$", _LATEX, **options) or parse(text, _PLAIN, **options)
    if not found:
        raise Unreadable("math-verify reads no formula")
    letters = {*re.findall(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+|\b(?:or|and)\b", " ", text))}
    if letters - {*re.findall(r"[A-Za-z]", f"{found[0]} {srepr(found[0])}")} or (
        letters & {*"ABCDFGHJKLMNPQRSTUVWXYZ"} - {*re.findall(r"\b[A-Z]", str(found[0]))}
    ):
        raise Unreadable("math-verify reads a part of it")
    return found


def compare(answer: str, reference: str, form: str, tolerance: float | None) -> bool:
    """Return whether an answer equals the reference; raise Unreadable if one is no formula."""
    if form == "list" or tolerance is not None:  # it compares neither
        raise Unreadable("a list, or a tolerance")
    right, given = read(reference), read(answer)
    if _SET.match(answer) and _ORDERED.match(reference):
        return False
    answer, reference = (re.sub(r"_\s*\{[^{}]*\}", "", each) for each in (answer, reference))
    if ("=" in answer) != ("=" in reference):  # math-verify compares the right side
        equation = answer if "=" in answer else reference
        if not _VALUE_OF.match(equation):
            raise Unreadable("an equation and a value")
    is_equal = verify(right, given, _DECIMALS, _DIGITS, timeout_seconds=None)
    return is_equal and not (right[0] != given[0] and _differ(right[0], given[0]))


def _differ(a: Any, b: Any) -> bool:
    if not all(isinstance(each, Expr) and each.is_number for each in (a, b)):
        return False
    x, y = (complex(each.doit().evalf(30)) for each in (a, b))
    return abs(x - y) > _SHARE * max(abs(x), abs(y)) and not (a - b).equals(0)
