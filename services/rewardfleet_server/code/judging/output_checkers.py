"""Comparison of what a program printed with the expected output.

The checker `float` needs an equal number where an integer is expected: `9.0` equals 9, and
1000000007 is not close to 1000000000.
"""

import re
from collections import Counter
from collections.abc import Callable
from decimal import Decimal, InvalidOperation

from .source_rules import SOURCE_RULES
from .values import Tolerance

#: Without alternatives that overlap, so that a long word that is not a number takes linear time.
_NUMBER = re.compile(rb"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_INTEGER = re.compile(rb"[+-]?\d+")


def output_equals(
    printed: bytes, expected: bytes, checker: str, tolerance: Tolerance, *, ignore_case: bool
) -> bool:
    """Return whether an output is right, in time linear in its length.

    Args:
        checker: See `StdioTests.checker`.
        tolerance: For the checker `float`.
        ignore_case: Whether `YES` and `Yes` are equal.
    """
    if ignore_case:
        printed, expected = printed.lower(), expected.lower()
    if (normalized := _BY_LINES.get(checker)) is not None:
        return bool(normalized(printed) == normalized(expected))
    if (rule := SOURCE_RULES.get(checker)) is not None:
        return rule(*(text.decode(errors="surrogateescape") for text in (printed, expected)))
    wanted = expected.split()
    words = printed.split(None, len(wanted) + 1)  # limits the work to the size of the test
    if checker == "tokens":
        return words == wanted
    if checker == "unordered":
        return Counter(words) == Counter(wanted)
    return len(words) == len(wanted) and all(
        one == other or _close(one, other, tolerance)
        for one, other in zip(words, wanted, strict=True)
    )


def _close(printed: bytes, expected: bytes, tolerance: Tolerance) -> bool:
    if not (_NUMBER.fullmatch(printed) and _NUMBER.fullmatch(expected)):
        return False
    if _INTEGER.fullmatch(expected):
        return _decimal(printed) == _decimal(expected)
    return tolerance.accepts(float(printed), float(expected))


def _decimal(number: bytes) -> Decimal:
    """Return the exact value. Unlike `int`, this takes linear time; NaN beyond all exponents."""
    try:
        return Decimal(number.decode("ascii"))
    except InvalidOperation:
        return Decimal("nan")


def _unix(text: bytes) -> bytes:
    return text.replace(b"\r\n", b"\n")


def _rstripped_lines(text: bytes) -> list[bytes]:
    lines = [line.rstrip() for line in text.split(b"\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


#: What must be equal, by the checkers that compare lines.
_BY_LINES: dict[str, Callable[[bytes], object]] = {
    "exact": lambda text: _unix(text).rstrip(b"\n"),
    "lines": _rstripped_lines,
    "unordered_lines": lambda text: Counter(
        b" ".join(line.split()) for line in _rstripped_lines(text)
    ),
}
