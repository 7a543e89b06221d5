"""How much probability the labels of a readout have: what it rests on, and its metric."""

import math
from collections.abc import Iterable

from prometheus_client import Histogram

from rewardfleet.wire.errors import BackendFailed

#: What a logarithm or a sum may be too large by, from rounding to 16 bits.
_TOLERANCE = 0.01
#: What the setting `min_label_mass` is.
HELP = "The least probability of all labels together; with less, the judge abstains."
#: Of all judgments with the detail `label_mass`.
LABEL_MASS = Histogram(
    "rewardfleet_label_mass",
    "Probability, in [0, 1], of all labels of a judge together. Where it is small, the model would "
    "rather say something else.",
    ("backend",),
    registry=None,
    buckets=(0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1),
)


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
    shown = ", ".join(f"{value:.3g}" for value in values[:3])
    raise BackendFailed(f"the model's values are no log-probabilities, such as logits: {shown}")
