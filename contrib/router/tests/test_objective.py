"""Rewards, advantages and the loss of the router."""

import math

import numpy as np
import pytest
import torch

from rewardfleet_router.config import Router
from rewardfleet_router.objective import (
    broadcast_advantages,
    entropy_weight,
    exploration_loss,
    route_shares,
    router_advantages,
    router_loss,
    router_rewards,
    schedule_progress,
    token_level_rewards,
)

MASK = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 1, 0]])
TASK = [4.0, 4.0, -3.0, -3.0, 1.0, 2.0]
COST = [3.0, 0.0, 0.0, 0.0, 1.0, 0.0]
INDEX = ["a", "a", "a", "a", "b", "b"]


def test_the_reward_is_at_the_last_token_of_the_response():
    tokens = token_level_rewards(torch.tensor([1.0, 2.0, 3.0, 4.0]), MASK)
    assert tokens.tolist() == [[0, 1, 0, 0], [0, 0, 0, 2], [3, 0, 0, 0], [0, 0, 4, 0]]
    assert tokens.dtype == torch.float32


def test_the_reward_is_task_minus_lambda_times_cost():
    assert router_rewards(torch.tensor(TASK), COST, 0.5).tolist() == [2.5, 4, -3, -3, 0.5, 2]


def test_mean_advantages_follow_task_minus_lambda_times_cost():
    values = router_advantages(TASK, COST, 2.0, INDEX)
    torch.testing.assert_close(values, torch.tensor([-1.0, 5.0, -2.0, -2.0, -1.5, 1.5]))
    assert values.dtype == torch.float32


def test_std_is_the_plain_formula():
    values = router_advantages(TASK, COST, 2.0, INDEX, method="std")
    rewards = np.array([-2.0, 4, -3, -3])
    plain = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
    np.testing.assert_allclose(values[:4], plain, rtol=1e-6)


@pytest.mark.parametrize("dtype", [object, None])
def test_groups_may_be_strings_or_integers_in_any_order(dtype):
    order = [5, 0, 4, 2, 1, 3]
    expected = router_advantages(TASK, COST, 2.0, INDEX)[order]
    task, cost = torch.tensor(TASK)[order], torch.tensor(COST)[order]
    for names in (INDEX, [7, 7, 7, 7, 1, 1]):
        index = np.array([names[at] for at in order], dtype=dtype)
        torch.testing.assert_close(router_advantages(task, cost, 2.0, index), expected)


def test_an_answer_without_a_group_is_an_error():
    with pytest.raises(ValueError, match="group"):
        router_advantages([1.0, 2.0], [0, 0], 1.0, ["a", "b"])


@pytest.mark.parametrize("method", ["mean", "std", "separate"])
def test_without_copies_the_batch_is_the_group(method):
    values = router_advantages(TASK, COST, 2.0, None, method=method)
    same = router_advantages(TASK, COST, 2.0, ["a"] * len(TASK), method=method)
    torch.testing.assert_close(values, same)
    assert values.sum().item() == pytest.approx(0, abs=1e-5)


def test_an_answer_without_a_reward_changes_neither_advantages_nor_loss():
    scored = torch.tensor([True, False, True, True])
    task, cost, index = [1.0, math.nan, 0.0, 0.5], [0.0, 1.0, 1.0, 0.0], ["a"] * 4
    values = router_advantages(task, cost, 1.0, index)
    alone = router_advantages([1.0, 0.0, 0.5], [0.0, 1.0, 0.0], 1.0, ["a"] * 3)
    torch.testing.assert_close(values[scored], alone)
    assert values[1].isnan()
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    action, labels = torch.tensor([0, 2, 1, 2]), torch.tensor([0, 1, -1, 2])
    weights = {"label_weight": 0.1, "entropy_weight": 0.2}

    def gradient(rows, advantages):
        leaf = logits[rows].clone().requires_grad_()
        router_loss(leaf, action[rows], advantages, labels=labels[rows], **weights)[0].backward()
        return leaf.grad

    with_failure = gradient(torch.ones(4, dtype=torch.bool), values)
    torch.testing.assert_close(with_failure[scored], gradient(scored, alone))
    assert with_failure[1].tolist() == [0, 0, 0]
    leaf = logits.clone().requires_grad_()
    missing = torch.full((4,), math.nan)
    loss, metrics = router_loss(leaf, action, missing, labels=labels, **weights)
    loss.backward()
    assert not leaf.grad.any(), "no answer has a reward"
    assert all(math.isfinite(value) for value in metrics.values())


def test_advantages_are_broadcast_over_the_tokens_of_the_response():
    values, returns = broadcast_advantages(torch.tensor([1.0, -2.0, 3.0, 4.0]), MASK)
    assert values.tolist() == [[1, 1, 0, 0], [-2] * 4, [0] * 4, [4, 0, 4, 0]]
    assert returns.tolist() == values.tolist() and returns is not values


