"""Values that a program gave, as the warden writes them, compared with what was expected.

JSON's null, booleans, texts, lists and finite numbers are themselves; an object has one key,
which names the kind: `tuple`, `set`, `dict` (a list of pairs), `int` (hexadecimal), `float`
(nan or an infinity), `complex`, `bytes` (hexadecimal), `other` (a type's name: no plain value).

The comparison is by type and value, and no code of the program's takes part in it. A whole
number and a floating-point one are alike where Python calls them equal; a boolean is no number.
"""

import json
from collections.abc import Iterable
from math import isfinite
from typing import Any

_KINDS = {"tuple", "set", "dict", "int", "float", "complex", "bytes", "other"}


def values_equal(  # noqa: PLR0911 - one for each kind
    given: Any, expected: Any, *, as_json: bool, tolerance: float = 0.0
) -> bool:
    """Whether a program gave the value expected.

    Args:
        given: As the warden wrote it, or as the program did who wrote in its place.
        expected: Of built-in types.
        as_json: Whether tuples pass for lists, as what is expected came as JSON, which has none.
        tolerance: By how much an expected floating-point number may be missed: absolute, or
            relative to it. Not in sets, nor by keys.
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
        listed = given if isinstance(given, list) and isinstance(expected, list) else None
        if listed is None and (as_json or isinstance(expected, tuple)):
            listed = _content(given, "tuple")
        return (
            isinstance(listed, list)
            and len(listed) == len(expected)
            and all(
                values_equal(one, other, as_json=as_json, tolerance=tolerance)
                for one, other in zip(listed, expected, strict=True)
            )
        )
    if isinstance(expected, dict):
        pairs = _content(given, "dict")
        return _same_dict(pairs, expected, as_json=as_json, tolerance=tolerance)
    if isinstance(expected, set | frozenset):
        items = _content(given, "set")
        return (
            isinstance(items, list)
            and len(items) == len(expected)  # and so no more work than the test is worth
            and set(map(_key, items)) == set(map(_key_of_literal, expected))
        )
    return False


def is_plain(given: Any) -> bool:
    """Whether a value is of built-in types, at its top at least."""
    return _content(given, "other") is None


def _close(number: complex, expected: float, tolerance: float) -> bool:
    try:
        return isfinite(expected) and abs(number - expected) <= tolerance * max(1, abs(expected))
    except OverflowError:  # a whole number beyond all floating-point ones
        return False


def _same_dict(pairs: Any, expected: dict[Any, Any], *, as_json: bool, tolerance: float) -> bool:
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


def _number(given: Any) -> int | float | complex | None:  # noqa: PLR0911 - likewise
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
    """An item of a set, or a key, as a text: alike where it is the same, unlike otherwise.

    A text, because its hash is keyed: a program that chooses numbers or tuples of one hash would
    make a set of them take hours.
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
    """Alike for numbers that are equal, whatever their types."""
    if isinstance(number, complex) and number.imag == 0:
        number = number.real
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if isinstance(number, int):
        return hex(number)  # in decimal, it could be too long
    return repr(number + 0)  # of the zeros that a complex one has, none is negative


def _key_of_items(kind: str, keys: Iterable[str]) -> str:
    listed = sorted(set(keys)) if kind == "set" else keys
    return f"{kind}({','.join(listed)})"
