"""Scoring answers: the pure function, and the price of the run's budget."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from rewardfleet import __version__
from rewardfleet.tool_use import parse_ground_truth, score_answer
from rewardfleet.wire.causes import ToolsCause
from rewardfleet.wire.errors import RewardFleetError
from rewardfleet.wire.score import Status, Timing
from rewardfleet.wire.tools import Family, ToolsRequest, ToolsScore
from rewardfleet_server.observe.tracing import stage
from rewardfleet_server.scorer import ScoreFields, ScoringPlan
from rewardfleet_server.system.anonymous_file import AnonymousFile

from .budgets import Budgets, Price

#: A longer answer is scored in a thread, in characters with its ground truth.
_SHORT_ANSWER = 64 * 1024


@dataclass(frozen=True, eq=False)
class ToolsScorer:
    """Scores answers, alone or in a batch.

    Nothing is cached: computing is cheaper, and lambda changes.
    """

    _families: Mapping[str, Family]  #: of tools by name, after those of a request
    _budgets: Budgets

    backend = "tools"  #: the `backend` of every score

    async def plan(
        self,
        request: ToolsRequest,
        upload: AnonymousFile | None = None,  # noqa: ARG002 - this service accepts none
    ) -> ScoringPlan[ToolsScore]:
        async def compute(_: float | None) -> ToolsScore:
            score, timing = await self.prepare([request]), Timing()
            with stage(timing, "backend"):
                if len(request.response or "") + len(request.ground_truth) <= _SHORT_ANSWER:
                    fields = score(request)
                else:
                    fields = await asyncio.to_thread(score, request)
            return ToolsScore.model_validate({**fields, "timing_ms": timing})

        return ScoringPlan(self.backend, compute)

    async def prepare(
        self, requests: Sequence[ToolsRequest]
    ) -> Callable[[ToolsRequest], ScoreFields]:
        """Read the price of each step of a run once; an item whose run has none fails."""
        prices: dict[tuple[str | None, int | None, str | None], Price | RewardFleetError] = {}
        # Of a new attempt, the first call discards all from its step on.
        places = {(each.run, each.step, each.attempt) for each in requests if each.run is not None}
        for run, step, attempt in sorted(places, key=lambda place: place[1] or 0):
            try:
                prices[run, step, attempt] = await self._budgets.price(run, step, attempt)
            except RewardFleetError as error:
                prices[run, step, attempt] = error

        def score(request: ToolsRequest) -> ScoreFields:
            price = prices.get((request.run, request.step, request.attempt))
            if isinstance(price, RewardFleetError):
                raise price
            return self.score(request, price)

        return score

    def score(self, request: ToolsRequest, price: Price | None) -> ScoreFields:
        """Return the fields of the `ToolsScore` of an answer.

        Args:
            request: The answer.
            price: The price of the budget of its run; None without a run.

        Raises:
            InvalidRequest: The ground truth is malformed.
        """
        if request.response is None:
            parse_ground_truth(request.ground_truth)
            unscored = {"score": None, "status": Status.ABSTAINED, "cause": ToolsCause.NO_ANSWER}
            return {**unscored, "backend": self.backend}
        reward = score_answer(
            request.response,
            request.ground_truth,
            request.options,
            step=request.step or 0,
            labels=request.tool_families,
            tools=request.tools,
            default_labels=self._families,
        )
        multiplier = 0.0 if price is None else price.multiplier
        usage, task, cause = reward.usage, reward.task, reward.cause
        if cause is None and multiplier * reward.cost > 0:
            cause = ToolsCause.TOOL_COST
        components = {"format": reward.format, "correctness": reward.correctness}
        if request.options.with_length:
            components["length"] = reward.length
        details = {"task": task, "cost": reward.cost}
        if price is not None:
            components["tool_cost"] = 0.0 - multiplier * reward.cost  # 0, not -0
            details |= {"lambda": multiplier, "violation": reward.cost - price.budget}
        return {
            "score": task - multiplier * reward.cost,
            "status": Status.OK,
            "cause": cause,
            "components": components,
            "details": details,
            "backend": self.backend,
            "used_any_tool": usage.calls > 0,
            "used_search": "search" in usage.by_family,
            "used_calculate": "calculate" in usage.by_family,
            "calls": usage.calls,
            "repeats": usage.repeats,
            "dialect": reward.answer.dialect,
            "untyped": reward.answer.untyped,
            "tools": usage.by_family,
        }

    def provenance(self, backend: str) -> dict[str, JsonValue]:  # noqa: ARG002 - there is one
        return {"service": f"rewardfleet {__version__}"}
