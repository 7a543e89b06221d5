"""The experiment of examples/router_budget.py: its prompts, its responder, and its optimum."""

from collections import Counter
from types import ModuleType

import numpy as np
import pytest
from scipy import optimize

from rewardfleet.tool_use import score_answer
from rewardfleet.wire.tools import ToolsOptions
from rewardfleet_router.routes import ROUTES, rewrite_prompt
from rewardfleet_server.testing import serving
from rewardfleet_server.tools.app import create_app
from rewardfleet_server.tools.settings import ToolsSettings


@pytest.fixture(scope="module")
def table(example: ModuleType):
    with serving(create_app(ToolsSettings())) as url:
        return example.expected_rewards(url)


def test_prompts_have_the_published_mix_exactly(example: ModuleType):
    questions = example.questions(5_000, 3)
    assert Counter(question.kind for question in questions) == {
        kind: 50 * percent for kind, percent in example.KINDS.items()
    }
    for number, level in enumerate(example.LEVELS):
        cell = [q for q in questions if q.kind == "search" and q.level == number]
        assert len(cell) == 15 * level.percent
        assert sum(q.needs_tool for q in cell) == pytest.approx(len(cell) * level.search)


def test_the_responder_calls_only_what_its_prompt_lists(example: ModuleType):
    question = example.Question("calculate", 7, True, "Arlen", 12, 34)
    messages = [{"role": "system", "content": example.SYSTEM}]
    calls = {}
    for route in ROUTES:
        rewritten = rewrite_prompt(messages, route, example.FAMILIES)
        calls[route.name] = [text for _, text in example.outcomes(rewritten, question)]
    assert all("<tool_call>" not in text for text in calls["ANSWER"])
    assert all("web_search" in text for text in calls["SEARCH"])
    assert all("calculator" in text for text in calls["CALCULATE"])


def test_the_expected_rewards_are_those_of_many_sampled_answers(example: ModuleType, table):
    random = np.random.default_rng(0)
    questions = [q for q in example.questions(20_000, 5) if (q.kind, q.level) == ("either", 5)]
    messages = [{"role": "system", "content": example.SYSTEM}]
    rewritten = rewrite_prompt(messages, ROUTES[1], example.FAMILIES)
    rewards = []
    for question in questions:
        possible = example.outcomes(rewritten, question)
        _, text = possible[int(random.random() >= possible[0][0])]
        scored = score_answer(
            text, example.ground_truth(question), ToolsOptions(variant=example.VARIANT)
        )
        rewards.append((scored.task, scored.cost))
    task, cost = np.mean(rewards, axis=0)
    cell = table.row("either", 5)
    assert task == pytest.approx(table.task[cell, 1], abs=0.05)
    assert cost == 1 == pytest.approx(table.cost[cell, 1])


@pytest.mark.parametrize("budget", [0.0, 0.1, 0.345, 0.5, 0.64, 1.0])
def test_the_optimum_is_that_of_linear_programming(example: ModuleType, table, budget: float):
    assert_optimal(example, table, budget)


def test_the_optimum_is_that_of_linear_programming_for_any_rewards_and_costs(example: ModuleType):
    """Also where a route costs more and brings less, or where mixing two routes beats a third."""
    random = np.random.default_rng(0)
    for _ in range(200):
        cells = int(random.integers(1, 8))
        share = random.dirichlet(np.ones(cells))
        task = random.normal(size=(cells, 3))
        cost = random.choice([0.0, 0.5, 1.0, 2.0], size=(cells, 3))
        cost[:, 0] = 0
        table = example.Table(share, task, cost)
        assert_optimal(example, table, float(random.uniform(0, 1.5)))


def assert_optimal(example: ModuleType, table, budget: float) -> None:
    cells = len(table.share)
    weights = np.repeat(table.share, 3)
    solved = optimize.linprog(
        -weights * table.task.ravel(),
        A_ub=[weights * table.cost.ravel()],
        b_ub=[budget],
        A_eq=np.kron(np.eye(cells), np.ones(3)),
        b_eq=np.ones(cells),
        bounds=(0, 1),
    )
    best = example.optimum(table, budget)
    assert best.task == pytest.approx(-solved.fun, abs=1e-9)
    assert best.cost <= budget + 1e-12
