"""How much probability the labels of a readout have: what it rests on, and its metric.

If the model would rather say something else, the shares of the labels mean little.
"""

import math
from collections.abc import Iterable
from typing import Any

from prometheus_client import Histogram

from rewardfleet.wire.errors import BackendFailed

from . import Judgment
from .settings import own

#: What a logarithm or a sum may be too large by, from rounding to 16 bits.
_TOLERANCE = 0.01

#: Of all judgments with the detail `label_mass`.
LABEL_MASS = Histogram(
    "rewardfleet_label_mass",
    "Probability, in [0, 1], of all labels of a judge together. Where it is small, the model would "
    "rather say something else.",
    ("backend",),
    registry=None,
    buckets=(0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1),
)


def min_label_mass() -> Any:
    """Declare the setting of that name."""
    help_text = "Readouts of probabilities abstain where all labels together have less."
    return own(0.1, help_text, ge=0, le=1)


def checked_probabilities(logprobs: Iterable[float]) -> list[float]:
    """Return the probabilities of different tokens at one position.

    Raises:
        BackendFailed: The values are no log-probabilities: one is above 0, or their sum above 1.
    """
    values = list(logprobs)
    if all(value <= _TOLERANCE for value in values):
        probabilities = [math.exp(min(value, 0.0)) for value in values]
        if math.fsum(probabilities) <= 1 + _TOLERANCE:
            return probabilities
    raise BackendFailed(
        "the model returned values that are no log-probabilities, such as logits: "
        f"{', '.join(f'{value:.3g}' for value in values[:3])}"
    )


def observe(backend: str, judgment: Judgment) -> None:
    """Add the mass of a judgment to the metric, if it has one."""
    if (mass := judgment.details.get("label_mass")) is not None:
        LABEL_MASS.labels(backend).observe(mass)
