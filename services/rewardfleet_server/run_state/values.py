"""Keys of run state, its values as JSON, and which steps are stored.

| key | fields |
|---|---|
| `runs` | per run, when it was changed last, in the seconds of `clock` |
| `clock` | `""`: the seconds by which runs age, and when they were stored by the store's clock |
| `store 2` | `""`: the id of the store |
| `[run]` | `""`: its attempts; per feature its state, and as `NAME steps` its `StepLog` |
| `[run, feature, step]` | `""`: the state before it; per `:uid` an outcome, or a group's `:name` |
| `[run, "groups", step, name]` | `""`: the group; per `:uid` a member or its result |

An empty field says that the key was written. If it is missing where it is expected, e.g. because
the server evicted a key, the state is damaged. Members, results and outcomes begin with the digest
of what was sent. Steps also have, per `=uid`, the items that were counted with an outcome.

Steps are remembered by name and not by distance: a stray step, such as 2^53, takes the place of one
step and does not make the others too old.
"""

import hashlib
import json
from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, Any, TypeVar

import msgspec
from pydantic import AfterValidator, TypeAdapter

from rewardfleet.wire.errors import Conflict, InvalidRequest
from rewardfleet.wire.score import MAX_STEP, Step

from .store import Damaged, Scope, Transaction

T = TypeVar("T")

# The last two have another number with each format.
RUNS, CLOCK, STORE = "runs", "clock 2", "store 2"
_DIGEST_BYTES = 8
#: The field that says that a key was written, or has what belongs to the key as a whole.
WHOLE = ""
#: Limit on the ranges of steps that are stored. Beyond it, the two that are nearest become one.
_MAX_RANGES = 64


def dump(value: Any, adapter: TypeAdapter[Any] | None = None) -> bytes:
    """Return a value as JSON. Models with an adapter ensure that their numbers are finite.

    Raises:
        ValueError: It contains NaN or an infinity.
    """
    if adapter is not None:
        return adapter.dump_json(value)
    return json.dumps(value, allow_nan=False).encode()


def load(scope: Scope, text: bytes, adapter: TypeAdapter[Any] | None = None) -> Any:
    """Return a stored value, unless it is damaged: not JSON, or of another shape."""
    try:
        if adapter is None:
            return msgspec.json.decode(text)
        if b"NaN" in text or b"Infinity" in text:  # which an adapter may take for numbers
            msgspec.json.decode(text)
        return adapter.validate_json(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Damaged(scope) from error


def applied(
    scope: Scope, text: bytes | None, transition: Callable[[Any], tuple[Any, T]]
) -> tuple[bytes, T]:
    """Apply a transition to a stored state; return the next one, and the outcome."""
    shape = scope.shape.state
    state, outcome = transition(None if text is None else load(scope, text, shape))
    return dump(state, shape), outcome


def digest(content: Any) -> bytes:
    """Return the digest of what a call has sent, which begins what is stored of it."""
    text = msgspec.json.encode(content)
    return hashlib.blake2b(text, digest_size=_DIGEST_BYTES).hexdigest().encode()


def split(scope: Scope, stored: bytes) -> tuple[bytes, bytes]:
    """Return the digest with which begins what is stored of a call, and the rest."""
    known = stored[: 2 * _DIGEST_BYTES]
    if len(known) < 2 * _DIGEST_BYTES or not known.isalnum():
        raise Damaged(scope)
    return known, stored[2 * _DIGEST_BYTES :]


def same(scope: Scope, stored: bytes, sent: bytes, what: str) -> bytes:
    """Return what is stored of a call, without its digest.

    Args:
        sent: The digest of what is sent now.
        what: Names the call.

    Raises:
        Conflict: Another content was sent the first time.
    """
    known, rest = split(scope, stored)
    if known != sent:
        raise other_content(what)
    return rest


def other_content(what: str) -> Conflict:
    """Return the error for a call that differs from the one that it repeats."""
    return Conflict(
        f"{what}: other content than the first time; a repeated call sends the same, and a "
        "trainer that restarts and samples again sends a new `attempt`"
    )


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


def load_steps(scope: Scope, text: bytes | None) -> StepLog:
    """Return the stored steps of a scope, unless they are damaged."""
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

    Args:
        keep_steps: How many steps besides this one are stored.

    Raises:
        InvalidRequest: The step was deleted: applying it again would count it twice.
    """
    outcomes = scope.step_key(step)
    log = load_steps(scope, tx.get(scope.key, scope.steps_field))
    if (step in log.stored) != (tx.get(outcomes, WHOLE) is not None):
        raise Damaged(scope)
    if step in log.stored:
        return log.stored, []
    if contains(log.deleted, step):
        newest = log.stored[-1] if log.stored else log.deleted[-1][1]
        raise InvalidRequest(
            f"step {step} is too old: run {scope.run[:100]!r} is at step {newest}, and the last "
            f"{keep_steps} steps are stored"
        )
    surplus = max(len(log.stored) - keep_steps, 0)
    old, stored = log.stored[:surplus], [*log.stored[surplus:], step]
    for each in old:
        log.deleted = including(log.deleted, each)
    log.stored = stored
    tx.put(scope.key, scope.steps_field, msgspec.json.encode(log))
    tx.put(outcomes, WHOLE, b"1")
    return stored, old
