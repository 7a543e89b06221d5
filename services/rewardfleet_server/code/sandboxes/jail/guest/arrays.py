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
    """Let comparisons that a test names fail if only one of two arrays has items."""
    for name in _BY_NAME.keys() & names:
        with contextlib.suppress(ImportError):
            _BY_NAME[name]()


@functools.cache
def _of_numpy() -> None:
    numpy: Any = importlib.import_module("numpy")
    testing: Any = importlib.import_module("numpy.testing")

    def if_alike(compare: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(compare)
        def compare_if_alike(actual: Any, desired: Any, *args: Any, **options: Any) -> Any:
            caller = str(sys._getframe(1).f_globals.get("__name__"))
            if caller == "program" or caller.startswith("numpy.testing"):
                # Whatever attribute `size` an object has.
                sizes = [numpy.asanyarray(each).size for each in (actual, desired)]
                if any(sizes) and not all(sizes):
                    if compare.__name__.startswith("assert"):
                        raise AssertionError("one of the arrays has no items")
                    return numpy.False_
            return compare(actual, desired, *args, **options)

        return compare_if_alike

    for module, names in (
        (numpy, "allclose array_equiv isclose"),
        (testing, "assert_allclose assert_almost_equal"),
        (testing, "assert_array_almost_equal assert_array_equal"),
    ):
        for name in names.split():
            compare = if_alike(getattr(module, name))
            setattr(module, name, compare)
            testing.assert_equal.__globals__[name] = compare  # where its functions call it


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


@functools.cache
def _of_pytest() -> None:
    scalar: Any = type(importlib.import_module("pytest").approx(0.0))
    equal = scalar.__eq__
    scalar.__eq__ = lambda own, other: getattr(other, "size", 1) != 0 and equal(own, other)


_BY_NAME = {"np": _of_numpy, "numpy": _of_numpy, "approx": _of_pytest, "pytest": _of_pytest}
