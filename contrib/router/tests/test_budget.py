"""The budget of a training run, at a real tools service that loses its state."""

import numpy as np
import pytest

from rewardfleet import blocking
from rewardfleet_router.budget import RunBudget, new_run_name
from rewardfleet_router.config import Router

TASK, COST = np.array([1.0, 0.0]), np.array([1.0, 1.0])


@pytest.mark.parametrize("lost_before", ["apply_once", "read"])
def test_a_budget_that_the_service_has_lost_is_restored(losable, lost_before: str):
    """The state is lost before an update is counted, or between it and the read after it."""
    url, state = losable
    options = Router(every=2).budget_options()
    with blocking.RewardFleet(tools=url) as fleet:
        budgets = [RunBudget(fleet, f"run/{name}", options) for name in ("first", "second")]
        multipliers = {budget.run: [budget.open()] for budget in budgets}
        for budget in budgets:
            for step in range(4):
                if budget is budgets[1] and step == 3:
                    state.lose_before = lost_before
                multipliers[budget.run].append(budget.update(step, TASK, COST))
    assert state.losses == 1
    assert multipliers["run/second"] == multipliers["run/first"]
    assert multipliers["run/first"][-1] > 0
    assert budgets[1].checkpoint == budgets[0].checkpoint
    assert budgets[1].checkpoint["step"] == 3


def test_a_budget_resumes_from_a_checkpoint_at_a_service_without_state(losable):
    url, state = losable
    options = Router().budget_options()
    with blocking.RewardFleet(tools=url) as fleet:
        budget = RunBudget(fleet, "run", options)
        budget.open()
        multiplier = budget.update(0, TASK, COST)
        checkpoint = budget.checkpoint
        after = [budget.update(1, TASK, COST)]
        state.lose()
        resumed = RunBudget(fleet, "run", options)
        assert resumed.open(checkpoint) == multiplier
        after.append(resumed.update(1, TASK, COST))
    assert after[0] == after[1] > multiplier


def test_names_of_runs_are_new_and_short_enough():
    names = {new_run_name("project", "e" * 300) for _ in range(2)}
    assert len(names) == 2 and all(len(name) <= 200 for name in names)
