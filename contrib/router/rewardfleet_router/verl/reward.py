"""The reward: scores of the tools service as a `custom_reward_function` of verl."""

from collections.abc import Mapping
from typing import Any

from rewardfleet.adapters._rows import COALESCE_SECONDS
from rewardfleet.client import RewardFleet
from rewardfleet.wire.policy_text import text_of
from rewardfleet.wire.score import abstained
from rewardfleet.wire.truth import plain

#: The fleets of this process, by URL and timeout; calls share their connections.
_fleets: dict[tuple[Any, ...], RewardFleet] = {}


async def compute_score(
    data_source: str,  # noqa: ARG001 - verl's signature
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, Any] | None = None,
    *,
    url: str,
    options: Mapping[str, Any] | None = None,
    timeout_s: float = 120.0,
    **_: Any,
) -> dict[str, float]:
    """Score one answer, without a budget: the router pays λ for the cost, the actor does not.

    Args:
        data_source: Ignored.
        solution_str: The response.
        ground_truth: A correct answer; see the tools service.
        extra_info: `tool_families` of the row, where it has them.
        url: The tools service.
        options: Options of the tools service: `variant`, `cost`, `cost_weights`.
        timeout_s: Seconds for a call, with retries.

    Returns:
        `score` and `task`, the task reward; `cost`; and `used_any_tool`, 0 or 1.

    Raises:
        RewardFleetError: There is no score.
    """
    key = (url, timeout_s)
    if key not in _fleets:
        _fleets[key] = RewardFleet(tools=url, timeout_s=timeout_s, coalesce_s=COALESCE_SECONDS)
    families = (extra_info or {}).get("tool_families") or {}
    score = await _fleets[key].tools.score(
        text_of(solution_str),
        ground_truth,
        options=plain(options or {}),
        tool_families=dict(families),
    )
    if score.score is None:
        raise abstained(score)
    task = float(score.details["task"])
    return {
        "score": task,
        "task": task,
        "cost": float(score.details["cost"]),
        "used_any_tool": float(score.used_any_tool),
    }
