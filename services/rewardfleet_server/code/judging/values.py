"""Comparison of the values that a program returned with the expected ones, without its own code.

The supervisor (jail/guest/supervisor.py) writes a value as JSON. Null, booleans, strings, lists
and finite numbers are themselves; an object has one key, which names the kind of value: `tuple`,
`set`, `dict` (a list of pairs), `int` (hexadecimal), `float` (nan or an infinity), `complex`,
`fraction` (numerator and denominator), `decimal`, `bytes` (hexadecimal), `other` (the name of a
type that is not built in).
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

#: A number of any type that a program can return.
Number = int | float | complex | Fraction | Decimal

_MAX_DIGITS = 5_000  #: digits of a fraction, and of a decimal number that is converted to one


@dataclass(frozen=True)
class Tolerance:
    """How far a floating-point number may be from the expected one."""

    absolute: float = 0.0  #: largest difference, 0 or more
    #: If given, this share of the expected number is added to `absolute`, as in `numpy.isclose`.
    #: None: `absolute` is relative to an expected number above 1.
    relative: float | None = None

    def accepts(self, number: complex, expected: float) -> bool:
        """Return whether a number is close to a finite expected one; a huge one is to nothing."""
        if not math.isfinite(expected):
            return False
        if self.relative is None:
            allowed = self.absolute * max(1.0, abs(expected))
        else:
            allowed = self.absolute + self.relative * abs(expected)
        try:
            return abs(number - expected) <= allowed
        except OverflowError:  # an integer too large for a float
            return False


@dataclass(frozen=True)
class Equality:
    """A rule by which values are equal."""

    #: How much expected floating-point numbers may differ; not keys or items of sets.
    tolerance: Tolerance = Tolerance()
    #: Whether tuples equal lists, as the expected value came as JSON, which has no tuples.
    as_json: bool = False
    bool_is_int: bool = False  #: whether True equals 1 and False equals 0, as in Python
    #: Whether lists have no order: False, True for the outermost one only, or "nested" for all.
    any_order: bool | str = False

    def equal(self, given: Any, expected: Any) -> bool:  # noqa: PLR0911 - one for each kind
        """Return whether a program returned the expected value; what is given may be forged."""
        if expected is None:
            return given is None
        if isinstance(expected, bool) and not self.bool_is_int:
            return bool(given is expected)
        if isinstance(expected, int | float | complex):
            return self._numbers_equal(given, expected)
        if isinstance(expected, str):
            return isinstance(given, str) and given == expected
        if isinstance(expected, bytes):
            return bool(_content(given, "bytes") == expected.hex())
        if isinstance(expected, list | tuple):
            return self._sequences_equal(given, expected)
        if isinstance(expected, dict):
            return self._dicts_equal(_content(given, "dict"), expected)
        if isinstance(expected, set | frozenset):
            items = _content(given, "set")
            return (
                isinstance(items, list)
                and len(items) == len(expected)  # limits the work to the size of the test
                and set(map(self.key, items)) == set(map(self.key_of_literal, expected))
            )
        return False

    def _numbers_equal(self, given: Any, expected: complex) -> bool:
        number = self._number(given)
        if number is None or number == expected:
            return number is not None
        tolerance = self.tolerance
        if not (isinstance(expected, float) and (tolerance.absolute or tolerance.relative)):
            return False
        try:
            got = number if isinstance(number, complex) else float(number)
        except OverflowError:
            return False
        return tolerance.accepts(got, expected)

    def _sequences_equal(self, given: Any, expected: Sequence[Any]) -> bool:
        items = given if isinstance(given, list) and isinstance(expected, list) else None
        if items is None and (self.as_json or isinstance(expected, tuple)):
            items = _content(given, "tuple")
        if not isinstance(items, list) or len(items) != len(expected):
            return False
        if not self.any_order:
            return all(map(self.equal, items, expected))
        inner = self if self.any_order == "nested" else replace(self, any_order=False)
        ordered = sorted(items, key=inner.key), sorted(expected, key=inner.key_of_literal)
        return all(map(inner.equal, *ordered))

    def _dicts_equal(self, pairs: Any, expected: dict[Any, Any]) -> bool:
        if not isinstance(pairs, list) or len(pairs) != len(expected):
            return False
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            return False
        given = {self.key(key): value for key, value in pairs}
        wanted = {self.key_of_literal(key): value for key, value in expected.items()}
        return given.keys() == wanted.keys() and all(
            self.equal(given[key], wanted[key]) for key in wanted
        )

    def _number(self, given: Any) -> Number | None:
        if isinstance(given, bool):
            return int(given) if self.bool_is_int else None
        if isinstance(given, int | float):
            return given
        try:
            ((kind, content),) = given.items()
            return _NUMBERS[kind](content)
        except (AttributeError, LookupError, ValueError, TypeError, ArithmeticError):
            return None  # it is none, or forged

    def key(self, given: Any) -> str:
        """Return an item of a set, or a key, as a string: equal strings for equal values.

        Python's hash of strings is keyed. With numbers or tuples, a program could choose values
        with the same hash, and building a set of them would take hours.
        """
        number = self._number(given)
        if number is not None:
            return _key_of_number(number)
        if given is None or isinstance(given, bool | str):
            return json.dumps(given)
        if isinstance(given, list) or isinstance(given := _content(given, "tuple") or given, list):
            return self._key_of_sequence(map(self.key, given))
        if isinstance(items := _content(given, "set"), list):
            return _key_of_items("set", map(self.key, items))
        if isinstance(pairs := _content(given, "dict"), list):
            return _key_of_items("set", (self.key({"tuple": pair}) for pair in pairs))
        return f"bytes {_content(given, 'bytes')}"

    def key_of_literal(self, value: Any) -> str:
        is_word = value is None or isinstance(value, str)
        if is_word or (isinstance(value, bool) and not self.bool_is_int):
            return json.dumps(value)
        if isinstance(value, int | float | complex):
            return _key_of_number(int(value) if isinstance(value, bool) else value)
        if isinstance(value, tuple | list):
            return self._key_of_sequence(map(self.key_of_literal, value))
        if isinstance(value, dict):
            pairs = (map(self.key_of_literal, pair) for pair in value.items())
            return _key_of_items("set", (_key_of_items("tuple", pair) for pair in pairs))
        if isinstance(value, frozenset):
            return _key_of_items("set", map(self.key_of_literal, value))
        return f"bytes {value.hex()}"

    def _key_of_sequence(self, keys: Iterable[str]) -> str:
        return _key_of_items("tuple", sorted(keys) if self.any_order == "nested" else keys)


def is_plain(given: Any) -> bool:
    """Return whether a value is of a built-in type, its items aside."""
    return _content(given, "other") is None


def _content(given: Any, kind: str) -> Any:
    if isinstance(given, dict) and len(given) == 1:
        return given.get(kind)
    return None


def _fraction(parts: Any) -> Fraction | None:
    numerator, denominator = map(str, parts)
    # A program can build a fraction that is not in lowest terms; reducing it is quadratic.
    if max(len(numerator), len(denominator)) > _MAX_DIGITS:
        return None
    return Fraction(int(numerator, 16), int(denominator, 16))


def _decimal(text: Any) -> Number:
    number = Decimal(str(text))
    return float("nan") if number.is_nan() else number  # a signaling NaN cannot be compared


#: What reads the numbers that JSON cannot represent, by the kinds of values.
_NUMBERS: dict[str, Callable[[Any], Number | None]] = {
    "int": lambda text: int(str(text), 16),
    "float": lambda text: float(str(text)),
    "complex": lambda parts: complex(float(str(parts[0])), float(str(parts[1]))),
    "fraction": _fraction,
    "decimal": _decimal,
}


def _key_of_number(number: Number) -> str:
    """Return equal strings for equal numbers, whatever their types."""
    if isinstance(number, complex) and number.imag == 0:
        number = number.real
    if isinstance(number, Decimal) and number.is_finite():
        _, digits, exponent = number.as_tuple()
        if abs(int(exponent)) + len(digits) > _MAX_DIGITS:
            return f"decimal {number}"  # of the expected values, none is as large
        number = Fraction(number)
    if isinstance(number, Fraction) and number.denominator == 1:
        number = number.numerator
    elif isinstance(number, Fraction):
        with suppress(OverflowError):
            as_float = float(number)
            number = as_float if as_float == number else number
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if isinstance(number, int):
        return hex(number)  # Python refuses to write very long numbers in decimal
    if isinstance(number, complex):
        number += 0  # turns negative zeros into positive ones
    if isinstance(number, Fraction):
        return f"{number.numerator:x}/{number.denominator:x}"
    return str(number) if isinstance(number, Decimal) else repr(number)


def _key_of_items(kind: str, keys: Iterable[str]) -> str:
    listed = sorted(set(keys)) if kind == "set" else keys
    return f"{kind}({','.join(listed)})"
