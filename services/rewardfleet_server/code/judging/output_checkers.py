"""Comparison of what a program printed with the expected output.

The rules of SandboxFusion and of the runners of data sets have the verdicts of their sources, also
where these surprise; docs/code-service.md names the sources and what they accept.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal, InvalidOperation
from functools import partial
from itertools import islice

from .values import Tolerance

#: Without alternatives that overlap, so that a long word that is not a number takes linear time.
_NUMBER = re.compile(rb"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_INTEGER = re.compile(rb"[+-]?\d+")
#: A word and a number as Abseil reads them.
_WORD = re.compile(rb"[^ \n\t\r\v]+")
_FLOAT = re.compile(rb"\f*[+-]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?|inf(?:inity)?|nan)\f*")
_YES_NO = re.compile(r"\b(?:yes|no)\b", re.IGNORECASE | re.ASCII)
_ALLCLOSE = Tolerance(1e-8, 1e-5)  #: the default of `numpy.allclose`


def output_equals(
    printed: bytes, expected: bytes, checker: str, tolerance: Tolerance, *, ignore_case: bool
) -> bool:
    """Return whether an output is right by a checker of `StdioTests`, in linear time."""
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


def _lines(text: bytes) -> list[bytes]:
    return text.rstrip().split(b"\n")


#: What must be equal, by the checkers that compare lines.
_BY_LINES: dict[str, Callable[[bytes], object]] = {
    "exact": lambda text: text.replace(b"\r\n", b"\n").rstrip(b"\n"),
    "lines": lambda text: [line.rstrip() for line in _lines(text)],
    "unordered_lines": lambda text: Counter(b" ".join(line.split()) for line in _lines(text)),
}


# Rules of runners


def _by_lines(same: Callable[[str, str], bool], printed: str, expected: str) -> bool:
    got, wanted = (text.strip().split("\n") for text in (printed, expected))
    return len(got) == len(wanted) and all(map(same, got, wanted))


def _same_decimals(printed: str, expected: str) -> bool:
    if printed.strip() == expected.strip():
        return True
    try:
        return [*map(Decimal, printed.split())] == [*map(Decimal, expected.split())]
    except ArithmeticError:  # a word that is no number
        return False


def _same_or_near(printed: str, expected: str) -> bool:
    if printed.lower().strip() == expected.lower().strip():
        return True
    try:
        number, wanted = float(printed), float(expected)
    except ValueError:
        return False
    return abs(number - wanted) / max(abs(wanted), 1e-10) < 1e-5


def _code_contests(printed: str, expected: str) -> bool:
    given, answer = (each.encode(errors="surrogateescape").lower() for each in (printed, expected))
    wanted = _WORD.findall(answer)
    got = [each[0] for each in islice(_WORD.finditer(given), len(wanted) + 1)]
    return len(got) == len(wanted) and (got == wanted or all(map(_same_values, got, wanted)))


def _same_values(printed: bytes, expected: bytes) -> bool:
    if _FLOAT.fullmatch(printed) and _FLOAT.fullmatch(expected):
        return abs(float(printed) - float(expected)) < 1e-5
    return printed == expected


def _codeforces(printed: str, expected: str) -> bool:
    texts = (_YES_NO.sub(lambda found: found[0].upper(), each) for each in (printed, expected))
    got, wanted = (each.encode(errors="surrogateescape").split() for each in texts)
    return got == wanted


def _apps(printed: str, expected: str, *, in_order: bool = False) -> bool:
    lines, wanted = printed.splitlines(), _nonempty_lines(expected)
    filled = [line for line in lines if line]
    texts = (printed, "\n".join(lines), "\n".join(line.strip() for line in lines))
    if expected.strip() in map(str.strip, texts) or wanted in (lines, filled):
        return True
    if in_order:
        pairs = zip(filled, wanted, strict=False)
        are_integers = all(one.isdigit() and other.isdigit() for one, other in pairs)
        return not are_integers and _all_close(filled, wanted)
    words = [line.split() for line in filled if not line.isspace()]
    return _all_close(filled, wanted) or _same_sets(words, wanted)


def _taco(printed: str, expected: str) -> bool:
    if printed.strip() == expected.strip():
        return True
    wanted = _nonempty_lines(expected)
    # What are lines and their words in APPS are words and their characters here.
    return _all_close(printed, wanted) or _same_sets(printed.split(), wanted)


def _nonempty_lines(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n") if line]


def _all_close(printed: Sequence[str], expected: Sequence[str]) -> bool:
    if len(printed) != len(expected):
        return False
    try:
        pairs = [(float(one), float(other)) for one, other in zip(printed, expected, strict=True)]
    except ValueError:
        return False
    return all(one == other or _ALLCLOSE.accepts(one, other) for one, other in pairs)


def _same_sets(printed: Iterable[Iterable[str]], lines: Sequence[str]) -> bool:
    """Return whether words are, as sets of sets, those of some lines, if need be rounded."""
    got, wanted = {*map(frozenset, printed)}, {frozenset(line.split()) for line in lines}
    if got == wanted:
        return True
    try:
        one, other = ({frozenset(map(_rounded, each)) for each in sets} for sets in (got, wanted))
    except ValueError:
        return False
    return one == other


def _rounded(word: str) -> str:
    """Return equal texts for equal numbers: a program could choose numbers with equal hashes."""
    number = round(float(word), 3)
    if math.isnan(number):
        raise ValueError("equals nothing")
    return repr(number + 0.0)  # turns a negative zero into a positive one


#: The rules, by the names of checkers. Each takes time linear in its texts.
SOURCE_RULES: dict[str, Callable[[str, str], bool]] = {
    "decimal_lines": partial(_by_lines, _same_decimals),
    "sandbox_fusion": partial(_by_lines, _same_or_near),
    "apps_in_order": partial(_apps, in_order=True),
    "code_contests": _code_contests,
    "codeforces": _codeforces,
    "apps": _apps,
    "taco": _taco,
}
