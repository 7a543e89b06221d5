"""The routes of the tools service for budgets."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from prometheus_client import Gauge
from pydantic import BaseModel, JsonValue

from rewardfleet.tool_use.completion import answer_of
from rewardfleet.wire import tools as wire
from rewardfleet.wire.tools import fields_of_truth
from rewardfleet.wire.validation import validate
from rewardfleet_server.engine import Engine
from rewardfleet_server.http.routes import Route, run_of
from rewardfleet_server.observe.telemetry import RequestContext

from .budgets import Budgets

#: The runs whose budgets are in the metrics: those updated last.
_MAX_RUNS = 32


class BudgetMetrics:
    """Metrics of the budgets that this process updated last, with the run as label."""

    def __init__(self) -> None:
        # registry=None: each service has its own registry, not the global one.
        self._gauges = {  # by attributes of a budget
            name: Gauge(f"rewardfleet_budget_{name.rstrip('_')}", text, ("run",), registry=None)
            for name, text in (
                ("lambda_", "Lagrange multiplier of the budget of a run."),
                ("mean_cost", "Mean cost per answer at the last update of the multiplier."),
                ("mean_task_reward", "Mean task reward of the same answers, where it is known."),
                ("violation", "Mean cost minus budget at that update."),
                ("warning", "1 if the budget cannot be reached, or is not yet reached, else 0."),
            )
        }
        # With the newest step, and whether it is closed.
        self._runs: OrderedDict[str, tuple[int, bool]] = OrderedDict()
        self.collectors = tuple(self._gauges.values())  #: the metrics to register

    def observe(self, budget: wire.Budget | wire.BudgetUpdate) -> None:
        """Set the metrics of a run; of the runs beyond 32, the oldest is left out.

        The first answer of an update that was sent again is older than what the metrics have.
        """
        if isinstance(budget, wire.Budget):
            progress = (-1 if budget.step is None else budget.step, True)
        else:
            progress = (budget.step, budget.closed)
            if progress < self._runs.get(budget.run, progress):
                return
        self._runs[budget.run] = progress
        self._runs.move_to_end(budget.run)
        for name, gauge in self._gauges.items():
            value = getattr(budget, name) if name != "warning" else budget.warning is not None
            if value is None:  # as after `PUT` with a checkpoint from before the first update
                gauge.remove_by_labels({"run": budget.run})
            else:
                gauge.labels(budget.run).set(value)
        if len(self._runs) > _MAX_RUNS:
            oldest, _ = self._runs.popitem(last=False)
            for gauge in self._gauges.values():
                gauge.remove_by_labels({"run": oldest})


def budget_routes(
    engine: Engine[Any, Any], budgets: Budgets, metrics: BudgetMetrics
) -> Iterator[Route[Any]]:
    """Yield the routes of budgets."""

    def route(
        method: str,
        description: str,
        call: Callable[[str, Any], Awaitable[wire.Budget | wire.BudgetUpdate]],
        request: type[BaseModel] | None,
        response: type[BaseModel] = wire.Budget,
    ) -> Route[Any]:
        async def handle(body: Any, context: RequestContext) -> BaseModel:
            run = run_of(context)
            async with engine.permit(context):
                answer = await call(run, body)
            if method != "GET":
                metrics.observe(answer)
            return answer

        path = "/budgets/{run}/update" if method == "POST" else "/budgets/{run}"
        return Route(path, description, request, response, handle, method=method, scores=False)

    put = "Create the budget of a run, change its options, or resume it from a checkpoint"
    yield route("PUT", put, budgets.put, wire.BudgetRequest)
    get = "Return the budget of a run, with a checkpoint"
    yield route("GET", get, lambda run, _: budgets.get(run), None)
    update = "Count the costs of a step, or of a part of it, once"
    yield route("POST", update, budgets.update, wire.BudgetUpdateRequest, wire.BudgetUpdate)


def request_of(response: Any, ground_truth: JsonValue) -> wire.ToolsRequest:
    """Return the item that a response and its ground truth stand for.

    Args:
        response: What the policy wrote, as `answer_of` takes it.
        ground_truth: The correct answer; or an object with it as `ground_truth`, and further fields
            of `ToolsRequest`, or the JSON of that. Other fields are ignored.

    Raises:
        InvalidRequest: A field is invalid.
    """
    fields = fields_of_truth(ground_truth)
    response = answer_of(response, fields.get("ground_truth"))
    return validate(wire.ToolsRequest, {**fields, "response": response}, prefix="ground_truth: ")
