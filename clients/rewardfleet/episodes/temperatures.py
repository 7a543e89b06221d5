"""Sampling temperatures of the samples of a prompt, their adaptation, and their outcomes."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import ConfigDict, Field, FiniteFloat

from .arrays import Floats
from .kinds import Rewards

#: Limits of an adapted base temperature.
_MIN_BASE, _MAX_BASE = 0.1, 1.5
#: Limits of an adapted range, the highest temperature minus the lowest.
_MIN_RANGE, _MAX_RANGE = 0.05, 1.0
#: Rate of adaptation: a signal s multiplies both by exp(_RATE s).
_RATE = 0.3
#: Temperatures are binned to tenths, up to this one.
_LAST_BIN = 20


def spread_temperatures(n: int, base: float = 0.6, width: float = 0.3) -> Floats:
    """Return n temperatures, evenly from base to base + width, or base alone if n is 1: [n].

    T_i = base + width i/(n - 1). Source: the original test-time RL code for SimpleVLA-RL.

    Args:
        n: Number of samples, 1 or more.

    Raises:
        ValueError: n is below 1.
    """
    if n < 1:
        raise ValueError(f"n: give 1 sample or more, not {n}")
    return np.round(np.linspace(base, base + width, n), 12)  # 0.7, not 0.7000000000000001


@dataclass(frozen=True)
class TemperatureSchedule:
    """The temperatures of a run."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid", strict=True)

    base: Annotated[FiniteFloat, Field(gt=0)]  #: the lowest temperature
    width: Annotated[FiniteFloat, Field(ge=0)]  #: the highest minus the lowest

    def after(self, signal: float) -> "TemperatureSchedule":
        """Return the schedule after a step: base and width x exp(0.3 signal), within the limits.

        The factors of opposite signals cancel. A width of 0 stays 0: diversity is not requested.

        Args:
            signal: Clipped to [-1, 1]; above 0 for more exploration, below for less. For instance
                success rate - target, or 1 - diversity/target.
        """
        factor = math.exp(_RATE * min(max(signal, -1.0), 1.0))
        width = min(max(self.width * factor, _MIN_RANGE), _MAX_RANGE) if self.width else 0.0
        return TemperatureSchedule(min(max(self.base * factor, _MIN_BASE), _MAX_BASE), width)


@dataclass(frozen=True)
class TemperatureBin:
    """The scored episodes that were sampled at one temperature."""

    temperature: str  #: the temperature, to the nearest tenth
    episodes: int  #: number of episodes
    success_rate: float  #: in [0, 1]; NaN if an episode has no `success`
    steps: float  #: mean number; NaN if an episode has no `steps`
    reward_mean: float  #: mean reward, before normalization
    reward_variance: float  #: population variance of the rewards, before normalization


def by_temperature(rewards: Rewards) -> list[TemperatureBin]:
    """Return the statistics of each temperature, to the nearest tenth, in rising order.

    Episodes without a `temperature` are left out.
    """
    batch = rewards.batch
    rounded = np.round(np.clip(batch.number("temperature") * 10, 0, _LAST_BIN))  # 6 for 0.58
    tenths = np.where(batch.ok, rounded, np.nan)
    bins = []
    for tenth in np.unique(tenths[~np.isnan(tenths)]).tolist():
        in_bin = tenths == tenth
        values = rewards.values[in_bin]
        bins.append(
            TemperatureBin(
                temperature=f"{tenth / 10:.1f}",
                episodes=int(in_bin.sum()),
                success_rate=float(batch.number("success")[in_bin].mean()),
                steps=float(batch.number("steps")[in_bin].mean()),
                reward_mean=float(values.mean()),
                reward_variance=float(values.var()),
            )
        )
    return bins
