"""Scoring answers: the pure function, and the price of the run's budget."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from pydantic import JsonValue

from rewardfleet import __version__
from rewardfleet.tool_use import score_answer
from rewardfleet.wire.errors import Problem, RewardFleetError
from rewardfleet.wire.score import Status, Timing
from rewardfleet.wire.tools import Family, ToolsRequest, ToolsScore
from rewardfleet_server.engine import ScoringPlan
from rewardfleet_server.observe.tracing import stage
from rewardfleet_server.system.anonymous_file import AnonymousFile

from .budgets import Budgets, Price
from .decode import Item, decode_batch

#: The `backend` of every score.
BACKEND = "tools"
#: The provenance that all scores share.
PROVENANCE: dict[str, JsonValue] = {"service": f"rewardfleet {__version__}"}
#: A longer answer, or batch of answers, is scored in a thread, in characters.
_SHORT_ANSWER = 64 * 1024


class Result(msgspec.Struct, gc=False, omit_defaults=True):
    """The fields of `ToolsScore` that are encoded; a test checks that they agree."""

    score: float | None
    status: Status
    components: dict[str, float] = {}
    backend: str = ""
    used_any_tool: bool = False
    used_search: bool = False
    used_calculate: bool = False
    calls: int = 0
    repeats: int = 0
    tools: dict[Family, dict[str, int]] = {}
    error: dict[str, Any] | None = None


class AnswerScorer:
    """Scores answers with the families of the service.

    Args:
        families: The families of tools by name, after those of a request.
    """

    def __init__(self, families: Mapping[str, Family]) -> None:
        self._families = families

    def score(self, item: Item, price: Price | None) -> Result:
        """Score one answer.

        Args:
            item: The answer.
            price: Of the budget of its run; None without a run.

        Raises:
            InvalidRequest: The ground truth is malformed.
        """
        reward = score_answer(
            item.response,
            item.ground_truth,
            item.options,
            step=item.step or 0,
            labels=item.tool_families,
            tools=item.tools,
            default_labels=self._families,
        )
        task, cost, usage = reward.task, reward.cost, reward.usage
        multiplier = 0.0 if price is None else price.multiplier
        violation = 0.0 if price is None else cost - price.budget
        components = {
            "task": task,
            "format": reward.format,
            "correctness": reward.correctness,
            "length": reward.length,
            "cost": cost,
            "lambda": multiplier,
            "violation": violation,
        }
        by_family = usage.by_family
        return Result(
            task - multiplier * cost,
            Status.OK,
            components,
            BACKEND,
            usage.calls > 0,
            "search" in by_family,
            "calculate" in by_family,
            usage.calls,
            usage.repeats,
            by_family,
        )


class BulkAnswers:
    """Scores the answers of a batch; see `rewardfleet_server.engine.BulkScorer`.

    Args:
        answers: Scores an answer.
        budgets: The budgets of runs.
    """

    backend = BACKEND
    decode = staticmethod(decode_batch)

    def __init__(self, answers: AnswerScorer, budgets: Budgets) -> None:
        self._answers = answers
        self._budgets = budgets

    async def prepare(self, items: Sequence[Item | RewardFleetError]) -> Callable[[Item], Result]:
        """Read the price of each run once; an item whose run has none fails."""
        prices: dict[str | None, Price | RewardFleetError | None] = {None: None}
        for item in items:
            if not isinstance(item, RewardFleetError) and item.run not in prices:
                try:
                    prices[item.run] = await self._budgets.price(item.run or "")
                except RewardFleetError as error:
                    prices[item.run] = error

        def score(item: Item) -> Result:
            price = prices[item.run]
            if isinstance(price, RewardFleetError):
                raise price
            return self._answers.score(item, price)

        return score

    def is_small(self, items: Sequence[Item | RewardFleetError]) -> bool:
        """Return whether the answers are short."""
        lengths = (
            len(item.response) + len(item.ground_truth)
            for item in items
            if not isinstance(item, RewardFleetError)
        )
        return sum(lengths) <= _SHORT_ANSWER

    def failed(self, problem: Problem) -> Result:
        """Return the result of an answer that has no score."""
        return Result(None, Status.ERROR, error=problem.model_dump(mode="json"))

    def encode(self, results: Sequence[Result]) -> bytes:
        """Encode the response."""
        return msgspec.json.encode({"results": results, "provenance": {BACKEND: PROVENANCE}})


class ToolsScorer:
    """Scores single answers. Nothing is cached: computing is cheaper, and lambda changes.

    Args:
        answers: Scores an answer.
        budgets: The budgets of runs.
    """

    def __init__(self, answers: AnswerScorer, budgets: Budgets) -> None:
        self._answers = answers
        self._budgets = budgets

    async def plan(
        self,
        request: ToolsRequest,
        upload: AnonymousFile | None = None,  # noqa: ARG002 - this service accepts none
    ) -> ScoringPlan[ToolsScore]:
        async def compute(_: float | None) -> ToolsScore:
            price = None if request.run is None else await self._budgets.price(request.run)
            timing = Timing()
            with stage(timing, "backend"):
                if len(request.response) <= _SHORT_ANSWER:
                    result = self._answers.score(request, price)
                else:
                    result = await asyncio.to_thread(self._answers.score, request, price)
            score = ToolsScore.model_validate(msgspec.to_builtins(result))
            return score.model_copy(update={"timing_ms": timing})

        return ScoringPlan(BACKEND, compute)

    def provenance(self, backend: str) -> dict[str, JsonValue]:  # noqa: ARG002 - there is one
        return dict(PROVENANCE)

    def check_ready(self) -> Mapping[str, str] | None:
        """Return None: the run-state store is opened before the service listens."""
