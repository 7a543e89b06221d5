"""Comparison of the values that a program returned with the expected ones.

The supervisor (warden.py) writes a value as JSON. Null, booleans, strings, lists and finite
numbers are themselves; an object has one key, which names the kind of value: `tuple`, `set`,
`dict` (a list of pairs), `int` (hexadecimal), `float` (nan or an infinity), `complex`, `bytes`
(hexadecimal), `other` (the name of a type that is not built in).

Values are compared by type and value, and none of the program's code takes part. An integer and a
floating-point number are equal if Python says so. A boolean never equals a number.
"""

import json
from collections.abc import Iterable
from math import isfinite
from typing import Any


def values_equal(  # noqa: PLR0911 - one for each kind
    given: Any, expected: Any, *, as_json: bool, tolerance: float = 0.0
) -> bool:
    """Return whether a program returned the expected value.

    Args:
        given: As the supervisor wrote it, or as a program forged it.
        expected: A value of built-in types.
        as_json: Whether tuples equal lists, as the expected value came as JSON, which has no
            tuples.
        tolerance: Tolerance of expected floating-point numbers: absolute, or relative to a number
            above 1. Does not apply to keys and to items of sets.
    """
    if expected is None or isinstance(expected, bool):
        return bool(given is expected)
    if isinstance(expected, int | float | complex):
        number = _number(given)
        if number is None or number == expected:
            return number is not None
        return (
            bool(tolerance) and isinstance(expected, float) and _close(number, expected, tolerance)
        )
    if isinstance(expected, str):
        return isinstance(given, str) and given == expected
    if isinstance(expected, bytes):
        return bool(_content(given, "bytes") == expected.hex())
    if isinstance(expected, list | tuple):
        items = given if isinstance(given, list) and isinstance(expected, list) else None
        if items is None and (as_json or isinstance(expected, tuple)):
            items = _content(given, "tuple")
        return (
            isinstance(items, list)
            and len(items) == len(expected)
            and all(
                values_equal(one, other, as_json=as_json, tolerance=tolerance)
                for one, other in zip(items, expected, strict=True)
            )
        )
    if isinstance(expected, dict):
        pairs = _content(given, "dict")
        return _dicts_equal(pairs, expected, as_json=as_json, tolerance=tolerance)
    if isinstance(expected, set | frozenset):
        items = _content(given, "set")
        return (
            isinstance(items, list)
            and len(items) == len(expected)  # limits the work to the size of the test
            and set(map(_key, items)) == set(map(_key_of_literal, expected))
        )
    return False


def is_plain(given: Any) -> bool:
    """Return whether a value is of a built-in type, its items aside."""
    return _content(given, "other") is None


def _close(number: complex, expected: float, tolerance: float) -> bool:
    try:
        return isfinite(expected) and abs(number - expected) <= tolerance * max(1, abs(expected))
    except OverflowError:  # an integer too large for a float
        return False


def _dicts_equal(pairs: Any, expected: dict[Any, Any], *, as_json: bool, tolerance: float) -> bool:
    if not isinstance(pairs, list) or len(pairs) != len(expected):
        return False
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        return False
    given = {_key(key): value for key, value in pairs}
    wanted = {_key_of_literal(key): value for key, value in expected.items()}
    return given.keys() == wanted.keys() and all(
        values_equal(given[key], wanted[key], as_json=as_json, tolerance=tolerance)
        for key in wanted
    )


def _content(given: Any, kind: str) -> Any:
    if isinstance(given, dict) and len(given) == 1:
        return given.get(kind)
    return None


def _number(given: Any) -> int | float | complex | None:  # noqa: PLR0911 - one for each kind
    if isinstance(given, bool):
        return None
    if isinstance(given, int | float):
        return given
    try:
        if (text := _content(given, "int")) is not None:
            return int(str(text), 16)
        if (text := _content(given, "float")) is not None:
            return float(str(text))
        if (parts := _content(given, "complex")) is not None:
            real, imaginary = parts
            return complex(float(str(real)), float(str(imaginary)))
    except (ValueError, TypeError):
        return None
    return None


def _key(given: Any) -> str:
    """Return an item of a set, or a key, as a string: equal strings for equal values.

    Python's hash of strings is keyed. With numbers or tuples, a program could choose values with
    the same hash, and building a set of them would take hours.
    """
    if given is None or isinstance(given, bool | str):
        return json.dumps(given)
    number = _number(given)
    if number is not None:
        return _key_of_number(number)
    for kind in ("tuple", "set"):
        items = _content(given, kind)
        if isinstance(items, list):
            return _key_of_items(kind, map(_key, items))
    return f"bytes {_content(given, 'bytes')}"


def _key_of_literal(value: Any) -> str:
    if value is None or isinstance(value, bool | str):
        return json.dumps(value)
    if isinstance(value, int | float | complex):
        return _key_of_number(value)
    if isinstance(value, tuple):
        return _key_of_items("tuple", map(_key_of_literal, value))
    if isinstance(value, frozenset):
        return _key_of_items("set", map(_key_of_literal, value))
    return f"bytes {value.hex()}"


def _key_of_number(number: complex) -> str:
    """Return equal strings for equal numbers, whatever their types."""
    if isinstance(number, complex) and number.imag == 0:
        number = number.real
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if isinstance(number, int):
        return hex(number)  # Python refuses to write very long numbers in decimal
    return repr(number + 0)  # turns the negative zeros of a complex number into positive ones


def _key_of_items(kind: str, keys: Iterable[str]) -> str:
    listed = sorted(set(keys)) if kind == "set" else keys
    return f"{kind}({','.join(listed)})"
