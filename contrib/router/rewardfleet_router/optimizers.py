"""The optimizers of the training loop: how they are built, and one update of the weights."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from .config import Optimizer, RouterConfig
from .head import RouterActor


def build_optimizers(actor: RouterActor, config: RouterConfig) -> dict[str, torch.optim.Optimizer]:
    """Return the optimizers of the head (`router`) and the actor, which may share one (`actor`).

    Raises:
        ValueError: They share one, and the actor has no learning rate.
    """
    head, model = list(actor.head.parameters()), list(actor.model.parameters())
    actor_trains = bool(config.actor_rollout_ref.actor.optim.lr)
    shared = config.router.optim.lr is None
    if shared and not actor_trains:
        raise ValueError(
            "router.optim.lr: null means the actor's optimizer, which has no "
            "actor_rollout_ref.actor.optim.lr"
        )
    groups = {} if shared else {"router": head}
    if actor_trains:
        groups["actor"] = model + (head if shared else [])
    return {
        name: torch.optim.AdamW(
            parameters,
            lr=0.0,
            betas=_settings_of(name, config).betas,
            eps=_settings_of(name, config).eps,
            weight_decay=_settings_of(name, config).weight_decay,
        )
        for name, parameters in groups.items()
    }


def update_weights(
    loss: Tensor,
    optimizers: Mapping[str, torch.optim.Optimizer],
    config: RouterConfig,
    step: int,
    total: int,
) -> dict[str, float]:
    """Make one update of the weights.

    Args:
        loss: A scalar.
        optimizers: The result of `build_optimizers`.
        config: The configuration of the run.
        step: Counted from 0.
        total: Steps of the run.

    Returns:
        The norm of the gradient and the learning rate of each optimizer.
    """
    metrics: dict[str, float] = {}
    for optimizer in optimizers.values():
        optimizer.zero_grad(set_to_none=True)
    loss.backward()
    for name, optimizer in optimizers.items():
        settings = _settings_of(name, config)
        rate = (settings.lr or 0.0) * schedule_factor(settings, step, total)
        for group in optimizer.param_groups:
            group["lr"] = rate
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        norm = torch.nn.utils.clip_grad_norm_(parameters, settings.grad_clip)
        optimizer.step()
        metrics |= {f"{name}/grad_norm": float(norm), f"{name}/lr": rate}
    return metrics


def schedule_factor(settings: Optimizer, step: int, total: int) -> float:
    """Return the share of the learning rate at a step, counted from 0, of `total` steps."""
    if step < settings.warmup_steps:
        return (step + 1) / (settings.warmup_steps + 1)
    done = (step - settings.warmup_steps) / max(1, total - settings.warmup_steps)
    if settings.schedule == "linear":
        return 1 - done
    if settings.schedule == "cosine":
        return (1 + math.cos(math.pi * done)) / 2
    return 1.0


def _settings_of(name: str, config: RouterConfig) -> Optimizer:
    return config.router.optim if name == "router" else config.actor_rollout_ref.actor.optim
