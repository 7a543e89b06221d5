"""The Lagrange multiplier of a budget: the price of one unit of cost, adjusted after every step.

The mean cost of a policy should stay at or below a budget B. The multiplier λ rises while the mean
cost is above B and falls while it is below, so a policy that is trained on task reward - λ x cost
settles where its cost meets the budget, or at λ = 0 if it spends less on its own.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from typing_extensions import Self


@dataclass(frozen=True)
class Controller:
    """Budget and gains of a multiplier.

    With `kp` = `kd` = 0 this is dual ascent. Otherwise it is the PID controller of Stooke, Achiam
    and Abbeel 2020 (arXiv 2007.03964): the proportional term damps the oscillation of dual ascent,
    and the derivative term reacts to costs that rise.

    Raises:
        ValueError: A value is out of range.
    """

    budget: float  #: B, the mean cost per answer to stay within; 0 or more
    eta: float  #: step of dual ascent, which is the gain of the integral; 0 or more
    max_lambda: float  #: largest multiplier; above 0
    kp: float = 0.0  #: gain of the smoothed error, mean cost - B; 0 or more
    kd: float = 0.0  #: gain of the rise of the smoothed cost; 0 or more
    #: Weight of the old value in the moving average of the error, in [0, 1).
    error_smoothing: float = 0.0
    #: Weight of the old value in the moving average of the cost, in [0, 1).
    cost_smoothing: float = 0.0
    derivative_delay: int = 1  #: updates over which the rise of the cost is measured; 1 or more

    def __post_init__(self) -> None:
        for name in ("budget", "eta", "kp", "kd"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name}: a finite number of 0 or more (got {value})")
        if not (math.isfinite(self.max_lambda) and self.max_lambda > 0):
            raise ValueError(f"max_lambda: a finite number above 0 (got {self.max_lambda})")
        for name in ("error_smoothing", "cost_smoothing"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise ValueError(f"{name}: in [0, 1) (got {value})")
        if self.derivative_delay < 1:
            raise ValueError(f"derivative_delay: 1 or more (got {self.derivative_delay})")


@dataclass(frozen=True)
class MultiplierState:
    """A multiplier, and all that its next update depends on besides the `Controller`.

    It consists of floats: `from_dict(json.loads(json.dumps(dataclasses.asdict(state))))` is equal
    to `state`.
    """

    multiplier: float  #: λ, in [0, `max_lambda`]
    integral: float  #: the integral term, in [0, `max_lambda`]
    error: float = 0.0  #: moving average of mean cost - budget; 0 before the first update
    cost: float = 0.0  #: moving average of the mean cost; 0 before the first update
    #: `cost` after the last updates, oldest first, at most `derivative_delay` of them; begins as
    #: (0.0,), so that the first cost counts as a rise, as in omnisafe.
    past_costs: tuple[float, ...] = (0.0,)

    @classmethod
    def initial(cls, initial_lambda: float = 0.0) -> Self:
        """Return the state before the first update.

        Raises:
            ValueError: `initial_lambda` is negative or not finite.
        """
        if not (math.isfinite(initial_lambda) and initial_lambda >= 0):
            raise ValueError(f"initial_lambda: a finite number of 0 or more (got {initial_lambda})")
        return cls(multiplier=float(initial_lambda), integral=float(initial_lambda))

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Return the state of `dataclasses.asdict`, also after a round trip through JSON."""
        return cls(**{**fields, "past_costs": tuple(fields["past_costs"])})


def update(controller: Controller, state: MultiplierState, mean_cost: float) -> MultiplierState:
    """Return the state after a step of training whose answers cost `mean_cost` on average.

    With error = mean cost - B, and P and D of the smoothed error and cost:

        PD = kp x error + kd x max(0, cost - cost `derivative_delay` updates ago)
        I ← clip(I + eta x error, 0, max(I, max_lambda - max(0, PD)))
        λ = clip(I + PD, 0, max_lambda)

    The upper limit of I is the anti-windup: I grows only while the sum is below `max_lambda`, since
    what it gains beyond has no effect until the violation is over, and then has to be unlearned
    while the policy is already within budget. Where PD takes up the room, I stays as it is instead
    of being pushed down, or every spike of the noisy D would erase what I has learned.

    Without `kp` and `kd` this is λ ← clip(λ + eta x (mean cost - B), 0, max_lambda).

    Args:
        controller: Budget and gains. It may differ from that of earlier updates.
        state: The state after the previous step.
        mean_cost: Mean cost per answer of this step, in the unit of the budget.

    Raises:
        ValueError: `mean_cost` is not finite.
    """
    if not math.isfinite(mean_cost):
        raise ValueError(f"mean_cost: a finite number (got {mean_cost})")
    new_error = float(mean_cost) - controller.budget
    error = _smooth(controller.error_smoothing, state.error, new_error)
    cost = _smooth(controller.cost_smoothing, state.cost, float(mean_cost))
    past_costs = state.past_costs[-controller.derivative_delay :]
    pd = controller.kp * error + controller.kd * max(0.0, cost - past_costs[0])

    room = controller.max_lambda - max(0.0, pd)
    highest = min(controller.max_lambda, max(state.integral, room))
    integral = _clip(state.integral + controller.eta * new_error, highest)
    return MultiplierState(
        multiplier=_clip(integral + pd, controller.max_lambda),
        integral=integral,
        error=error,
        cost=cost,
        past_costs=(*past_costs, cost)[-controller.derivative_delay :],
    )


def _smooth(weight: float, old: float, new: float) -> float:
    return weight * old + (1 - weight) * new


def _clip(value: float, highest: float) -> float:
    return float(min(max(value, 0.0), highest))
