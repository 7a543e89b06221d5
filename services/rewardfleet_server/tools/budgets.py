"""The budgets of training runs: one multiplier per run, shared by all replicas.

The costs of a step arrive in parts, from one worker or many. Each part is counted once, by
(run, step, part). A step is closed with its last part if their number is known, else by the first
part of a later step; there is no deadline, so that the multiplier does not depend on the clock.
"""

import json
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, TypeAdapter, model_validator

from rewardfleet.tool_use import update, warning_of
from rewardfleet.wire import tools as wire
from rewardfleet.wire.errors import InvalidRequest, NotFound
from rewardfleet.wire.score import Step
from rewardfleet_server.run_state import Call, RunState, Scope, Shape
from rewardfleet_server.run_state.values import Ranges, contains, including

#: Names the price of a step; names of parts are in lists.
_PRICE = "price"

#: A new step this far below the last one is no late part: the last one was a stray number.
_FAR = 1000


class _BudgetState(BaseModel):
    """What is stored of a run."""

    model_config = ConfigDict(extra="forbid")

    options: wire.BudgetOptions  #: as they were sent
    checkpoint: wire.BudgetCheckpoint  #: the closed steps
    open_step: Step | None = None  #: the step of which parts have arrived, or None
    parts: wire.StepSum = Field(default_factory=wire.StepSum)
    closed: Ranges = Field(default_factory=list)

    @model_validator(mode="after")
    def _can_be_updated(self) -> Self:
        if self.open_step is not None and not (self.parts.parts and self.parts.count):
            raise ValueError("an open step has parts")
        window, multiplier = self.checkpoint.window, self.checkpoint.multiplier
        multiplier.multiplier = min(multiplier.multiplier, self.options.max_lambda)
        multiplier.integral = min(multiplier.integral, self.options.max_lambda)
        numbers = [*multiplier.past_costs]
        for each in (window, self.parts, multiplier):
            numbers += each.model_dump(exclude={"past_costs"}).values()
        if any(abs(number) > wire.MAX_SUM**2 for number in numbers):
            raise ValueError("a sum is too large")
        return self

    def count(self, request: wire.BudgetUpdateRequest) -> bool:
        """Count a request that was not counted before; return whether its step is closed."""
        last, opened = self.checkpoint.step, self.open_step
        newest = last if opened is None else opened
        is_late = newest is not None and newest - _FAR <= request.step < newest
        if is_late or contains(self.closed, request.step):
            raise InvalidRequest(
                f"step {request.step} is closed: the run is at step {newest}, and a step is closed "
                "with its last part, or by a later step"
            )
        if opened is not None and request.step != opened:
            self._close()
        self.open_step = request.step
        count = request.count or len(request.costs or ())
        costs = [(request.mean_cost or 0.0) * count] if request.costs is None else request.costs
        self.parts.parts += 1
        self.parts.count += count
        self.parts.cost += sum(costs)
        if request.mean_task_reward is not None:
            self.parts.task_count += count
            self.parts.task += request.mean_task_reward * count
        parts = self.options.parts
        # More than that have arrived if `PUT` reduced their number.
        if parts is not None and self.parts.parts >= parts:
            self._close()
            return True
        return False

    def _close(self) -> None:
        """Close the open step, and update the multiplier if it is the last of `every` steps."""
        assert self.open_step is not None  # noqa: S101 - there is one to close
        self.closed = including(self.closed, self.open_step)
        window, parts = self.checkpoint.window, self.parts
        window.steps += 1
        for name in ("parts", "count", "cost", "task_count", "task"):
            setattr(window, name, getattr(window, name) + getattr(parts, name))
        self.checkpoint.step, self.open_step, self.parts = self.open_step, None, wire.StepSum()
        if window.steps < self.options.every:
            return
        mean_cost = window.cost / window.count
        self.checkpoint = wire.BudgetCheckpoint(
            multiplier=update(self.options, self.checkpoint.multiplier, mean_cost),
            step=self.checkpoint.step,
            updates=self.checkpoint.updates + 1,
            mean_cost=mean_cost,
            mean_task_reward=window.task / window.task_count if window.task_count else None,
        )

    def _means(self) -> dict[str, float | str | None]:
        mean_cost = self.checkpoint.mean_cost
        return {
            "lambda": self.checkpoint.multiplier.multiplier,
            "mean_cost": mean_cost,
            "mean_task_reward": self.checkpoint.mean_task_reward,
            "violation": None if mean_cost is None else mean_cost - self.options.budget,
            "warning": warning_of(self.options, self.checkpoint),
        }

    def answer(self, run: str, step: int, *, closed: bool) -> wire.BudgetUpdate:
        return wire.BudgetUpdate.model_validate(
            {"run": run, "step": step, "closed": closed, **self._means()}
        )

    def budget(self, run: str) -> wire.Budget:
        return wire.Budget.model_validate(
            {
                "run": run,
                "step": self.checkpoint.step,
                "open_step": self.open_step,
                "open_parts": self.parts.parts,
                "options": self.options,
                "checkpoint": self.checkpoint,
                **self._means(),
            }
        )


