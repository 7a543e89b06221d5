"""Values of APPS: what a function is called with, and what it may return.

The rules are those of its runner (testing_util.py), also for TACO and in verl and PRIME. JSON has
turned the integer keys of dictionaries into texts, so they become integers again where all keys of
a dictionary are: of a single argument, and of an output or the single item of one.
"""

from typing import Any

from rewardfleet.wire.code import FunctionalTests


class AppsTests(FunctionalTests):
    """Calls with the values of a row, as they are there."""

    #: Whether all outputs are lists of one item, which alone is accepted as well. The runner
    #: accepts the first item of any list, which is unsound.
    is_wrapped: bool

    def accepted(self, expected: Any) -> tuple[Any, ...]:
        """Return the values that a call may return."""
        match expected:
            case [dict(only)]:
                expected = [with_integer_keys(only) or only]
            case dict():
                expected = with_integer_keys(expected) or expected
        return (expected, expected[0]) if self.is_wrapped and expected else (expected,)


def with_integer_keys(value: dict[str, Any]) -> dict[int, Any] | None:
    """Return a dictionary with integers as keys; None if one of them is no integer."""
    try:
        return {int(key): each for key, each in value.items()}
    except ValueError:
        return None
