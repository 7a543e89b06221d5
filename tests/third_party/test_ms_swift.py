"""ms-swift 4.6.0: what its GRPO trains on, by its registry, rewards and advantages."""

import pytest

from rewardfleet.adapters.ms_swift import orm

from ..programs import HALF, RIGHT, TESTS, TEXTS
from .trainers import UNREACHABLE, absent, error_of, in_process, needs_clients

pytestmark = [needs_clients, pytest.mark.slow]


def scored(reward: type, completions: list[object]) -> tuple[list[float], list[float]]:
    """Return the rewards of a registered class, and their advantages as those of a group."""
    absent("modelscope", "modelscope_hub", "json_repair", "dacite")  # hubs, and formats of tools
    import torch
    from swift.rewards import orms
    from swift.rl_core.advantage import compute_advantages
    from swift.rl_core.data import GRPOSample
    from swift.rl_core.grpo_algorithm import score_completions
    from swift.rlhf_trainers.utils import resolve_reward_funcs

    orms["code_reward"] = reward
    functions, names = resolve_reward_funcs(["code_reward"], args=object())
    assert names == [reward.__name__]
    prompt = {"role": "user", "content": "Add."}
    chats = [[prompt, {"role": "assistant", "content": each}] for each in completions]
    rows = [{"messages": each, "tests": TESTS} for each in chats]
    samples = [GRPOSample.from_row(each) for each in rows]
    rewards = score_completions(samples, functions, None, False, torch.device("cpu"), object())
    advantages, _ = compute_advantages(rewards, torch.ones(1), len(rows), scale_rewards="none")
    return rewards[:, 0].tolist(), advantages.tolist()


@in_process
def of_service(url: str, completions: list[object]) -> object:
    return scored(orm("code", url), completions)


@in_process
def without_service(url: str) -> dict[str, object]:
    class Missing:
        def __init__(self, args: object) -> None: ...

        def __call__(self, completions: list[str], **_: object) -> list[float | None]:
            return [1.0, None, 1.0]

    try:
        scored(orm("code", url, timeout_s=0.5), [RIGHT, HALF])
    except Exception as error:
        failed = error_of(error)
    replaced = scored(orm("code", url, timeout_s=0.5, on_failure=-1.0), [RIGHT])
    return {"failed": failed, "replaced": replaced, "missing": scored(Missing, ["a", "b", "c"])}


@pytest.mark.slice
def test_completions_get_their_rewards(code_url: str):
    parts = [{"type": "text", "text": RIGHT}]
    rewards, advantages = of_service(code_url, [*TEXTS, parts])
    assert rewards == [*TEXTS.values(), 1.0]
    mean = sum(rewards) / len(rewards)
    assert advantages == pytest.approx([each - mean for each in rewards])


def test_a_failure_ends_the_step_as_a_missing_reward_would_count_as_0(lost_url: str):
    found = without_service(lost_url)
    assert found["failed"].startswith(UNREACHABLE)
    assert found["replaced"] == [[-1.0], [0.0]]
    rewards, advantages = found["missing"]
    assert str(rewards) == "[1.0, nan, 1.0]"
    assert advantages == pytest.approx([1 / 3, -2 / 3, 1 / 3])
