"""Rewards, advantages and the loss of the router.

In shapes, B is the number of answers, T the padded length of a response.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from rewardfleet.arrays import to_array
from rewardfleet.tool_use import advantages
from rewardfleet.tool_use.advantages import Method

from .config import Router
from .head import last_positions, log_prob_of
from .labels.row_labels import NO_LABEL
from .routes import ROUTES


def router_rewards(task: ArrayLike | Tensor, cost: ArrayLike | Tensor, multiplier: float) -> Tensor:
    """Return task - λ cost, [B], float32."""
    mixed = np.asarray(to_array(task), float) - multiplier * np.asarray(to_array(cost), float)
    return torch.as_tensor(mixed, dtype=torch.float32)


def token_level_rewards(rewards: Tensor, response_mask: Tensor) -> Tensor:
    """Put each reward at the last token of its response, and 0 elsewhere.

    Args:
        rewards: [B].
        response_mask: [B, T], 1 for tokens of the response. The reward of an empty response is at
            position 0.

    Returns:
        [B, T], float32, on the device of the mask.
    """
    mask = response_mask.bool()
    last = torch.where(mask.any(dim=-1), last_positions(mask), 0)
    tokens = torch.zeros(mask.shape, dtype=torch.float32, device=mask.device)
    tokens[torch.arange(mask.shape[0], device=mask.device), last] = rewards.to(tokens)
    return tokens


def router_advantages(
    task: ArrayLike | Tensor,
    cost: ArrayLike | Tensor,
    multiplier: float,
    index: Sequence[Any] | ArrayLike | None,
    *,
    method: Method = "mean",
    correct: ArrayLike | None = None,
) -> Tensor:
    """Return the advantage of each answer, [B], float32; NaN where there is none.

    Args:
        task: [B], task rewards; NaN where there is none. Such an answer does not count.
        cost: [B], costs; NaN where there is none.
        multiplier: λ.
        index: [B], `extra_info.index` of the prompt; answers to the same prompt are a group, which
            has at least two. None, for one answer per prompt: the batch is the group, so its mean
            is the baseline. It does not depend on the route, and so the gradient has no bias; but
            it does not follow the prompt, so the variance is larger.
        method: See `rewardfleet.tool_use.advantages`. "mean" is the only one whose gradient is
            that of task - λ cost, so λ is the price at which the optimum meets the budget.
            "std" is plain GRPO.
        correct: [B], booleans, for "gated".

    Raises:
        ValueError: A reward is infinite, a group has one answer only, or the sizes differ.
    """
    rewards = to_array(task)
    groups = np.zeros(len(rewards), int) if index is None else np.asarray(to_array(index).tolist())
    values = advantages(rewards, to_array(cost), groups, multiplier, method=method, correct=correct)
    return torch.as_tensor(values, dtype=torch.float32)


def broadcast_advantages(values: Tensor, response_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return `router_advantages` and `router_returns`: the advantages at all response tokens.

    As in verl's GRPO, the two are equal.

    Args:
        values: [B].
        response_mask: [B, T].

    Returns:
        Two tensors [B, T], float32, 0 outside of the responses.
    """
    mask = response_mask.float()
    tokens = values.to(mask).unsqueeze(-1) * mask
    return tokens, tokens.clone()


def router_loss(
    logits: Tensor,
    action: Tensor,
    advantages: Tensor,
    *,
    labels: Tensor | None = None,
    label_weight: float = 0.0,
    entropy_weight: float = 0.0,
) -> tuple[Tensor, dict[str, float]]:
    """Return -mean(log p(action) x advantage) - entropy_weight x entropy + label_weight x CE.

    CE is the cross-entropy of the weak labels, a mean over the rows that have one.

    Args:
        logits: [B, 3], with a gradient.
        action: [B], the routes that were taken.
        advantages: [B], of a scale that does not depend on the gradient. A row with NaN does not
            count.
        labels: [B], labeled routes, -1 where there is none; None: no row has one.
        label_weight: Weight of the cross-entropy, 0 or more; small, so that the rewards dominate.
        entropy_weight: Weight of the entropy, 0 or more.

    Returns:
        The loss, and metrics: `router/loss`, `router/policy_loss`, `router/entropy` (nats), and,
        with labels, `router/label_loss`, `router/label_accuracy` and `router/labeled` (share).
    """
    logits = logits.float()
    weights = advantages.detach().to(logits)
    scored = ~weights.isnan()
    if not bool(scored.all()):
        logits, action, weights = logits[scored], action[scored.to(action.device)], weights[scored]
        labels = None if labels is None else labels[scored.to(labels.device)]
        labels = labels if bool(scored.any()) else None
    count = max(1, len(weights))  # a mean of no rows is NaN
    policy_loss = -(log_prob_of(logits, action) * weights).sum() / count
    log_probs = torch.log_softmax(logits, dim=-1)
    entropy = -(log_probs.exp() * log_probs).sum() / count
    loss = policy_loss - entropy_weight * entropy
    metrics = {"router/policy_loss": policy_loss.item(), "router/entropy": entropy.item()}
    if labels is not None:
        labels = labels.to(logits.device)
        labeled = labels != NO_LABEL
        metrics["router/labeled"] = labeled.float().mean().item()
        if bool(labeled.any()):
            label_loss = torch.nn.functional.cross_entropy(logits[labeled], labels[labeled])
            loss = loss + label_weight * label_loss
            right = logits[labeled].argmax(dim=-1) == labels[labeled]
            metrics["router/label_loss"] = label_loss.item()
            metrics["router/label_accuracy"] = right.float().mean().item()
    return loss, {"router/loss": loss.item(), **metrics}


def schedule_progress(step: int, total_steps: int) -> float:
    """Return how far the schedules of the loss are, in [0, 1]: 1 from two thirds of the steps on.

    Afterwards only λ and the weights settle.
    """
    return min(1.0, 1.5 * step / max(1, total_steps))


def entropy_weight(router: Router, progress: float) -> float:
    """Return the weight of the entropy: from `entropy_coeff` to `final_entropy_coeff`, linearly."""
    if router.final_entropy_coeff is None:
        return router.entropy_coeff
    return router.entropy_coeff + progress * (router.final_entropy_coeff - router.entropy_coeff)


def exploration_loss(router: Router, logits: Tensor, progress: float) -> Tensor:
    """Return the weighted KL(uniform || policy), without its constant.

    Its weight goes from `exploration_coeff` to `final_exploration_coeff`, exponentially.
    """
    weight = router.exploration_coeff
    if router.final_exploration_coeff is not None and weight:
        weight *= (router.final_exploration_coeff / weight) ** progress
    return -weight * torch.log_softmax(logits, dim=-1).mean()


def route_shares(action: Tensor | ArrayLike) -> dict[str, float]:
    """Return the share of each route among actions [B], by `router/share/<route>`."""
    counts = np.bincount(np.asarray(to_array(action)), minlength=len(ROUTES))
    total = max(1, int(counts.sum()))
    return {
        f"router/share/{route}": float(count / total)
        for route, count in zip(ROUTES, counts, strict=True)
    }