class Price(BaseModel):
    """What the scores of a run need of its budget."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    multiplier: FiniteFloat  #: Lambda
    budget: FiniteFloat  #: mean cost per answer to stay within


#: What is stored of each run.
_SHAPE = Shape(TypeAdapter(_BudgetState), TypeAdapter(wire.BudgetUpdate | Price), kept=("options",))


class Budgets:
    """The budgets in a run-state store.

    Every method raises `Unavailable` if the store cannot be used now, and all with an attempt
    `Conflict` if that has ended. All but `put` raise `NotFound` if the run has no budget.
    """

    def __init__(self, store: RunState) -> None:
        self._store = store

    async def price(self, run: str, step: int | None, attempt: str | None) -> Price:
        """Return the multiplier and the budget of a run, fixed by the first call for a step."""

        def transition(stored: _BudgetState | None) -> tuple[_BudgetState, Price]:
            state = _existing(stored, run)
            multiplier = state.checkpoint.multiplier.multiplier
            return state, Price(multiplier=multiplier, budget=state.options.budget)

        scope = _scope(run)
        if step is None:
            return transition(await self._store.read(scope, Call(attempt)))[1]
        return await self._store.apply_once(scope, step, _PRICE, transition, attempt=attempt)

    async def get(self, run: str) -> wire.Budget:
        """Return the budget of a run."""
        return _existing(await self._store.read(_scope(run)), run).budget(run)

    async def put(self, run: str, request: wire.BudgetRequest) -> wire.Budget:
        """Create a budget, change its options, or resume from a checkpoint."""

        def transition(stored: _BudgetState | None) -> tuple[_BudgetState, wire.Budget]:
            state = _BudgetState.model_validate(dict(_changed(stored, request)))
            return state, state.budget(run)

        restored = request.checkpoint
        step = None if restored is None else (-1 if restored.step is None else restored.step) + 1
        return await self._store.update(
            _scope(run), transition, attempt=request.attempt, restored_step=step
        )

    async def update(self, run: str, request: wire.BudgetUpdateRequest) -> wire.BudgetUpdate:
        """Count the costs of a part of a step, once.

        A request that is sent again gets the answer it got the first time.

        Raises:
            Conflict: The part was sent with other costs before.
            InvalidRequest: The step is closed.
        """

        def transition(stored: _BudgetState | None) -> tuple[_BudgetState, wire.BudgetUpdate]:
            state = _existing(stored, run)
            is_closed = state.count(request)
            return state, state.answer(run, request.step, closed=is_closed)

        return await self._store.apply_once(
            _scope(run),
            request.step,
            json.dumps([request.part]),
            transition,
            content=request.model_dump(mode="json", exclude={"attempt"}),
            attempt=request.attempt,
        )


def _scope(run: str) -> Scope:
    return Scope(run, "budget", _SHAPE)


def _existing(stored: _BudgetState | None, run: str) -> _BudgetState:
    if stored is None:
        raise NotFound(f"run {run[:100]!r} has no budget: create it by PUT /budgets/{run[:100]}")
    return stored


def _changed(stored: _BudgetState | None, request: wire.BudgetRequest) -> _BudgetState:
    """Return the state after `PUT`."""
    options = wire.BudgetOptions.model_validate(dict(request), from_attributes=True, extra="ignore")
    if request.checkpoint is not None:
        closed = _closed_at(stored, request.checkpoint.step)
        return _BudgetState(options=options, checkpoint=request.checkpoint, closed=closed)
    if stored is None:
        first = request.initial_lambda
        multiplier = wire.MultiplierCheckpoint(multiplier=first, integral=first)
        checkpoint = wire.BudgetCheckpoint(multiplier=multiplier)
        return _BudgetState(options=options, checkpoint=checkpoint)
    stored.options = options
    return stored


def _closed_at(stored: _BudgetState | None, last: int | None) -> Ranges:
    """Return the closed steps of a run that resumes after a step."""
    if last is None:
        return []
    if stored is None:
        return [(0, last)]
    before = [(first, min(end, last)) for first, end in stored.closed if first <= last]
    return including(before, last)
