"""Array types, and the check that all formulas share."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

#: Real numbers; the shape is documented where it is used, e.g. [N].
Floats = NDArray[np.float64]
#: Masks; the shape is documented where it is used.
Bools = NDArray[np.bool_]
#: Indices and counts; the shape is documented where it is used.
Indices = NDArray[np.intp]

#: Added to standard deviations, as verl and TRL do: equal rewards become 0 instead of NaN.
EPSILON = 1e-6


def check(valid: ArrayLike, requirement: str, values: ArrayLike) -> None:
    """Raise a ValueError that names the first entry of `values`, [N], that is not `valid`, [N].

    Args:
        requirement: What holds for a valid entry; begins the message.
    """
    is_valid = np.asarray(valid, bool)
    if not is_valid.all():
        first = int(np.flatnonzero(~is_valid)[0])
        raise ValueError(f"{requirement} (entry {first}: {np.asarray(values).ravel()[first]})")
