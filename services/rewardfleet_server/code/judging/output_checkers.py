"""Comparison of what a program printed with the expected output.

An expected integer needs an equal number, whatever the checker: `9.0` equals 9, and 1000000007 is
not close to 1000000000.
"""

import re
from collections import Counter
from collections.abc import Callable
from decimal import Decimal, InvalidOperation

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
    if checker == "decimal_lines":
        return _decimal_lines(printed, expected)
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


def _decimal_lines(printed: bytes, expected: bytes) -> bool:
    """Compare as LiveCodeBench does."""
    got, wanted = (_unix(text).strip().split(b"\n") for text in (printed, expected))
    return len(got) == len(wanted) and all(
        one.strip() == other.strip() or _equal_numbers(one.split(), other.split())
        for one, other in zip(got, wanted, strict=True)
    )


def _close(printed: bytes, expected: bytes, tolerance: Tolerance) -> bool:
    if not (_NUMBER.fullmatch(printed) and _NUMBER.fullmatch(expected)):
        return False
    if _INTEGER.fullmatch(expected):
        return _equal_numbers([printed], [expected])
    return tolerance.accepts(float(printed), float(expected))


def _equal_numbers(printed: list[bytes], expected: list[bytes]) -> bool:
    """Return whether two lists of words are numbers, and equal."""
    return len(printed) == len(expected) and all(
        _NUMBER.fullmatch(one) is not None
        and _NUMBER.fullmatch(other) is not None
        and _decimal(one) == _decimal(other)
        for one, other in zip(printed, expected, strict=True)
    )


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
