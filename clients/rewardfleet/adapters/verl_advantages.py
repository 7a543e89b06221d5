"""verl: GRPO and RLOO advantages in which a sample without a reward does not count.

verl's own estimators take a NaN reward into the mean of its group, and give the only sample of a
group its plain reward as the advantage. If verl is imported already, importing this module
registers `rewardfleet_grpo` and `rewardfleet_rloo`.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rewardfleet.episodes import Grouping, leave_one_out, normalize

from ._rows import module_of_trainer


def grpo(
    token_level_rewards: Any, response_mask: Any, index: Sequence[Any], config: Any = None, **_: Any
) -> tuple[Any, Any]:
    """Return GRPO's advantages and returns, each [B, T].

    A sample without a reward, and one that is left alone in its group, have advantages of 0.
    In `token_level_rewards` the rows without a reward get the mean of the others, so that the means
    that a trainer logs of it are those of the samples with a reward.

    Args:
        token_level_rewards: [B, T]; a row with NaN has no reward.
        response_mask: [B, T], 1 for tokens of the response.
        index: [B], the prompt of each sample; samples of the same prompt are a group.
        config: With `norm_adv_by_std_in_grpo` False, rewards are not divided by the standard
            deviation of their group, as in Dr. GRPO.

    Raises:
        ValueError: A reward is infinite.
    """
    by_std = True if config is None else bool(config.get("norm_adv_by_std_in_grpo", True))
    formula = functools.partial(normalize, by_std=by_std)
    return _advantages(formula, token_level_rewards, response_mask, index)


def rloo(
    token_level_rewards: Any, response_mask: Any, index: Sequence[Any], **_: Any
) -> tuple[Any, Any]:
    """Return RLOO's advantages and returns, each [B, T]: reward - mean of the others of its group.

    The arguments, and what becomes of missing rewards, are those of `grpo`.
    """
    return _advantages(leave_one_out, token_level_rewards, response_mask, index)


def _advantages(
    formula: Callable[..., Any], token_level_rewards: Any, response_mask: Any, index: Sequence[Any]
) -> tuple[Any, Any]:
    rewards = token_level_rewards.detach().cpu().double().sum(dim=-1).numpy()
    grouping, _ = Grouping.by_name([str(each) for each in index])
    has_others = grouping.broadcast(grouping.sizes.astype(float)) > 1
    values = np.nan_to_num(formula(rewards, grouping, mask=has_others), nan=0.0)
    missing = np.isnan(rewards)
    if missing.any():
        row = token_level_rewards.new_zeros(token_level_rewards.shape[-1])
        row[0] = 0.0 if missing.all() else float(rewards[~missing].mean())
        token_level_rewards[token_level_rewards.new_tensor(missing).bool()] = row
    advantages = token_level_rewards.new_tensor(values).unsqueeze(-1) * response_mask
    return advantages, advantages


if "verl" in sys.modules:
    algorithms = module_of_trainer("verl.trainer.ppo.core_algos", "pip install verl")
    for name, function in (("rewardfleet_grpo", grpo), ("rewardfleet_rloo", rloo)):
        algorithms.register_adv_est(name)(function)
