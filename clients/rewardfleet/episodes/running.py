"""The running mean and variance of the rewards of a training run."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from pydantic import ConfigDict, Field, FiniteFloat

from .arrays import EPSILON, Floats, check


@dataclass(frozen=True)
class RunningMeanStd:
    """Mean and standard deviation of all rewards so far, updated batch by batch.

    Source: Chan, Golub, LeVeque 1979 (parallel variance), as in Gymnasium's `RunningMeanStd`.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid", strict=True)

    count: Annotated[int, Field(ge=0)] = 0  #: number of rewards
    mean: FiniteFloat = 0.0  #: their mean
    #: Sum of their squared deviations from the mean.
    m2: Annotated[FiniteFloat, Field(ge=0)] = 0.0

    @property
    def variance(self) -> float:
        """Population variance; 0 without rewards."""
        return self.m2 / self.count if self.count else 0.0

    def updated(self, rewards: ArrayLike) -> "RunningMeanStd":
        """Return the statistics with `rewards`, [N], included; NaN, a missing one, is left out.

        Raises:
            ValueError: A reward is infinite.
        """
        values = np.asarray(rewards, float)
        check(~np.isinf(values), "rewards: finite numbers, or NaN", values)
        values = values[~np.isnan(values)]
        if not values.size:
            return self
        count = self.count + values.size
        delta = float(values.mean()) - self.mean
        within = float(((values - values.mean()) ** 2).sum())
        m2 = self.m2 + within + delta**2 * self.count * values.size / count
        return RunningMeanStd(count, self.mean + delta * values.size / count, m2)

    def normalize(self, rewards: ArrayLike) -> Floats:
        """Return (reward - mean)/(std + 1e-6), [N]."""
        std = np.sqrt(self.variance) + EPSILON
        normalized: Floats = (np.asarray(rewards, float) - self.mean) / std
        return normalized
