"""The routes of the tools service besides `POST /score`."""

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from prometheus_client import Gauge
from pydantic import BaseModel, JsonValue

from rewardfleet.wire.errors import DeadlineExceeded, InvalidRequest, RewardFleetError
from rewardfleet.wire.score import MAX_NAME, BatchRequest, BatchResponse, Status, Timing
from rewardfleet.wire.tools import (
    Budget,
    BudgetRequest,
    BudgetUpdate,
    BudgetUpdateRequest,
    ToolsRequest,
    ToolsScore,
)
from rewardfleet.wire.validation import validate
from rewardfleet_server.engine import Engine, ScoredBatch
from rewardfleet_server.http.routes import Route
from rewardfleet_server.telemetry import RequestContext
from rewardfleet_server.tracing import stage

from .budgets import Budgets, Price
from .decode import Item, decode_batch
from .scorer import BACKEND, PROVENANCE, AnswerScorer, Result

#: A batch with more characters is scored in a thread.
_SMALL_BATCH = 64 * 1024
#: Limit on the JSON fields of a batch; labels of a row are fields.
_MAX_BATCH_FIELDS = 200_000
#: The runs whose budgets are in the metrics: those updated last.
_MAX_RUNS = 32


class BudgetMetrics:
    """Metrics of the budgets that this process updated last, with the run as label."""

    def __init__(self) -> None:
        # registry=None: each service has its own registry, not the global one.
        self._gauges = {
            name: Gauge(f"rewardfleet_budget_{name}", documentation, ("run",), registry=None)
            for name, documentation in (
                ("lambda", "Lagrange multiplier of the budget of a run."),
                ("mean_cost", "Mean cost per answer at the last update of the multiplier."),
                ("mean_task_reward", "Mean task reward of the same answers, where it is known."),
                ("violation", "Mean cost minus budget at that update."),
            )
        }
        # With the newest step, and whether it is closed.
        self._runs: OrderedDict[str, tuple[int, bool]] = OrderedDict()

    @property
    def collectors(self) -> tuple[Gauge, ...]:
        """The metrics to register."""
        return tuple(self._gauges.values())

    def observe(self, budget: Budget | BudgetUpdate) -> None:
        """Set the metrics of a run; of the runs beyond 32, the oldest is left out.

        The first answer of an update that was sent again is older than what the metrics have.
        """
        if isinstance(budget, Budget):
            progress = (-1 if budget.step is None else budget.step, True)
        else:
            progress = (budget.step, budget.closed)
            if progress < self._runs.get(budget.run, progress):
                return
        self._runs[budget.run] = progress
        self._runs.move_to_end(budget.run)
        values = {
            "lambda": budget.lambda_,
            "mean_cost": budget.mean_cost,
            "mean_task_reward": budget.mean_task_reward,
            "violation": budget.violation,
        }
        for name, value in values.items():
            if value is None:  # as after `PUT` with a checkpoint from before the first update
                self._gauges[name].remove_by_labels({"run": budget.run})
            else:
                self._gauges[name].labels(budget.run).set(value)
        if len(self._runs) > _MAX_RUNS:
            oldest, _ = self._runs.popitem(last=False)
            for gauge in self._gauges.values():
                gauge.remove_by_labels({"run": oldest})


