"""The client of the tools service."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict, Unpack
from uuid import uuid4

from .service import BatchClient, RunStateClient, reward_of, run_path, score_of, with_options
from .wire.tools import (
    Budget,
    BudgetRequest,
    BudgetUpdate,
    BudgetUpdateRequest,
    Family,
    ToolDescription,
    ToolsOptions,
    ToolsRequest,
    ToolsScore,
)
from .wire.validation import validate


class ToolsFields(TypedDict, total=False):
    """The optional arguments of `tools_request`."""

    step: int | None
    run: str | None
    uid: str | None
    options: ToolsOptions | Mapping[str, Any]
    tools: Sequence[ToolDescription | Mapping[str, Any]]
    tool_families: Mapping[str, Family]


class BudgetUpdateFields(TypedDict, total=False):
    """The optional arguments of `update_budget`."""

    mean_cost: float | None
    count: int | None
    part: str
    mean_task_reward: float | None


@with_options
def tools_request(
    response: str | None, ground_truth: Any, **fields: Unpack[ToolsFields]
) -> ToolsRequest:
    """Build a request from an answer and its ground truth.

    Args:
        response: The answer of the policy; any text. None abstains: `no_answer`.
        ground_truth: A correct answer with `<think>`, `<tool_call>` and `<response>`, or its calls
            as data sets have them.
        fields: `step`, `run`, `options`, `tools` and `tool_families`; see `ToolsRequest`.

    Raises:
        InvalidRequest: The request is invalid; the message is the service's.
    """
    return validate(ToolsRequest, {"response": response, "ground_truth": ground_truth, **fields})


class ToolsClient(BatchClient[ToolsRequest, ToolsScore], RunStateClient):
    """The client of the tools service. `RewardFleet` creates it."""

    request_type = ToolsRequest
    score_type = ToolsScore

    score = score_of(tools_request, ToolsScore)
    reward = reward_of(tools_request)

    async def put_budget(self, run: str, **options: Any) -> Budget:
        """Create the budget of a run, or change its options; its multiplier stays.

        Args:
            run: Name of the training run, 1 to 200 characters.
            options: Fields of `BudgetRequest`, e.g. `budget`, `eta`, or `checkpoint` to resume.

        Raises:
            RewardFleetError: An option is invalid, or the request failed.
        """
        request = validate(BudgetRequest, {**self._attempt, **options})
        return await self._transport.call("PUT", run_path("budgets", run), Budget, request)

    async def budget(self, run: str) -> Budget:
        """Return the budget of a run. Its `checkpoint` can be stored with the trainer's own.

        Raises:
            NotFound: The run has no budget.
            RewardFleetError: The request failed.
        """
        return await self._transport.call("GET", run_path("budgets", run), Budget)

    async def update_budget(
        self,
        run: str,
        step: int,
        costs: Iterable[float] | None = None,
        **fields: Unpack[BudgetUpdateFields],
    ) -> BudgetUpdate:
        """Report costs of a step, which count once.

        Several calls for one step are parts of it. A call that is to be repeated after a failure
        names its `part`.

        Args:
            costs: The cost of each answer; or give `mean_cost` and `count`.

        Raises:
            Conflict: The part was sent with other costs.
            InvalidRequest: The step is closed, or an argument is out of range.
            NotFound: The run has no budget.
            RewardFleetError: The request failed.
        """
        given: dict[str, Any] = {"part": uuid4().hex, "step": step, **self._attempt, **fields}
        if costs is not None:
            given["costs"] = list(costs)
        request = validate(BudgetUpdateRequest, given)
        path = f"{run_path('budgets', run)}/update"
        return await self._transport.call("POST", path, BudgetUpdate, request)
