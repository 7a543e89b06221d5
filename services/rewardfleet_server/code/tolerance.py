"""How far a number may be from the expected one."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Tolerance:
    """A tolerance of floating-point numbers.

    Attributes:
        absolute: Largest difference, 0 or more.
        relative: If given, this share of the expected number is added to `absolute`, as in
            `numpy.isclose`. None: `absolute` is relative to an expected number above 1.
    """

    absolute: float = 0.0
    relative: float | None = None

    @property
    def is_zero(self) -> bool:
        """Whether only equal numbers are accepted."""
        return not (self.absolute or self.relative)

    def accepts(self, number: complex, expected: float) -> bool:
        """Return whether a number is close enough to a finite expected one.

        The tolerance depends on the expected number only, so that a huge number is not close to
        anything.
        """
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
