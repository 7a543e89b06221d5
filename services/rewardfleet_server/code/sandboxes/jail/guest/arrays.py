"""Comparisons of arrays in tests: an array without items is close to no number.

numpy and pytest compare item by item, so that one without items differs from nothing.
"""

import contextlib
import functools
import importlib
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

    for module, name, otherwise in (
        (numpy, "allclose", differs),
        (numpy, "isclose", differs),
        (testing, "assert_allclose", fails),
        (testing, "assert_almost_equal", fails),
        (testing, "assert_array_almost_equal", fails),
        (testing, "assert_array_equal", fails),
    ):
        setattr(module, name, _if_alike(getattr(module, name), numpy.size, otherwise))


def _if_alike(
    compare: Callable[..., Any], size: Callable[[Any], int], otherwise: Callable[[], Any]
) -> Callable[..., Any]:
    @functools.wraps(compare)
    def compare_if_alike(actual: Any, desired: Any, *args: Any, **options: Any) -> Any:
        is_alike = (size(actual) == 0) == (size(desired) == 0)
        return compare(actual, desired, *args, **options) if is_alike else otherwise()

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
