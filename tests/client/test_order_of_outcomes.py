"""No success is scored below a failure of its group, except where the page says so."""

import itertools
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from rewardfleet import EpisodeOptions
from rewardfleet.episodes import RunningMeanStd, aggregate, compute_rewards, validate_batch
from rewardfleet.wire.episode import EpisodeRequest, Objective, RewardKind

from ..conftest import table

PAGE = (Path(__file__).parents[2] / "docs" / "episodes.md").read_text()
KINDS = get_args(RewardKind)
#: The lowest and highest reward that failures and successes bring.
BROUGHT = {
    "outcome": ((0, 0), (1, 1)),
    "partial": ((0, 1), (1, 2)),
    "negative": ((-2, -1), (-1, 0)),
}
#: All objectives, and each one beside success.
WEIGHTS: list[dict[str, float]] = [
    {"success": 1, "efficiency": 1},
    dict.fromkeys(get_args(Objective), 1),
    *({"success": 1, each: sign} for each in get_args(Objective)[1:] for sign in (1, -1)),
]


def values_of(name: str) -> tuple[Any, ...]:
    return get_args(EpisodeOptions.model_fields[name].annotation)


def episodes(brought: str, rng: np.random.Generator) -> list[EpisodeRequest]:
    """Return groups of one kind each, of episodes with all fields of a request."""
    items = []
    for group, member in itertools.product(range(3 * len(KINDS)), range(4)):
        success, steps = bool(rng.integers(2)), int(rng.integers(1, 12))
        kind = KINDS[group % len(KINDS)]
        reward = rng.uniform(*BROUGHT[brought][success])
        parts = reward * rng.dirichlet(np.ones(steps))
        fields: dict[str, Any] = {
            "uid": f"{group} {member}", "group": str(group), "kind": kind, "success": success,
            "steps": steps, "max_steps": 8, "reward_model_score": reward,
            "actions": rng.normal(size=(steps, 2)).tolist(),
            "progress": rng.uniform(size=steps).tolist(),
            "visual_success": rng.uniform(), "step_rewards": parts.tolist(),
            "step_token_ends": list(range(steps)),
        }  # fmt: skip
        if kind == "hybrid":
            fields |= {"step_rewards": (parts / 2).tolist(), "episode_reward": reward / 2}
        elif rng.integers(2):
            fields["episode_reward"] = reward
        items.append(EpisodeRequest.model_validate(fields))
    return items


def inverted(items: list[EpisodeRequest], options: EpisodeOptions) -> set[str]:
    """Return the kinds of which a success is scored below a failure of its group.

    Check that step rewards sum to the score, or are absent.
    """
    batch = validate_batch(items, options)
    assert not batch.reasons
    rewards = compute_rewards(batch, options)
    result = aggregate(rewards, options, RunningMeanStd().updated(rewards.values))
    for index, steps in result.step_rewards.items():
        assert steps.sum() == pytest.approx(result.scores[index], abs=1e-9)
    with_steps = {each.kind for each in items if options.normalize == "none"} & {"hybrid", "shaped"}
    assert {items[index].kind for index in result.step_rewards} == with_steps
    succeeded = np.array([each.success for each in items])
    worst = batch.grouping.minimum(np.where(succeeded, result.scores, np.inf))
    best = -batch.grouping.minimum(np.where(succeeded, np.inf, -result.scores))
    return {KINDS[int(batch.group_names[n]) % len(KINDS)] for n in np.flatnonzero(worst < best)}


@pytest.mark.slow
def test_no_success_is_scored_below_a_failure_of_its_group_unless_the_page_says_so():
    exceptions, met = table("successes_below_failures"), set[int]()
    rng = np.random.default_rng(0)
    for brought, normalize in itertools.product(BROUGHT, values_of("normalize")):
        items = episodes(brought, rng)
        for weights, combine in itertools.product(WEIGHTS, values_of("combine")):
            given = {
                "normalize": normalize, "weights": weights, "combine": combine,
                "efficiency": rng.choice(values_of("efficiency")).item(),
                "gamma": rng.choice([0.0, 0.5, 0.99, 1.0]).item(),
            }  # fmt: skip
            others = sum(abs(each) for name, each in weights.items() if name != "success")
            for kind in inverted(items, EpisodeOptions.model_validate(given)):
                found = {**given, "brought": brought, "kind": kind, "outweighed": others > 1}
                rows = {
                    number
                    for number, (where, _) in enumerate(exceptions)
                    if all(found[name] in values for name, values in where.items())
                }
                assert rows, found
                met |= rows
    assert met == {*range(len(exceptions))}, "each exception is one"
    assert all(words in PAGE for _, words in exceptions)
