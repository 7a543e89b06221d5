"""Scores of answers, by the tools service."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rewardfleet import blocking
from rewardfleet.tools import tools_request
from rewardfleet.wire.errors import RewardFleetError
from rewardfleet.wire.policy_text import text_of
from rewardfleet.wire.score import abstained
from rewardfleet.wire.tools import ToolsOptions, ToolsScore

from .objective import route_shares
from .rows import Row


@dataclass(frozen=True)
class Scored:
    """Scored answers; N is their number.

    Attributes:
        action: [N], routes.
        task: [N], task rewards.
        cost: [N], costs.
        probabilities: [N, 3], of all routes.
    """

    action: NDArray[np.int64]
    task: NDArray[np.float64]
    cost: NDArray[np.float64]
    probabilities: NDArray[np.float32]

    def metrics(self) -> dict[str, float]:
        """Return mean task reward, mean cost, and the shares of the routes."""
        return {
            "router/mean_task_reward": float(self.task.mean()),
            "router/mean_cost": float(self.cost.mean()),
            **route_shares(self.action),
        }


def score_answers(
    fleet: blocking.RewardFleet,
    rows: Sequence[Row],
    responses: Sequence[str],
    *,
    step: int,
    options: ToolsOptions,
) -> list[ToolsScore]:
    """Return the scores of answers. One without a score is an error, never a reward.

    Args:
        fleet: The client of the tools service.
        rows: [N], what was to be answered.
        responses: [N], the answers.
        step: Step of the run.
        options: How answers are scored.

    Raises:
        RewardFleetError: The service fails, or an answer has no score.
    """
    # Copies of a prompt with equal answers have equal scores.
    distinct = list(dict.fromkeys(zip(rows, responses, strict=True)))
    requests = [
        tools_request(
            text_of(response),
            row.ground_truth,
            step=step,
            options=options,
            tools=row.tools,
            tool_families=dict(row.labels.families),
        )
        for row, response in distinct
    ]
    answers: list[ToolsScore] = fleet.tools.score_batch(requests)
    for answer in answers:
        if answer.error is not None:
            raise RewardFleetError.from_problem(answer.error)
        if answer.score is None:
            raise abstained(answer)
    by_answer = dict(zip(distinct, answers, strict=True))
    return [by_answer[each] for each in zip(rows, responses, strict=True)]