@pytest.mark.parametrize("method", ["std", "mean"])
def test_they_equal_the_ones_of_verl(method):
    """verl computes them from the token-level rewards."""
    algorithms = pytest.importorskip("verl.trainer.ppo.core_algos")
    mask = torch.ones(6, 3, dtype=torch.int64).tril()  # of 1, 2 and 3 tokens
    rewards = token_level_rewards(router_rewards(TASK, COST, 0.7), mask)
    expected, expected_returns = algorithms.compute_grpo_outcome_advantage(
        rewards, mask, np.array(INDEX, object), norm_adv_by_std_in_grpo=method == "std"
    )
    values = router_advantages(TASK, COST, 0.7, INDEX, method=method)
    advantages, returns = broadcast_advantages(values, mask)
    torch.testing.assert_close(advantages, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(returns, expected_returns, atol=1e-5, rtol=1e-5)


LOGITS = torch.tensor([[1.0, 0.0, -1.0], [0.0, 2.0, 0.0]])
ACTION = torch.tensor([0, 2])
ADVANTAGES = torch.tensor([1.0, -2.0])


def test_the_loss_is_the_policy_gradient():
    log_probs = torch.log_softmax(LOGITS, dim=-1)
    loss, metrics = router_loss(LOGITS, ACTION, ADVANTAGES)
    expected = -(log_probs[0, 0] * 1.0 + log_probs[1, 2] * -2.0) / 2
    torch.testing.assert_close(loss, expected)
    assert metrics["router/loss"] == metrics["router/policy_loss"] == pytest.approx(loss.item())
    assert metrics["router/entropy"] == pytest.approx(
        torch.distributions.Categorical(logits=LOGITS).entropy().mean().item()
    )


def test_entropy_and_labels_are_weighted():
    plain, metrics = router_loss(LOGITS, ACTION, ADVANTAGES)
    entropy = metrics["router/entropy"]
    loss, _ = router_loss(LOGITS, ACTION, ADVANTAGES, entropy_weight=0.1)
    assert loss.item() == pytest.approx(plain.item() - 0.1 * entropy)
    labels = torch.tensor([-1, 1])
    loss, metrics = router_loss(LOGITS, ACTION, ADVANTAGES, labels=labels, label_weight=0.5)
    cross_entropy = -torch.log_softmax(LOGITS[1], dim=-1)[1].item()
    assert loss.item() == pytest.approx(plain.item() + 0.5 * cross_entropy)
    assert metrics["router/label_loss"] == pytest.approx(cross_entropy)
    assert metrics["router/labeled"] == 0.5 and metrics["router/label_accuracy"] == 1.0


def test_rows_without_a_label_do_not_change_the_loss():
    plain, _ = router_loss(LOGITS, ACTION, ADVANTAGES)
    labels = torch.tensor([-1, -1])
    loss, metrics = router_loss(LOGITS, ACTION, ADVANTAGES, labels=labels, label_weight=0.5)
    assert loss.item() == plain.item() and metrics["router/labeled"] == 0.0


def test_weights_of_entropy_and_exploration_reach_their_final_value_after_two_thirds():
    router = Router(
        entropy_coeff=0.1,
        final_entropy_coeff=0.0,
        exploration_coeff=0.01,
        final_exploration_coeff=0.0001,
    )
    halves = [schedule_progress(step, 30) for step in (0, 10, 20, 29)]
    assert halves == [0.0, 0.5, 1.0, 1.0]
    assert [entropy_weight(router, each) for each in halves] == pytest.approx([0.1, 0.05, 0, 0])
    losses = [exploration_loss(router, LOGITS, each).item() for each in halves]
    plain = -torch.log_softmax(LOGITS, dim=-1).mean().item()
    assert losses == pytest.approx([each * plain for each in (0.01, 0.001, 0.0001, 0.0001)])
    constant = Router(entropy_coeff=0.1, exploration_coeff=0.0, final_exploration_coeff=0.5)
    assert entropy_weight(constant, 0.5) == 0.1
    assert exploration_loss(constant, LOGITS, 0.5).item() == 0


def test_advantages_have_no_gradient_and_logits_do():
    logits = LOGITS.clone().requires_grad_()
    advantages = ADVANTAGES.clone().requires_grad_()
    router_loss(logits, ACTION, advantages)[0].backward()
    assert advantages.grad is None and logits.grad.abs().sum() > 0


def test_shares_of_routes():
    assert route_shares(torch.tensor([0, 0, 2, 0])) == {
        "router/share/ANSWER": 0.75,
        "router/share/SEARCH-FAMILY": 0.0,
        "router/share/CALCULATE-FAMILY": 0.25,
    }
    assert list(route_shares([0, 0]).values()) == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("has_copies", [True, False])
def test_the_loss_finds_the_best_route_at_the_price(has_copies: bool):
    """With λ between the gains of two prompts, one of them pays for its tool and the other not.

    So it is with one answer per prompt, which is compared with the batch.
    """
    torch.manual_seed(0)
    gain = torch.tensor([0.8, 0.3])  # of a search over an answer
    logits = torch.zeros(2, 3, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.05)
    rows = torch.arange(2).repeat_interleave(16)
    for _ in range(300):
        action = torch.distributions.Categorical(logits=logits.detach()[rows]).sample()
        task, cost = (action == 1) * gain[rows] + (action == 2) * 0.1, (action > 0).float()
        values = router_advantages(task, cost, 0.5, rows if has_copies else None)
        optimizer.zero_grad()
        router_loss(logits[rows], action, values)[0].backward()
        optimizer.step()
    probabilities = torch.softmax(logits.detach(), dim=-1)
    assert probabilities[0, 1] > 0.95 and probabilities[1, 0] > 0.95
