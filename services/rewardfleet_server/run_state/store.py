"""What a store of run state is, and what its forms share."""

import json
from collections.abc import Callable
from typing import NamedTuple, NoReturn, Protocol

from pydantic import JsonValue

from rewardfleet.wire.errors import InvalidRequest, Unavailable


class Scope(NamedTuple):
    """The part of a run's state that one feature owns.

    Attributes:
        run: The training run, as callers name it.
        name: The feature, e.g. `running_stats`.
    """

    run: str
    name: str


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
    """

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
            keep_steps: Outcomes older than this many steps before this one are deleted, and
                transitions of steps older than this many steps before the scope's newest are
                refused.

        Raises:
            InvalidRequest: The step is so old that it is unknown whether it was applied.
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


def check_age(scope: Scope, step: int, newest: int | None, keep_steps: int) -> None:
    """Refuse a step so old that it may have been applied: applying it twice would be wrong.

    Args:
        scope: Whose state the step changes.
        step: The step.
        newest: The newest step of the scope, or None.
        keep_steps: See `RunState.apply_once`.

    Raises:
        InvalidRequest: The step is too old.
    """
    if newest is not None and step < newest - keep_steps:
        raise InvalidRequest(
            f"step {step} is too old: run {scope.run[:100]!r} is at step {newest}, and the "
            f"last {keep_steps} steps are stored"
        )


def dump(value: JsonValue) -> str:
    """Return a value as JSON.

    Raises:
        ValueError: It contains NaN or an infinity.
    """
    return json.dumps(value, allow_nan=False)


def load(scope: Scope, text: str | bytes) -> JsonValue:
    """Return a stored value.

    Raises:
        Unavailable: It is not JSON.
    """
    try:
        value: JsonValue = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, TypeError, RecursionError) as error:
        raise damaged(scope) from error
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def damaged(scope: Scope) -> Unavailable:
    """Return the error for stored values that no transition has written."""
    return Unavailable(
        f"the run state of run {scope.run[:100]!r} ({scope.name}) is damaged; restore the store "
        "from a backup, or continue under a new name of the run"
    )
