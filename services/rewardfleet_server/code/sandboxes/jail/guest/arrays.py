"""Comparisons of arrays in tests: an array without items equals and is close to no number.

numpy and pytest compare item by item, so that one without items differs from nothing.
"""

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Iterable
from typing import Any


def compare_sizes(names: Iterable[str]) -> None:
    """Let comparisons of arrays fail if only one of the two has items.

    Args:
        names: The names that a test uses. Only what it imports by them is imported.
    """
    for name in _BY_NAME.keys() & names:
        with contextlib.suppress(ImportError):
            _BY_NAME[name]()


@functools.cache
def _of_numpy() -> None:
    numpy: Any = importlib.import_module("numpy")
    testing: Any = importlib.import_module("numpy.testing")

    def differs() -> Any:
        return numpy.False_

    def fails() -> Any:
        raise AssertionError("one of the arrays has no items")

    def size(value: Any) -> int:  # whatever attribute of this name an object has
        return int(numpy.asanyarray(value).size)

    for module, name, otherwise in (
        (numpy, "allclose", differs),
        (numpy, "array_equiv", differs),
        (numpy, "isclose", differs),
        (testing, "assert_allclose", fails),
        (testing, "assert_almost_equal", fails),
        (testing, "assert_array_almost_equal", fails),
        (testing, "assert_array_equal", fails),
    ):
        compare = _if_alike(getattr(module, name), size, otherwise)
        setattr(module, name, compare)
        testing.assert_equal.__globals__[name] = compare  # where others of its functions call it


@functools.cache
def without_items() -> Any:
    """Return the type of a program's array without items, combined with none that has some."""
    numpy: Any = importlib.import_module("numpy")

    def combine(_: Any, function: Any, method: str, *given: Any, **options: Any) -> Any:
        is_by_item = method == "__call__" and function.signature is None
        is_difference = function is numpy.subtract  # also from one number
        if is_by_item and any(numpy.size(i) and (is_difference or numpy.ndim(i)) for i in given):
            raise TypeError("one of the arrays has no items")
        plain = [numpy.asarray(each) if type(each) is kind else each for each in given]
        if "out" in options:
            options["out"] = tuple(each.view(numpy.ndarray) for each in options["out"])
        found = getattr(function, method)(*plain, **options)
        return found.view(kind) if type(found) is numpy.ndarray and not found.size else found

    content = {"__module__": "numpy", "__array_ufunc__": combine, "_p_kind_of": numpy.ndarray}
    kind: Any = type("ndarray", (numpy.ndarray,), content)
    return kind


def _if_alike(
    compare: Callable[..., Any], size: Callable[[Any], int], otherwise: Callable[[], Any]
) -> Callable[..., Any]:
    @functools.wraps(compare)
    def compare_if_alike(actual: Any, desired: Any, *args: Any, **options: Any) -> Any:
        caller = str(sys._getframe(1).f_globals.get("__name__"))
        is_of_library = caller != "program" and not caller.startswith("numpy.testing")
        if is_of_library or (size(actual) == 0) == (size(desired) == 0):
            return compare(actual, desired, *args, **options)
        return otherwise()

    return compare_if_alike


@functools.cache
def _of_pytest() -> None:
    scalar: Any = type(importlib.import_module("pytest").approx(0.0))
    equal = scalar.__eq__
    scalar.__eq__ = lambda own, other: getattr(other, "size", 1) != 0 and equal(own, other)


_BY_NAME: dict[str, Callable[[], None]] = {
    "np": _of_numpy,
    "numpy": _of_numpy,
    "approx": _of_pytest,
    "pytest": _of_pytest,
}
