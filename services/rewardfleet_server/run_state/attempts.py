"""Attempts of a run: a trainer that starts again at a step discards what came after it.

The state of a feature before each of its stored steps is stored with the step. It has no effect of
this step and later ones, in whatever order they arrive.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from pydantic import TypeAdapter

from rewardfleet.wire.errors import Conflict, RewardFleetError

from .groups import GROUPS, drop_steps
from .store import Call, Scope, Transaction
from .values import RUNS, WHOLE, StepLog, applied, digest, dump, load, load_steps, other_content

#: The values of items that count once, by name.
_ITEMS = TypeAdapter(dict[str, Any])

#: The number of attempts that are remembered.
_MAX_ATTEMPTS = 1000
#: In place of the attempts of a run that no step has.
NO_ATTEMPT = b"-"
#: In place of a state before a step that is not known.
_UNKNOWN = b"1"


def enter_attempt(tx: Transaction, scope: Scope, call: Call) -> int | None:
    """Make the attempt of a call that of its run; return the step from which that discards all.

    Returns:
        The step if the attempt is new, else None.

    Raises:
        Conflict: The attempt has ended, or the state before the step is not stored any more.
    """
    mine, text = digest(call.attempt or ""), tx.get(scope.key, WHOLE)
    if text is None or text.endswith(mine):
        return None
    known = text.split()
    if mine in known:
        given = "none" if call.attempt is None else repr(call.attempt[:60])
        raise Conflict(
            f"attempt: {given} of run {scope.run[:100]!r} has ended, as another one began; all "
            "processes of a trainer send the same, and one that starts again another "
            "(REWARDFLEET_ATTEMPT)"
        )
    if call.step is None:
        return None
    if text == NO_ATTEMPT:
        tx.put(scope.key, WHOLE, mine)
        return None
    _discard(tx, scope.run, call.step, call.sets)
    tx.put(scope.key, WHOLE, b" ".join([*known[1 - _MAX_ATTEMPTS :], mine]))
    return call.step


def count_items(
    tx: Transaction, scope: Scope, step: int, uid: str, items: Mapping[str, Any]
) -> Sequence[Any]:
    """Count items of a step once, with a uid; return the values of those that are new.

    Raises:
        Conflict: One was counted with another value.
    """
    key, counted = scope.step_key(step), {}
    for field, text in tx.fields(key).items():
        if field.startswith("="):
            counted.update(load(scope, text, _ITEMS))
    new = {name: value for name, value in items.items() if name not in counted}
    if any(counted.get(name, value) != value for name, value in items.items()):
        raise other_content(f"step {step}, one of {len(items)} items")
    tx.put(key, f"={uid}", msgspec.json.encode(new))
    return [*new.values()]


def note_before(tx: Transaction, scope: Scope, step: int, later: Sequence[int]) -> None:
    """Store the state before a step, which is new, given the stored steps above it."""
    if later:
        before = tx.get(scope.step_key(min(later)), WHOLE)
    else:
        before = _wrapped(scope, tx.get(scope.key, scope.name))
    tx.put(scope.step_key(step), WHOLE, before)


def apply_to_later(
    tx: Transaction, scope: Scope, later: Sequence[int], transition: Callable[[Any], Any]
) -> None:
    """Apply a transition of a step to the states before later ones, too."""
    keys = [scope.step_key(each) for each in later]
    tx.expect(*((key, WHOLE) for key in keys))
    for key in keys:
        before = tx.get(key, WHOLE)
        if before is None or before == _UNKNOWN:
            continue
        now = _restored(tx, scope, before)
        try:
            before = _wrapped(scope, applied(scope, now, transition)[0])
        except RewardFleetError:
            before = _UNKNOWN
        tx.put(key, WHOLE, before)


def _with_steps(run: str, fields: Iterable[str]) -> list[Scope]:
    """Return the scopes whose steps are among the fields of a run."""
    suffix = Scope(run, "").steps_field
    return [Scope(run, each.removesuffix(suffix)) for each in fields if each.endswith(suffix)]


def _discard(tx: Transaction, run: str, step: int, sets: str | None) -> None:
    """Return a run to what it was before a step."""
    fields = tx.fields(Scope(run, "").key)
    for scope in _with_steps(run, fields):
        log = load_steps(scope, fields[scope.steps_field])
        later = [each for each in log.stored if each >= step]
        has_state = scope.name in fields and scope.name not in {GROUPS, sets}
        if step < log.first or any(last >= step for _, last in log.deleted):
            if has_state:
                raise _too_old(run, step)
        elif later and has_state:
            before = tx.get(scope.step_key(min(later)), WHOLE)
            if before is None or before == _UNKNOWN:
                raise _too_old(run, step)
            tx.put(scope.key, scope.name, _restored(tx, scope, before))
        drop_steps(tx, scope, later)
        deleted = [(a, min(b, step - 1)) for a, b in log.deleted if a < step]
        kept = StepLog([each for each in log.stored if each < step], deleted, log.first)
        tx.put(scope.key, scope.steps_field, msgspec.json.encode(kept))


def forget_steps(tx: Transaction, scope: Scope, first: int = 0) -> None:
    """Delete the outcomes of a scope, and its steps; its state has those before the first one."""
    drop_steps(tx, scope, load_steps(scope, tx.get(scope.key, scope.steps_field)).stored)
    log = msgspec.json.encode(StepLog([], [], first)) if first else None
    tx.put(scope.key, scope.steps_field, log)


def delete_run(tx: Transaction, run: str) -> None:
    """Delete all that is stored of a run."""
    key = Scope(run, "").key
    for scope in _with_steps(run, tx.fields(key)):
        forget_steps(tx, scope)
    tx.drop(key)
    tx.put(RUNS, run, None)


def _too_old(run: str, step: int) -> Conflict:
    return Conflict(
        f"attempt: what run {run[:100]!r} was before step {step} is not stored any more; "
        f"DELETE /runs/{run[:100]} to begin it again, and resume a budget from its checkpoint"
    )


def _wrapped(scope: Scope, state: bytes | None) -> bytes:
    """Return a state with the names of what no step changes."""
    return b"[%b,%b]" % (msgspec.json.encode(scope.shape.kept), state or b"null")


def _restored(tx: Transaction, scope: Scope, before: bytes) -> bytes | None:
    """Return the state that `_wrapped` has wrapped, with what no step changes as it is now."""
    kept, state = load(scope, before)
    if kept and state is not None:
        now = load(scope, tx.get(scope.key, scope.name) or b"{}")
        state |= {name: now[name] for name in kept if name in now}
    return None if state is None else dump(state)
