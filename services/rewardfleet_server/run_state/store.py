"""What a store of run state is, and what its forms share."""

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

from pydantic import JsonValue, TypeAdapter

from rewardfleet.wire.errors import Unavailable

from .metrics import RunStateMetrics

if TYPE_CHECKING:  # it imports this module
    from .groups import Groups


class Scope(NamedTuple):
    """The part of a run's state that one feature owns.

    Attributes:
        run: The training run, as callers name it.
        name: The feature, e.g. `running_stats`.
    """

    run: str
    name: str


class Shape(NamedTuple):
    """What a feature stores. Anything else is damaged.

    Attributes:
        state: The state of its scopes.
        outcome: The outcomes of its transitions.
    """

    state: TypeAdapter[Any]
    outcome: TypeAdapter[Any]


#: The shapes of features, by `Scope.name`.
Shapes = Mapping[str, Shape]
NO_SHAPES: Shapes = {}

#: Days after which a run that no call has changed is deleted, by default.
MAX_AGE_DAYS = 30.0

#: Seconds between two deletions of what is too old; less if the maximum age is below ten hours.
_PRUNE_SECONDS = 3600.0


#: Seconds by which a wall clock may differ from that of the store before it is reported.
MAX_CLOCK_DIFFERENCE_S = 10.0


def prune_interval_s(max_age_days: float) -> float:
    """Return the seconds between two deletions of old runs."""
    return min(_PRUNE_SECONDS, max_age_days * 8640)


#: Number of the last steps whose outcomes are stored by default.
KEEP_STEPS = 1000

#: Seconds in which a transition must be applied, while other processes change the same state.
BUSY_SECONDS = 5.0

#: Maps the state of a scope (None at first) to its next state and the
#: outcome, which is returned to the caller. It is called again if another
#: process changed the state in the meantime: it must have no side effects.
Transition = Callable[[JsonValue], tuple[JsonValue, JsonValue]]


class RunState(Protocol):
    """A store with a small state per scope, and the outcomes of its transitions.

    Its reads are never cached. Every method raises `Unavailable` if the store cannot be used now,
    or if what it stores is damaged. Nothing is changed then, unless only the store's response was
    lost.

    Runs that no call has changed for long are deleted with all their scopes and groups.

    Attributes:
        metrics: Counts `Unavailable`, and wall clocks that differ.
    """

    metrics: RunStateMetrics

    @property
    def groups(self) -> "Groups":
        """The groups that are collected member by member."""

    @property
    def failure(self) -> str | None:
        """Why the store can never be used again, or None."""

    async def read(self, scope: Scope) -> JsonValue:
        """Return the state of a scope, or None."""

    async def outcome(self, scope: Scope, step: int, uid: str) -> JsonValue:
        """Return the outcome of a transition, or None if it was not applied. Write nothing."""

    async def apply_once(
        self,
        scope: Scope,
        step: int,
        uid: str,
        transition: Transition,
        *,
        keep_steps: int = KEEP_STEPS,
    ) -> JsonValue:
        """Apply a transition once for (scope, step, uid); return its outcome.

        A repeated call returns the stored outcome. If the transition raises, nothing changes.

        Args:
            scope: Whose state it changes.
            step: The step of the run, 0 to 2^53.
            uid: Names the transition within the step.
            transition: A pure function. It runs in a thread.
            keep_steps: When a step is new to the scope, the outcomes of this many others are kept,
                those that came last. Other steps are deleted, and refused from then on.

        Raises:
            InvalidRequest: The step is so old that its outcomes were deleted.
            ValueError: The new state or the outcome is not JSON, e.g. contains NaN.
            Unavailable: The store cannot be used now.
        """

    async def update(
        self, scope: Scope, transition: Transition, *, forget_outcomes: bool = False
    ) -> JsonValue:
        """Apply a transition that belongs to no step, e.g. restore a checkpoint.

        Repeating the call applies it again: after `Unavailable`, whose cause may be a lost
        response, only transitions that set the state may be repeated.

        Args:
            scope: Whose state it changes.
            transition: A pure function. It runs in a thread.
            forget_outcomes: Also delete the outcomes of the scope, in the same transaction. Steps
                that were applied can then be applied again.

        Returns:
            The outcome, which is not stored.

        Raises:
            ValueError: The new state or the outcome is not JSON, e.g. contains NaN.
            Unavailable: The store cannot be used now.
        """

    async def aclose(self) -> None:
        """Release files, connections and threads."""


def dump(value: JsonValue) -> str:
    """Return a value as JSON.

    Raises:
        ValueError: It contains NaN or an infinity.
    """
    return json.dumps(value, allow_nan=False)


def load(scope: Scope, text: str | bytes, shape: TypeAdapter[Any] | None = None) -> JsonValue:
    """Return a stored value.

    Raises:
        Unavailable: It is not JSON, or has another shape.
    """
    try:
        value: JsonValue = json.loads(text, parse_constant=_refuse_constant)
        if shape is not None:
            shape.validate_json(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise Damaged(scope) from error
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


class Damaged(Unavailable):
    """The error for stored values that no transition has written."""

    def __init__(self, scope: Scope) -> None:
        self.where = f"the run state of run {scope.run[:100]!r} ({scope.name})"
        super().__init__(
            f"{self.where} is damaged; restore the store from a backup, or continue under a new "
            "name of the run"
        )
