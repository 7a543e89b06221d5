"""verl's advantages when a reward is missing: estimators of this project in verl 0.9.1."""

import inspect
import os
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
algorithms = pytest.importorskip("verl.trainer.ppo.core_algos")

from rewardfleet.adapters import verl_advantages  # noqa: E402 - registers where verl is imported

from ..running import output_of  # noqa: E402

#: Two groups of four, of which one sample each has no reward; one sample that is left alone; and a
#: group with equal rewards.
REWARDS = [1.0, 0.0, np.nan, 1.0, 0.5, np.nan, 0.0, 0.25, 1.0, np.nan, 0.5, 0.5]
UIDS = np.array(["a", "b"] * 4 + ["c", "c", "d", "d"], dtype=object)
HAS_REWARD = ~np.isnan(REWARDS)
#: Length of each response, of up to five tokens.
LENGTHS = [5, 3, 1, 4, 2, 5, 5, 1, 2, 2, 4, 3]


def batch(rewards=REWARDS) -> tuple:
    """Return the rewards at the last tokens, and the mask, as verl passes them."""
    mask = torch.arange(5) < torch.tensor(LENGTHS)[:, None]
    tokens = torch.zeros(len(rewards), 5)
    tokens[torch.arange(len(rewards)), torch.tensor(LENGTHS) - 1] = torch.tensor(rewards).float()
    return tokens, mask.float()


def call(name: str, tokens, mask, uids, **config: object):
    return algorithms.get_adv_estimator_fn(name)(
        token_level_rewards=tokens, response_mask=mask, index=uids, config=config
    )


@pytest.mark.slice
@pytest.mark.parametrize(
    ("name", "config"),
    [("grpo", {}), ("grpo", {"norm_adv_by_std_in_grpo": False}), ("rloo", {})],
)
def test_the_advantages_are_those_that_verl_computes_of_the_samples_with_a_reward(
    name: str, config: dict
):
    rows = torch.tensor(HAS_REWARD & (UIDS != "c"))
    tokens, mask = batch()
    given = {"token_level_rewards": tokens[rows], "response_mask": mask[rows]}
    given |= {"index": UIDS[rows.numpy()], "config": None, **config}
    expected, _ = algorithms.get_adv_estimator_fn(name)(**given)
    advantages, returns = call(f"rewardfleet_{name}", tokens, mask, UIDS, **config)
    torch.testing.assert_close(advantages[rows], expected, atol=1e-5, rtol=1e-5)
    assert (advantages[~rows] == 0).all(), "without a reward, or left alone"
    torch.testing.assert_close(returns, advantages)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_rewards_of_any_precision_are_accepted(dtype):
    tokens, mask = batch()
    expected, _ = call("rewardfleet_grpo", tokens, mask, UIDS)
    advantages, _ = call("rewardfleet_grpo", batch()[0].to(dtype), mask, UIDS)
    torch.testing.assert_close(advantages.float(), expected, atol=1e-2, rtol=1e-2)


def test_an_infinite_reward_is_refused_instead_of_dropping_its_group():
    tokens, mask = batch([np.inf, *REWARDS[1:]])
    with pytest.raises(ValueError, match="finite numbers, or NaN"):
        call("rewardfleet_rloo", tokens, mask, UIDS)


#: Whose advantages a missing reward makes NaN, by verl's estimator.
LOST = {
    "gae": "batch", "gdpo": "batch", "gpg": "group", "grpo": "group", "grpo_passk": "sample",
    "grpo_vectorized": "group", "opo": "group", "optimal_token_baseline": "group",
    "reinforce_plus_plus": "batch", "reinforce_plus_plus_baseline": "batch", "remax": "sample",
    "rewardfleet_grpo": "", "rewardfleet_rloo": "", "rloo": "group", "rloo_vectorized": "group",
    "tir_optimal_token_baseline": "group",
}  # fmt: skip


