"""The multiplier of a tool budget, and the advantages of answers that have a cost."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardfleet.tool_use.advantages import Method, advantages
from rewardfleet.tool_use.lagrange import update, warning_of
from rewardfleet.wire.tools import BudgetCheckpoint, BudgetOptions, MultiplierCheckpoint, PidGains

DATA = Path(__file__).parents[1] / "data"
ORACLE = json.loads((DATA / "pid_lagrangian.json").read_text())


def options_of(
    *, budget: float = 0.3, eta: float = 0.05, max_lambda: float = 10.0, **gains: float
) -> BudgetOptions:
    """Return options without any gain that is not given."""
    given = {"kp": 0.0, "kd": 0.0, "error_smoothing": 0.0, "cost_smoothing": 0.0, **gains}
    return BudgetOptions(
        budget=budget,
        eta=eta,
        max_lambda=max_lambda,
        controller="pid" if gains else "dual_ascent",
        pid=PidGains(**given),
    )


DUAL_ASCENT = options_of()
PID = options_of(kp=2.0, error_smoothing=0.9)
COSTS = st.lists(st.floats(0, 1e6), min_size=1, max_size=30)
GAINS = st.floats(0, 100)
OPTIONS = st.builds(
    options_of,
    budget=GAINS,
    eta=st.floats(0, 100, exclude_min=True),
    max_lambda=st.floats(0.01, 100),
    kp=GAINS,
    kd=GAINS,
    error_smoothing=st.floats(0, 0.99),
    cost_smoothing=st.floats(0, 0.99),
    derivative_delay=st.integers(1, 5),
)


ADAPTIVE = st.builds(
    BudgetOptions, budget=GAINS, max_lambda=st.floats(0.01, 1e6), controller=st.just("adaptive")
)


def first_state(initial_lambda: float = 0.0) -> MultiplierCheckpoint:
    return MultiplierCheckpoint(multiplier=initial_lambda, integral=initial_lambda)


def states(controller: BudgetOptions, costs: list[float], initial_lambda: float = 0.0):
    state = first_state(initial_lambda)
    return [state := update(controller, state, cost) for cost in costs]


def multipliers(controller: BudgetOptions, costs: list[float], initial_lambda: float = 0.0):
    return [state.multiplier for state in states(controller, costs, initial_lambda)]


# The multiplier


@pytest.mark.parametrize("case", ORACLE["cases"], ids=lambda case: case["costs"])
def test_multipliers_equal_those_of_omnisafe(case: dict):
    costs = ORACLE["costs"][case["costs"]]
    given = {**case["controller"], "eta": case["controller"]["eta"] or 1e-30}  # not 0 in a budget
    result = multipliers(options_of(**given), costs, case["initial_lambda"])
    assert result == pytest.approx(case["multipliers"], rel=0, abs=1e-12)


@given(OPTIONS, COSTS)
def test_multiplier_and_integral_stay_in_their_range(controller: BudgetOptions, costs: list[float]):
    for state in states(controller, costs):
        assert 0 <= state.multiplier <= controller.max_lambda
        assert 0 <= state.integral <= controller.max_lambda
        assert len(state.past_costs) <= controller.pid.derivative_delay


@given(ADAPTIVE, COSTS, st.floats(0, 0.01))
def test_the_adaptive_multiplier_stays_in_its_range(
    controller: BudgetOptions, costs: list[float], first: float
):
    for state in states(controller, costs, first):
        assert 0 <= state.multiplier <= controller.max_lambda
        assert -1 <= state.excess <= 10
        assert np.isfinite([*state.model_dump(exclude={"past_costs"}).values()]).all()


@given(COSTS, st.floats(0, 1e3), st.floats(1e-6, 10))
def test_dual_ascent_is_the_seeds_formula_bit_for_bit(
    costs: list[float], budget: float, eta: float
):
    found = multipliers(BudgetOptions(budget=budget, eta=eta, controller="dual_ascent"), costs)
    for cost, before, after in zip(costs, [0.0, *found], found, strict=False):
        assert after == min(max(0.0, before + eta * (cost - budget)), 1e6)


@given(st.one_of(OPTIONS, ADAPTIVE), COSTS, COSTS)
def test_a_run_that_resumes_from_json_goes_on_with_the_same_multipliers(
    controller: BudgetOptions, before: list[float], after: list[float]
):
    state = states(controller, before)[-1]
    resumed = MultiplierCheckpoint.model_validate_json(state.model_dump_json())
    assert resumed == state
    for cost in after:
        state, resumed = update(controller, state, cost), update(controller, resumed, cost)
        assert resumed == state


def test_a_resumed_run_may_have_other_limits():
    pid = {"kp": 2.0, "error_smoothing": 0.9}
    state = states(options_of(**pid, kd=1.0, derivative_delay=5), [1.0] * 300)[-1]
    state = update(options_of(**pid, max_lambda=2.0, derivative_delay=2), state, 1.0)
    assert state.multiplier == 2.0
    assert state.integral <= 2.0
    assert len(state.past_costs) == 2

    state = states(options_of(**pid, derivative_delay=5), [0.1, 0.2, 0.3, 0.4, 0.5])[-1]
    derivative = options_of(budget=9.0, eta=0.1, max_lambda=1.0, kd=1.0)
    rise = update(derivative, state.model_copy(update={"integral": 0.0}), 0.6)
    assert rise.multiplier == pytest.approx(0.1), "over the new delay, 1"


def test_another_controller_goes_on_with_the_multiplier():
    adaptive = BudgetOptions(budget=0.3)
    state = states(adaptive, [0.5] * 40)[-1]
    assert state.multiplier > 1
    ascended = update(options_of(max_lambda=100.0), state, 0.3)
    assert ascended.multiplier == pytest.approx(state.multiplier)
    assert update(adaptive, ascended, 0.3).multiplier == pytest.approx(state.multiplier)
    below = states(adaptive, [0.0] * 40)[-1]
    assert (below.multiplier, update(PID, below, 0.3).multiplier) == (0.0, 0.0)


def test_a_budget_of_zero_has_a_price_until_nothing_costs_anything():
    options = BudgetOptions(budget=0.0)
    assert multipliers(options, [0.5] * 100)[-1] > 10
    assert multipliers(options, [0.5] * 100 + [0.0] * 100)[-1] == 0.0
    assert multipliers(options, [0.0] * 100)[-1] == 0.0


@pytest.mark.parametrize(
    ("options", "cost", "updates", "warning"),
    [
        ({}, 0.5, 49, None),
        ({}, 0.5, 50, "the mean cost is +16% off the budget, not yet or never reached"),
        ({"max_lambda": 2}, 0.5, 60, "the budget cannot be reached with max_lambda 2"),
        ({"controller": "dual_ascent", "max_lambda": 2}, 0.5, 900, "cannot be reached"),
        ({"initial_lambda": 90, "controller": "dual_ascent"}, 0.1, 60, "-30% off the budget"),
        ({}, 0.32, 300, None),
        ({}, 0.1, 300, None),
    ],
)
def test_a_missed_budget_is_reported(options, cost: float, updates: int, warning: str | None):
    given = BudgetOptions(budget=0.3, **options)
    state = states(given, [cost] * updates, given.initial_lambda)[-1]
    found = warning_of(given, BudgetCheckpoint(multiplier=state, updates=updates))
    assert (found is None) is (warning is None)
    assert warning is None or warning in found


@pytest.mark.parametrize(
    "controller", [DUAL_ASCENT, PID, options_of(kp=5.0, kd=2.0, error_smoothing=0.9)]
)
def test_a_long_violation_does_not_delay_the_fall_of_the_multiplier(controller: BudgetOptions):
    """Without anti-windup the integral is at 85 instead of 10 after 1000 updates."""
    violation, within = [2.0] * 1000, [0.0] * 300
    fall = multipliers(controller, violation + within)[len(violation) :]
    assert min(fall[:16]) < 9.9


def test_the_integral_does_not_grow_while_the_other_terms_saturate_the_multiplier():
    """A limit of 10 for the integral alone keeps λ high for longer than this one."""
    controller = options_of(budget=0.0, eta=0.1, max_lambda=10.0, kp=4.0)
    state = states(controller, [2.0] * 1000)[-1]
    assert state.multiplier == 10.0
    assert state.integral == pytest.approx(2.0), "P takes 8 of 10"
    spike = update(controller, state, 3.0)
    assert spike.integral == state.integral, "neither grows nor is pushed down"
    assert update(controller, state, 0.0).multiplier == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: options_of(eta=float("nan")), "eta"),
        (lambda: options_of(kd=float("inf")), "kd"),
        (lambda: update(PID, first_state(), float("nan")), "mean_cost"),
    ],
)
def test_a_value_that_is_not_finite_is_named(call, message: str):
    """Others that are out of range are tried in tests/server/tools/test_budgets.py."""
    with pytest.raises(ValueError, match=message):
        call()


# Advantages

METHODS: list[Method] = ["std", "mean", "separate", "gated"]
ALL_CORRECT = ([4.0] * 4, [0.0, 1.0, 2.0, 3.0])
MIXED = ([4.0, 4.0, -3.0, -3.0], [3.0, 0.0, 0.0, 0.0])


def one_group(task, cost, multiplier: float, method: Method):
    correct = np.asarray(task) > 0
    return advantages(task, cost, np.zeros(len(task)), multiplier, method=method, correct=correct)


@pytest.mark.parametrize(
    ("method", "scale"),
    [
        ("std", lambda multiplier: 1.1619 * (multiplier > 0)),
        ("mean", lambda multiplier: multiplier * 1.5),
        ("separate", lambda multiplier: multiplier / (1 + multiplier) * 1.1619),
        ("gated", lambda multiplier: multiplier / (1 + multiplier) * 1.1619),
    ],
)
def test_with_std_alone_the_multiplier_has_no_effect_where_all_are_correct(method: Method, scale):
    """The figures are of a sample standard deviation, as in the GRPO of verl and TRL."""
    for multiplier in (0.0, 0.01, 0.1, 1.0, 3.0):
        result = one_group(*ALL_CORRECT, multiplier, method)
        expected = scale(multiplier) * np.array([1, 1 / 3, -1 / 3, -1])
        assert result == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("method", ["std", "mean", "separate"])
def test_a_correct_answer_with_a_cost_may_get_a_negative_advantage(method: Method):
    assert one_group(*MIXED, 2.0, method)[0] < 0
    assert one_group(*MIXED, 0.1, method)[0] > 0


def test_with_gated_it_never_does():
    assert one_group(*MIXED, 2.0, "gated") == pytest.approx(
        [0.433, 1.299, -0.866, -0.866], abs=1e-3
    ), "half of 0.866, and as much for the answer without a cost"
    assert one_group(*MIXED, 0.1, "gated") == pytest.approx(
        [0.802, 0.930, -0.866, -0.866], abs=1e-3
    ), "0.866 -+ 0.1/1.1 x 0.707"


@pytest.mark.parametrize(
    ("task", "cost", "correct", "expected"),
    [
        ([1, 0, 0], [5, 0, 1], [1, 0, 0], "the task advantage: no other correct answer to compare"),
        ([0, 0, 1], [5, 3, 1], [0, 0, 0], "the task advantage: no correct answer"),
        ([1, 1, 0], [2, 2, 0], [1, 1, 0], "the task advantage: equal costs of correct answers"),
        ([0, 1, 9], [9, 0, 0], [1, 1, 0], "the task advantage: it is negative by itself"),
    ],
)
def test_gated_leaves_the_task_advantage(task, cost, correct, expected: str):
    result = advantages(task, cost, [7] * 3, 1.0, method="gated", correct=np.array(correct, bool))
    assert result == pytest.approx(advantages(task, [0] * 3, [7] * 3, 0.0)), expected


BATCH = st.lists(
    st.tuples(
        st.sampled_from([-3.0, 0.1, 2.5, 4.0]),
        st.integers(0, 5),
        st.sampled_from(["a", "b", "c"]),
    ),
    min_size=2,
    max_size=24,
).filter(lambda rows: all([g for *_, g in rows].count(g) > 1 for *_, g in rows))


def columns(rows):
    task, cost, groups = (np.array(column) for column in zip(*rows, strict=True))
    return task, cost.astype(float), groups


@given(BATCH, st.floats(0, 10))
def test_gated_keeps_the_sign_of_every_advantage_in_a_group_with_wrong_answers(rows, multiplier):
    task, cost, groups = columns(rows)
    correct = task > 0
    result = advantages(task, cost, groups, multiplier, method="gated", correct=correct)
    of_task = advantages(task, cost, groups, 0.0)
    is_mixed = np.array([not correct[groups == group].all() for group in groups])
    assert (np.sign(result) == np.sign(of_task))[is_mixed].all()
    assert (result == of_task)[~correct].all()


@pytest.mark.slow
@given(BATCH, st.floats(0, 10), st.sampled_from(METHODS))
def test_each_group_is_computed_alone_in_any_order_and_without_the_offset_of_its_values(
    rows, multiplier, method
):
    task, cost, groups = columns(rows)
    result = advantages(task, cost, groups, multiplier, method=method, correct=task > 0)
    for group in np.unique(groups):
        is_in = groups == group
        alone = advantages(
            task[is_in][::-1] + 7,
            cost[is_in][::-1] + 3,
            [5] * is_in.sum(),
            multiplier,
            method=method,
            correct=task[is_in][::-1] > 0,
        )
        assert result[is_in][::-1] == pytest.approx(alone, abs=1e-6)
        assert method == "gated" or alone.mean() == pytest.approx(0, abs=1e-9)


@pytest.mark.slow
@given(BATCH, st.floats(0, 10), st.floats(0.5, 100))
def test_separate_does_not_depend_on_the_units(rows, multiplier, scale):
    task, cost, groups = columns(rows)
    result = advantages(task, cost, groups, multiplier)
    other_units = advantages(task * scale, cost / scale, groups, multiplier)
    assert other_units == pytest.approx(result, abs=2e-3), "up to the 1e-6 beside the std"
    of_task = advantages(task, np.zeros_like(task), groups, 0.0, method="std")
    assert (advantages(task, cost, groups, 0.0) == of_task).all()


@pytest.mark.parametrize("method", METHODS)
def test_equal_values_have_an_advantage_of_exactly_zero(method: Method):
    """Also where the mean differs from them by rounding."""
    result = one_group([1e9 + 0.1] * 3, [0.1] * 3, 0.7, method)
    assert result.tolist() == [0, 0, 0]
    assert one_group([], [], 1.0, method).shape == (0,)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@given(st.lists(st.booleans(), min_size=4, max_size=12), st.randoms())
def test_an_answer_without_a_score_does_not_count_in_its_group(method: Method, scored, random):
    """The others have the advantages that they have without it; an answer left alone has none."""
    task = np.array([random.uniform(-3, 4) for _ in scored])
    cost = np.array([random.uniform(0, 3) for _ in scored])
    correct = np.array([random.random() < 0.6 for _ in scored])
    groups = np.arange(len(scored)) % 2
    has = np.array(scored)
    lost = [random.choice((task, cost)) for _ in scored]
    for index in np.flatnonzero(~has):
        lost[index][index] = np.nan
    result = advantages(task, cost, groups, 1.5, method=method, correct=correct)
    for group in (0, 1):
        left = has & (groups == group)
        if left.sum() > 1:
            alone = advantages(
                task[left], cost[left], groups[left], 1.5, method=method, correct=correct[left]
            )
            assert result[left].tolist() == pytest.approx(alone.tolist(), abs=1e-9)
        else:
            assert np.isnan(result[left]).all()
    assert np.isnan(result[~has]).all()


@pytest.mark.parametrize("line", (DATA / "client" / "advantages.jsonl").read_text().splitlines())
def test_invalid_input_is_named_by_its_position(line: str):
    arguments, options, message = json.loads(line)
    task, cost, groups, multiplier = arguments
    with pytest.raises(ValueError, match=message):
        advantages(task, cost, list(groups), multiplier, **options)


@pytest.mark.serial
@pytest.mark.parametrize("method", METHODS)
def test_100000_answers_take_less_than_a_second(method: Method):
    rng = np.random.default_rng(0)
    count = 100_000
    groups = rng.permutation(np.repeat(np.arange(count // 8), 8))
    task, cost, correct = rng.random(count), rng.integers(0, 5, count), rng.random(count) > 0.5
    took = []
    for _ in range(3):
        start = time.perf_counter()
        advantages(task, cost, groups, 1.0, method=method, correct=correct)
        took.append(time.perf_counter() - start)
    assert min(took) < 0.5, "about 5 ms"


# Controller, advantages and a policy that learns

LEVELS = 8
STEPS = 1000
HARD_WITHOUT_TOOLS = np.linspace(0.95, 0.05, LEVELS)


def train(
    controller: BudgetOptions, method: Method, seed: int, succeeds_directly, succeeds_with_tool=0.9
) -> np.ndarray:
    """Return the mean cost of each of 1000 steps, [steps].

    A policy with one logit per level of difficulty decides whether to answer with a tool, which
    costs 1. Each step samples 8 answers per level and follows REINFORCE with their advantages.
    """
    rng = np.random.default_rng(seed)
    levels = np.repeat(np.arange(LEVELS), 8)
    logits = np.zeros(LEVELS)
    state = first_state()
    costs = np.zeros(STEPS)
    for step in range(STEPS):
        probability = (1 / (1 + np.exp(-logits)))[levels]
        cost = (rng.random(levels.size) < probability).astype(float)
        success = np.where(cost > 0, succeeds_with_tool, succeeds_directly[levels])
        correct = rng.random(levels.size) < success
        costs[step] = cost.mean()
        state = update(controller, state, costs[step])
        advantage = advantages(
            correct.astype(float), cost, levels, state.multiplier, method=method, correct=correct
        )
        gradient = np.bincount(levels, advantage * (cost - probability)) / 8
        logits += 0.3 * (gradient - 0.02 * logits)  # 0.02: the weight of a KL penalty
    return costs


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    "controller", [BudgetOptions(), DUAL_ASCENT, PID], ids=["adaptive", "dual_ascent", "pid"]
)
def test_the_mean_cost_settles_at_the_budget(controller: BudgetOptions, seed: int):
    costs = train(controller, "separate", seed, HARD_WITHOUT_TOOLS)
    assert costs[:5].mean() > 0.4, "the budget is a constraint"
    assert abs(costs[-100:].mean() - controller.budget) < 0.02


@pytest.mark.slow
def test_with_std_it_does_not_settle_where_all_answers_are_correct():
    """The multiplier can only turn the price of tools on and off, at λ = 0."""
    easy = np.ones(LEVELS)
    settled, unsettled = (
        [abs(train(PID, method, seed, easy, 1.0)[-100:].mean() - 0.3) for seed in (0, 1)]
        for method in ("separate", "std")
    )
    assert max(settled) < 0.02 < min(unsettled)
