"""The temperatures that a prompt's samples are taken at, and how they follow what came of them."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .rewards import Floats
from .settle import Settled

#: Bounds that adaptation keeps to, and how strongly it answers to a signal.
MIN_BASE, MAX_BASE = 0.1, 1.5
MIN_RANGE, MAX_RANGE = 0.05, 1.0
RATE = 0.3
#: Temperatures are told in bins of a tenth, up to this one.
LAST_BIN = 20


def spread(n: int, base: float = 0.6, width: float = 0.3) -> Floats:
    """Return n temperatures, evenly from base to base + width; base alone for one: [n].

    Source: seed 000, T_i = base + width i/(n - 1).

    Raises:
        ValueError: n is below 1.
    """
    if n < 1:
        raise ValueError(f"n: give 1 sample or more, not {n}")
    return np.round(np.linspace(base, base + width, n), 12)  # 0.7, not 0.7000000000000001


@dataclass(frozen=True)
class Schedule:
    """Where a run's temperatures stand."""

    base: float
    width: float

    def after(self, signal: float) -> "Schedule":
        """Move base and width by a signal in [-1, 1]: x exp(0.3 signal), within the bounds.

        Above 0 asks for more exploration, below for less. It is multiplied, so that as much up as
        down leads back. A width of 0 stays 0: nobody asked for diversity.
        """
        factor = math.exp(RATE * min(max(signal, -1.0), 1.0))
        width = min(max(self.width * factor, MIN_RANGE), MAX_RANGE) if self.width else 0.0
        return Schedule(min(max(self.base * factor, MIN_BASE), MAX_BASE), width)


def signal_of_success(rate: float, target: float) -> float:
    """More exploration while the task is easier than asked for: rate - target, in [-1, 1]."""
    return rate - target


def signal_of_diversity(diversity: float, target: float) -> float:
    """More exploration while trajectories are too alike: 1 - diversity/target, at least -1."""
    return max(1 - diversity / target, -1.0)


def bins(temperatures: ArrayLike) -> NDArray[np.intp]:
    """The nearest tenth of each temperature, [N]: 0 to 20, which is 2 and above; -1 for NaN."""
    values = np.asarray(temperatures, float)
    tenths = np.clip(np.round(values * 10), 0, LAST_BIN)
    return np.where(np.isnan(values), -1, tenths).astype(np.intp)


@dataclass(frozen=True)
class Bin:
    """The scored episodes sampled at about one temperature; NaN where it is not known."""

    temperature: str
    episodes: int
    success_rate: float
    steps: float
    reward_mean: float
    reward_variance: float


def by_temperature(settled: Settled) -> list[Bin]:
    """What came of each temperature, to the nearest tenth; rewards before normalisation.

    Variance is the population's. Episodes that tell no temperature are left out.
    """
    measured = settled.measured
    table = measured.table
    numbers = np.where(table.ok, bins(table.number("temperature")), -1)
    found = []
    for tenth in np.unique(numbers[numbers >= 0]).tolist():
        here = numbers == tenth
        rewards = measured.rewards[here]
        found.append(
            Bin(
                f"{tenth / 10:.1f}",
                int(here.sum()),
                float(table.number("success")[here].mean()),
                float(table.number("steps")[here].mean()),
                float(rewards.mean()),
                float(rewards.var()),
            )
        )
    return found