def test_verls_own_estimators_spread_a_missing_reward():
    """If this fails, docs/trainers/failures.md is out of date."""
    tokens, mask = batch([1.0, 0.5, np.nan, 0.0, 0.0, 1.0, 1.0, 0.25, 1.0, 0.5, 0.25, 0.0])
    uids, given = np.array([*"aabb"] * 3, dtype=object), {"old_log_probs": -torch.ones_like(mask)}
    given |= {"sum_pi_squared": torch.ones_like(mask) / 2, "values": torch.zeros_like(mask)}
    given |= {"reward_baselines": torch.zeros(12), "gamma": 1.0, "lam": 1.0, "index": uids}
    given |= {"token_level_rewards": tokens, "response_mask": mask}
    given |= {"config": algorithms.AlgoConfig()}
    seen = {}
    for name, function in algorithms.ADV_ESTIMATOR_REGISTRY.items():
        arguments = {each: given.get(each) for each in inspect.signature(function).parameters}
        known = {each: value for each, value in arguments.items() if value is not None}
        advantages, _ = function(**known | {"token_level_rewards": tokens.clone()})
        lost = (advantages.isnan() & mask.bool()).any(dim=1)
        kinds = {0: "", 1: "sample", 6: "group", 12: "batch"}
        seen[str(getattr(name, "value", name))] = kinds[int(lost.sum())]
    assert seen == LOST


def test_verls_own_estimator_gives_the_only_sample_of_a_group_its_plain_reward():
    """If this fails, verl does without these estimators."""
    alone, mask = batch([1.0] * 12)
    values, _ = algorithms.compute_grpo_outcome_advantage(alone[:1], mask[:1], UIDS[:1])
    assert values[0, 0].item() == pytest.approx(1), "the reward of the only sample, as it is"


def test_the_gradient_is_that_of_the_samples_with_a_reward():
    """Times their share of the tokens, as with samples whose advantage is 0."""
    tokens, mask = batch()
    advantages, _ = call("rewardfleet_grpo", tokens, mask, UIDS)
    logits = torch.randn(12, 5, 7, generator=torch.Generator().manual_seed(0), requires_grad=True)
    actions = torch.arange(60).reshape(12, 5) % 7

    def gradient(rows, mode: str):
        log_probs = torch.log_softmax(logits, -1).gather(-1, actions[..., None])[..., 0][rows]
        ratio = (log_probs - log_probs.detach()).exp()
        loss = algorithms.agg_loss(-advantages[rows] * ratio, mask[rows], mode)
        return torch.autograd.grad(loss, logits)[0]

    rows = torch.tensor(HAS_REWARD)
    of_tokens = mask[rows].sum() / mask.sum()
    shares = {"token-mean": of_tokens, "seq-mean-token-mean": rows.float().mean()}
    for mode, share in shares.items():
        together, alone = gradient(torch.ones_like(rows), mode), gradient(rows, mode)
        torch.testing.assert_close(together, share * alone)
        assert together.abs().sum() > 0 and (together[~rows] == 0).all()


def test_the_means_that_verl_logs_are_those_of_the_samples_with_a_reward():
    tokens, mask = batch()
    call("rewardfleet_grpo", tokens, mask, UIDS)
    assert tokens.sum(-1).mean().item() == pytest.approx(np.nanmean(REWARDS))
    assert not tokens.isnan().any()
    tokens, mask = batch([np.nan] * 12)
    advantages, _ = call("rewardfleet_grpo", tokens, mask, UIDS)
    assert not advantages.any() and not tokens.any(), "nothing was scored"


def test_verl_finds_the_estimators_by_its_environment_variable():
    program = (
        "import verl\nfrom verl.trainer.ppo.core_algos import get_adv_estimator_fn as get\n"
        "print(get('rewardfleet_grpo').__module__, get('rewardfleet_rloo').__name__)"
    )
    environment = {**os.environ, "VERL_USE_EXTERNAL_MODULES": verl_advantages.__name__}
    shown = output_of(sys.executable, "-c", program, env=environment)
    assert shown.startswith("rewardfleet.adapters.verl_advantages rloo\n")
