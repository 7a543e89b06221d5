"""The Lagrange multiplier of a budget: the price of one unit of cost, adjusted after every step.

The mean cost of a policy should stay at or below a budget B. The multiplier λ rises while the mean
cost is above B and falls while it is below, so a policy that is trained on task reward - λ x cost
settles where its cost meets the budget, or at λ = 0 if it spends less on its own.
"""

import math

from rewardfleet.wire.tools import BudgetCheckpoint, BudgetOptions, MultiplierCheckpoint, PidGains

_DUAL_ASCENT = PidGains(kp=0.0, kd=0.0, error_smoothing=0.0, cost_smoothing=0.0)

# Of `adaptive`, found by random search on the grid in tests/client/test_budget_grid.py.
#: The proportional and the integral term, times the gain.
_KP, _KI = 2.0, 0.2
#: The first, lowest and highest product of gain and mean cost, in units of reward.
_FIRST_GAIN, _LOWEST_GAIN, _HIGHEST_GAIN = 3.0, 0.01, 10.0
#: How fast the gain rises while the cost stays on one side of the budget, and falls otherwise.
_RISE, _FALL = 0.05, 0.1
#: Weights of old values in the averages of cost and excess; the long one has about 100 updates.
_COST_SMOOTHING, _EXCESS_SMOOTHING, _LONG_SMOOTHING = 0.8, 0.9, 0.99
#: One update is at most this many budgets too expensive; a budget of 0 counts as the other.
_MAX_EXCESS, _LEAST_BUDGET = 10.0, 1e-6
#: A tenth above a budget is 0.09 of the cost: it is missed, but not before this many updates.
_MISSED, _PATIENCE = 0.09, 50


def update(
    options: BudgetOptions, state: MultiplierCheckpoint, mean_cost: float
) -> MultiplierCheckpoint:
    """Return the state after a step of training whose answers cost `mean_cost` on average.

    `adaptive` is below. For the others, with error = mean cost - B, P and D of the smoothed values:

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
    mean_cost, budget = float(mean_cost), max(options.budget, _LEAST_BUDGET)
    # Divided by earlier costs: by its own, its noise would not cancel out.
    excess = min((mean_cost - budget) / max(state.cost or mean_cost, budget), _MAX_EXCESS)
    if options.controller == "adaptive":
        return _adaptive(options, state, mean_cost, excess)
    gains = options.pid if options.controller == "pid" else _DUAL_ASCENT
    new_error = mean_cost - options.budget
    error = _smooth(gains.error_smoothing, state.error, new_error)
    cost = _smooth(gains.cost_smoothing, state.cost, mean_cost)
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
        excess=_smooth(_LONG_SMOOTHING, state.excess, excess),
    )


def _adaptive(
    options: BudgetOptions, state: MultiplierCheckpoint, mean_cost: float, excess: float
) -> MultiplierCheckpoint:
    """Return the state after an update of `adaptive`.

    With c, the moving average of the cost, and excess = (mean cost - B) / max(c, B):

        I ← I + gain x (kp x (change of log max(c, B/e)) + ki x excess), at least -kp x gain
        λ = clip(I, 0, max_lambda)

    The gain is in units of reward per cost, so the unit of cost does not matter. What gain a policy
    can follow depends on how fast it learns: as in the delta-bar-delta rule (Jacobs 1988), the gain
    rises while the cost stays on one side of the budget, and falls when it changes sides. I may be
    below 0, or the noise of small costs, of which λ = 0 cuts off a half, would be a price.
    """
    budget = max(options.budget, _LEAST_BUDGET)
    before = state.cost or mean_cost
    cost = _smooth(_COST_SMOOTHING, before, mean_cost)
    levels = [math.log(max(each / budget, 1 / math.e)) for each in (before, cost)]
    gain, integral, error = state.gain, state.integral, min(max(state.error, -1.0), 1.0)
    if not gain:  # the first update, or the first after those of another controller
        gain, error = _FIRST_GAIN / max(mean_cost, budget), 0.0
        integral = state.multiplier or min(0.0, _KP * gain * levels[0])
    limited = min(excess, 1.0)
    if integral < options.max_lambda if excess > 0 else integral > 0:
        gain *= math.exp(limited * error * (_RISE if limited * error > 0 else _FALL))
    scale = max(cost, budget)
    gain = min(max(gain, _LOWEST_GAIN / scale), _HIGHEST_GAIN / scale)
    integral += gain * (_KP * (levels[1] - levels[0]) + _KI * excess)
    integral = min(max(integral, -_KP * gain), options.max_lambda)
    return MultiplierCheckpoint(
        multiplier=max(integral, 0.0),
        integral=integral,
        error=_smooth(_EXCESS_SMOOTHING, error, limited),
        cost=cost,
        gain=gain,
        excess=_smooth(_LONG_SMOOTHING, state.excess, excess),
    )


def warning_of(options: BudgetOptions, checkpoint: BudgetCheckpoint) -> str | None:
    """Return why the budget is missed, as a mean of about 100 updates; None if it is met.

    A run that spends less without a price meets it.
    """
    state = checkpoint.multiplier
    is_met = abs(state.excess) <= _MISSED or (state.excess < 0 and state.multiplier == 0)
    if is_met or checkpoint.updates < _PATIENCE:
        return None
    if state.excess > 0 and state.multiplier >= options.max_lambda:
        return f"the budget cannot be reached with max_lambda {options.max_lambda:g}"
    return f"the mean cost is {state.excess:+.0%} off the budget, not yet or never reached"


def _smooth(weight: float, old: float, new: float) -> float:
    return weight * old + (1 - weight) * new


def _clip(value: float, highest: float) -> float:
    return float(min(max(value, 0.0), highest))
