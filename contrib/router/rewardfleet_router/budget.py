"""The budget of a training run at the tools service, for both training loops."""

import logging
import uuid
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rewardfleet import blocking
from rewardfleet.wire.errors import NotFound

log = logging.getLogger(__name__)


def new_run_name(project: str, experiment: str) -> str:
    """Return a name that no other run has, so a new run does not find an earlier one's budget."""
    return f"{project}/{experiment}"[:150] + f"/{uuid.uuid4().hex[:12]}"


class RunBudget:
    """The budget of a training run, which is restored if the service has lost it.

    Args:
        fleet: The client of the tools service.
        run: Name of the run.
        options: Fields of `PUT /budgets/{run}`, without `checkpoint`.

    Attributes:
        run: Name of the run.
        checkpoint: What the run resumes from, after the last step that was counted; empty before
            `open`.
    """

    def __init__(self, fleet: blocking.RewardFleet, run: str, options: dict[str, Any]) -> None:
        self.run = run
        self.checkpoint: dict[str, Any] = {}
        self._tools = fleet.tools
        self._options = {**options, "parts": 1}

    def open(self, checkpoint: dict[str, Any] | None = None) -> float:
        """Create the budget, or set it to a checkpoint's: steps after it are counted again.

        Returns:
            λ of the next step.

        Raises:
            RewardFleetError: The service fails.
        """
        budget = self._tools.put_budget(self.run, **self._options, checkpoint=checkpoint)
        self.checkpoint = budget.checkpoint.model_dump(mode="json")
        return budget.lambda_

    def update(self, step: int, task: NDArray[np.float64], cost: NDArray[np.float64]) -> float:
        """Count the costs of a step.

        Args:
            step: The step, later than that of `checkpoint`.
            task: Task rewards of its answers.
            cost: Their costs.

        Returns:
            λ of the next step.

        Raises:
            RewardFleetError: The service fails.
        """
        try:
            return self._count(step, task, cost)
        except NotFound:
            log.warning("the tools service has lost the budget, which is restored")
            self.open(self.checkpoint)
            return self._count(step, task, cost)

    def _count(self, step: int, task: NDArray[np.float64], cost: NDArray[np.float64]) -> float:
        update = self._tools.update_budget(
            self.run, step, cost.tolist(), part="all", mean_task_reward=float(task.mean())
        )
        # Not before both calls: the service may lose the budget between them.
        self.checkpoint = self._tools.budget(self.run).checkpoint.model_dump(mode="json")
        return update.lambda_
