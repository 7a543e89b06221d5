"""Which steps of a scope are stored, and which were applied and deleted.

Steps are remembered by name and not by distance: a stray step, such as 2^53, takes the place of one
step and does not make the others too old.
"""

from itertools import pairwise
from typing import Annotated

import msgspec
from pydantic import AfterValidator, TypeAdapter

from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.score import MAX_STEP, Step

from .store import Damaged, Scope, Transaction
from .values import WHOLE, run_key, step_key, steps_field

#: Limit on the ranges that are stored. Beyond it, the two that are nearest become one.
_MAX_RANGES = 64


def _rising(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    ends = [end for each in ranges for end in each]
    if ends != sorted(ends) or len(ranges) > _MAX_RANGES:
        raise ValueError(f"give at most {_MAX_RANGES} ranges, rising")
    return ranges


#: Ranges (first, last) of steps, rising and disjoint.
Ranges = Annotated[list[tuple[Step, Step]], AfterValidator(_rising)]
_RANGES = TypeAdapter(Ranges)


def contains(ranges: Ranges, step: int) -> bool:
    """Return whether a step is in one of the ranges."""
    return any(first <= step <= last for first, last in ranges)


def including(ranges: Ranges, step: int) -> Ranges:
    """Return the ranges with a step added. Beyond 64 ranges, steps between two are added as well.

    Those are between the two ranges that are nearest to each other: never between the steps that a
    run counts and a stray one.
    """
    if contains(ranges, step):
        return ranges
    joined = sorted([*ranges, (step, step)])
    gaps = [following[0] - before[1] for before, following in pairwise(joined)]
    while 1 in gaps or len(joined) > _MAX_RANGES:
        left = gaps.index(min(gaps))
        joined[left : left + 2] = [(joined[left][0], joined[left + 1][1])]
        del gaps[left]
    return joined


class StepLog(msgspec.Struct, forbid_unknown_fields=True):
    """The steps of a scope. There may be a thousand, which msgspec reads fast."""

    #: Those whose outcomes are stored, in the order of their first transitions.
    stored: list[Annotated[int, msgspec.Meta(ge=0, le=MAX_STEP)]]
    deleted: Ranges  #: those whose outcomes were deleted
    #: The state before earlier steps is not known, as it was set to what it was before this one.
    first: int = 0

    def __post_init__(self) -> None:
        _RANGES.validate_python(self.deleted)

    def with_step(self, run: str, step: int, keep_steps: int) -> tuple["StepLog", list[int]]:
        """Return the log with a step, and the steps whose outcomes are to be deleted now.

        Args:
            run: The training run, for the message.
            keep_steps: How many steps besides this one are stored.

        Raises:
            InvalidRequest: The step was deleted: applying it again would count it twice.
        """
        if step in self.stored:
            return self, []
        if contains(self.deleted, step):
            newest = self.stored[-1] if self.stored else self.deleted[-1][1]
            raise InvalidRequest(
                f"step {step} is too old: run {run[:100]!r} is at step {newest}, and the last "
                f"{keep_steps} steps are stored"
            )
        stored = [*self.stored, step]
        surplus = max(len(stored) - keep_steps - 1, 0)
        deleted = self.deleted
        for each in stored[:surplus]:
            deleted = including(deleted, each)
        return StepLog(stored[surplus:], deleted, self.first), stored[:surplus]


def load_steps(scope: Scope, text: bytes | None) -> StepLog:
    """Return the stored steps of a scope.

    Raises:
        Unavailable: They are damaged.
    """
    if text is None:
        return StepLog([], [])
    try:
        return msgspec.json.decode(text, type=StepLog)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Damaged(scope) from error


def enter_step(
    tx: Transaction, scope: Scope, step: int, keep_steps: int
) -> tuple[list[int], list[int]]:
    """Note a step of a scope; return the steps that are stored, and those to delete now.

    Raises:
        InvalidRequest: The step was deleted.
        Unavailable: What is stored is damaged.
    """
    run, outcomes, field = run_key(scope.run), step_key(scope, step), steps_field(scope.name)
    log = load_steps(scope, tx.get(run, field))
    if (step in log.stored) != (tx.get(outcomes, WHOLE) is not None):
        raise Damaged(scope)
    entered, deleted = log.with_step(scope.run, step, keep_steps)
    if entered is not log:
        tx.put(run, field, msgspec.json.encode(entered))
        tx.put(outcomes, WHOLE, b"1")
    return entered.stored, deleted
