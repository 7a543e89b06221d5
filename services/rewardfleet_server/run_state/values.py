"""Keys of run state, and its values as JSON.

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
"""

import hashlib
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from pydantic import TypeAdapter

from rewardfleet.wire.errors import Conflict

from .store import Damaged, Scope

# The last two have another number with each format.
RUNS, CLOCK, STORE = "runs", "clock 2", "store 2"
_DIGEST_BYTES = 8
#: The field that says that a key was written, or has what belongs to the key as a whole.
WHOLE = ""


#: Maps the state of a scope (None at first) to its next state and the outcome, which is returned to
#: the caller. It is called again if another process changed the state in the meantime: it must have
#: no side effects.
Transition = Callable[[Any], tuple[Any, Any]]


class Call(NamedTuple):
    """The call of a trainer that a transaction serves."""

    attempt: str | None = None
    step: int | None = None  #: None if it belongs to none
    #: The feature whose state it sets, which needs no earlier state.
    sets: str | None = None


def run_key(run: str) -> str:
    """Return the key of a run."""
    return msgspec.json.encode([run]).decode()


def step_key(scope: Scope, step: int) -> str:
    """Return the key of the outcomes of a step."""
    return msgspec.json.encode([scope.run, scope.name, step]).decode()


def steps_field(name: str) -> str:
    """Return the field of a run with the steps of a feature."""
    return f"{name} steps"


def dump(value: Any, adapter: TypeAdapter[Any] | None = None) -> bytes:
    """Return a value as JSON. Models with an adapter ensure that their numbers are finite.

    Raises:
        ValueError: It contains NaN or an infinity.
    """
    if adapter is not None:
        return adapter.dump_json(value)
    return json.dumps(value, allow_nan=False).encode()


def digest(content: Any) -> bytes:
    """Return the digest of what a call has sent, which begins what is stored of it."""
    return (
        hashlib.blake2b(msgspec.json.encode(content), digest_size=_DIGEST_BYTES)
        .hexdigest()
        .encode()
    )


def split(scope: Scope, stored: bytes) -> tuple[bytes, bytes]:
    """Return the digest with which begins what is stored of a call, and the rest.

    Raises:
        Unavailable: There is no digest.
    """
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
        Unavailable: There is no digest.
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


def load(scope: Scope, text: bytes, adapter: TypeAdapter[Any] | None = None) -> Any:
    """Return a stored value.

    Raises:
        Unavailable: It is not JSON, or has another shape.
    """
    try:
        if adapter is None:
            return msgspec.json.decode(text)
        if b"NaN" in text or b"Infinity" in text:  # which an adapter may take for numbers
            msgspec.json.decode(text)
        return adapter.validate_json(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Damaged(scope) from error


def applied(scope: Scope, text: bytes | None, transition: Transition) -> tuple[bytes, Any]:
    """Apply a transition to a stored state; return the next one, and the outcome."""
    shape = scope.shape.state
    state, outcome = transition(None if text is None else load(scope, text, shape))
    return dump(state, shape), outcome