class ToolsApi:
    """The routes besides `POST /score`.

    Args:
        engine: Admits and counts.
        answers: Scores an answer.
        budgets: The budgets of runs.
        metrics: Set with each change of a budget.
    """

    def __init__(
        self,
        engine: Engine[ToolsRequest, ToolsScore],
        answers: AnswerScorer,
        budgets: Budgets,
        metrics: BudgetMetrics,
    ) -> None:
        self._engine = engine
        self._answers = answers
        self._budgets = budgets
        self._metrics = metrics

    def routes(self) -> Sequence[Route[Any]]:
        """Return the routes."""
        return (
            Route(
                "/score/batch",
                "Score several answers; an answer that fails does not fail the others",
                BatchRequest[ToolsRequest],
                BatchResponse[ToolsScore],
                self.score_batch,
                decode_batch,
                max_fields=_MAX_BATCH_FIELDS,
                items_fail_alone=True,
            ),
            Route(
                "/budgets/{run}",
                "Create the budget of a run, change its options, or resume it from a checkpoint",
                BudgetRequest,
                Budget,
                self.put_budget,
                method="PUT",
                scores=False,
            ),
            Route(
                "/budgets/{run}",
                "Return the budget of a run, with a checkpoint",
                None,
                Budget,
                self.get_budget,
                method="GET",
                scores=False,
            ),
            Route(
                "/budgets/{run}/update",
                "Count the costs of a step, or of a part of it, once",
                BudgetUpdateRequest,
                BudgetUpdate,
                self.update_budget,
                scores=False,
            ),
        )

    async def score_batch(
        self, items: list[Item | InvalidRequest], context: RequestContext
    ) -> bytes:
        """Score answers; return the encoded response.

        Raises:
            RewardFleetError: The batch cannot be scored now.
        """

        async def compute(timing: Timing) -> ScoredBatch:
            prices = await self._prices(items)
            with stage(timing, "backend"):
                if _characters(items) <= _SMALL_BATCH:
                    return self._scored(items, prices, context)
                return await asyncio.to_thread(self._scored, items, prices, context)

        scored = await self._engine.score_together(BACKEND, context, compute, items=len(items))
        return scored.content

    async def _prices(
        self, items: Sequence[Item | InvalidRequest]
    ) -> dict[str | None, Price | RewardFleetError | None]:
        """Return the price of each run, or why there is none."""
        prices: dict[str | None, Price | RewardFleetError | None] = {None: None}
        for item in items:
            if not isinstance(item, InvalidRequest) and item.run not in prices:
                try:
                    prices[item.run] = await self._budgets.price(item.run or "")
                except RewardFleetError as error:
                    prices[item.run] = error
        return prices

    def _scored(
        self,
        items: Sequence[Item | InvalidRequest],
        prices: Mapping[str | None, Price | RewardFleetError | None],
        context: RequestContext,
    ) -> ScoredBatch:
        results: list[Result] = []
        for item in items:
            if context.deadline is not None and time.monotonic() > context.deadline:
                raise DeadlineExceeded("the deadline passed before all answers were scored")
            try:
                results.append(self._result(item, prices))
            except RewardFleetError as error:
                problem = error.problem(context.request_id).model_dump(mode="json")
                results.append(Result(None, Status.ERROR, error=problem))
        content = msgspec.json.encode({"results": results, "provenance": {BACKEND: PROVENANCE}})
        scores = [each.score for each in results if each.score is not None]
        return ScoredBatch(
            content, Counter(each.status for each in results), np.array(scores, float)
        )

    def _result(
        self,
        item: Item | InvalidRequest,
        prices: Mapping[str | None, Price | RewardFleetError | None],
    ) -> Result:
        if isinstance(item, InvalidRequest):
            raise item
        price = prices[item.run]
        if isinstance(price, RewardFleetError):
            raise price
        return self._answers.score(item, price)

    async def put_budget(self, request: BudgetRequest, context: RequestContext) -> BaseModel:
        """Create or change the budget of a run.

        Raises:
            RewardFleetError: The run state cannot be written now.
        """
        run = _run(context)
        async with self._engine.permit(context):
            budget = await self._budgets.put(run, request)
        self._metrics.observe(budget)
        return budget

    async def get_budget(self, _: None, context: RequestContext) -> BaseModel:
        """Return the budget of a run.

        Raises:
            RewardFleetError: There is none, or the run state cannot be read now.
        """
        run = _run(context)
        async with self._engine.permit(context):
            return await self._budgets.get(run)

    async def update_budget(
        self, request: BudgetUpdateRequest, context: RequestContext
    ) -> BaseModel:
        """Count costs.

        Raises:
            RewardFleetError: They do not fit the run, or the run state cannot be written now.
        """
        run = _run(context)
        async with self._engine.permit(context):
            update = await self._budgets.update(run, request)
        self._metrics.observe(update)
        return update


def request_of(response: str, ground_truth: JsonValue) -> ToolsRequest:
    """Return the item that a response and its ground truth stand for.

    Args:
        response: What the policy wrote.
        ground_truth: The correct answer; or an object with it as `ground_truth`, and further fields
            of `ToolsRequest`. Other fields are ignored.

    Raises:
        InvalidRequest: A field is invalid.
    """
    fields = ground_truth if isinstance(ground_truth, dict) else {"ground_truth": ground_truth}
    given = {name: fields[name] for name in ToolsRequest.model_fields if name in fields}
    return validate(ToolsRequest, {**given, "response": response}, prefix="ground_truth: ")


def _run(context: RequestContext) -> str:
    """Return the run that the path names.

    Raises:
        InvalidRequest: Its name is too long for the `run` of an item.
    """
    run = context.parameters["run"]
    if len(run) > MAX_NAME:
        raise InvalidRequest(f"run: give a name of at most {MAX_NAME} characters")
    return run


def _characters(items: Sequence[Item | InvalidRequest]) -> int:
    return sum(
        len(item.response) + len(item.ground_truth)
        for item in items
        if not isinstance(item, InvalidRequest)
    )
