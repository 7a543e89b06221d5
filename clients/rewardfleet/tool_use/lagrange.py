"""The Lagrange multiplier of a budget: the price of one unit of cost, adjusted after every step.

The mean cost of a policy should stay at or below a budget B. The multiplier λ rises while the mean
cost is above B and falls while it is below, so a policy that is trained on task reward - λ x cost
settles where its cost meets the budget, or at λ = 0 if it spends less on its own.
"""

import math

from rewardfleet.wire.tools import BudgetOptions, MultiplierCheckpoint, PidGains

_DUAL_ASCENT = PidGains(kp=0.0, kd=0.0, error_smoothing=0.0, cost_smoothing=0.0)


def update(
    options: BudgetOptions, state: MultiplierCheckpoint, mean_cost: float
) -> MultiplierCheckpoint:
    """Return the state after a step of training whose answers cost `mean_cost` on average.

    With error = mean cost - B, and P and D of the smoothed error and cost:

        PD = kp x error + kd x max(0, cost - cost `derivative_delay` updates ago)
        I ← clip(I + eta x error, 0, max(I, max_lambda - max(0, PD)))
        λ = clip(I + PD, 0, max_lambda)

    The upper limit of I is the anti-windup: I grows only while the sum is below `max_lambda`, since
    what it gains beyond has no effect until the violation is over, and then has to be unlearned
    while the policy is already within budget. Where PD takes up the room, I stays as it is instead
    of being pushed down, or every spike of the noisy D would erase what I has learned.

    For `dual_ascent`, kp and kd are 0: λ ← clip(λ + eta x (mean cost - B), 0, max_lambda). `pid` is
    the controller of Stooke, Achiam and Abbeel 2020 (arXiv 2007.03964): the proportional term damps
    the oscillation of dual ascent, and the derivative term reacts to costs that rise.

    Args:
        options: Budget and gains. They may differ from those of earlier updates.
        state: The state after the previous step; λ and I are equal before the first one.
        mean_cost: Mean cost per answer of this step, in the unit of the budget.

    Raises:
        ValueError: `mean_cost` is not finite.
    """
    if not math.isfinite(mean_cost):
        raise ValueError(f"mean_cost: a finite number (got {mean_cost})")
    gains = options.pid if options.controller == "pid" else _DUAL_ASCENT
    new_error = float(mean_cost) - options.budget
    error = _smooth(gains.error_smoothing, state.error, new_error)
    cost = _smooth(gains.cost_smoothing, state.cost, float(mean_cost))
    past_costs = state.past_costs[-gains.derivative_delay :]
    pd = gains.kp * error + gains.kd * max(0.0, cost - past_costs[0])

    room = options.max_lambda - max(0.0, pd)
    highest = min(options.max_lambda, max(state.integral, room))
    integral = _clip(state.integral + options.eta * new_error, highest)
    return MultiplierCheckpoint(
        multiplier=_clip(integral + pd, options.max_lambda),
        integral=integral,
        error=error,
        cost=cost,
        past_costs=[*past_costs, cost][-gains.derivative_delay :],
    )


def _smooth(weight: float, old: float, new: float) -> float:
    return weight * old + (1 - weight) * new


def _clip(value: float, highest: float) -> float:
    return float(min(max(value, 0.0), highest))
