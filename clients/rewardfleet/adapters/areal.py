"""AReaL: rewards for `RLVRWorkflow`, and for workflows of your own."""

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ._rows import RowReward, marks_of


def reward_function(
    service: str, url: str | Sequence[str], **options: Any
) -> Callable[..., Awaitable[float]]:
    """Return a coroutine function with the arguments of AReaL's reward functions.

    It replaces a workflow's `AsyncRewardWrapper`, which gives a reward of 0 to a sample that has
    waited 15 s for one of its few processes, four times.

    Args:
        service, url, options: See `rewardfleet.adapters`. `on_failure` must not be NaN, which would
            spread over the group. AReaL rejects the group of a rollout with an error.
    """
    scorer = RowReward(service, url, trainer="AReaL", **options)

    async def reward(
        prompt: str,  # noqa: ARG001 - AReaL's signature
        completions: str,
        prompt_ids: Sequence[int],  # noqa: ARG001 - AReaL's signature
        completion_ids: Sequence[int],  # noqa: ARG001 - AReaL's signature
        **row: Any,
    ) -> float:
        value, score = await scorer.score(completions, row)
        # AReaL's statistics, if the function is called by one of its workflows.
        areal, tracker = sys.modules.get("areal"), sys.modules.get("areal.utils.stats_tracker")
        if areal is not None and tracker is not None:
            tracker.get(areal.workflow_context.stat_scope()).scalar(**marks_of(score))
        return value

    return reward
