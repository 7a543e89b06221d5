"""Keys of run state, and its values as JSON.

| key | fields |
|---|---|
| `runs` | per run, when it was changed last, by `RunClock` |
| `clock` | `""`: the record of `RunClock` |
| `store` | `""`: the id of the store |
| `[run]` | `""`: its attempts; per feature its state, and as `NAME steps` its `StepLog` |
| `[run, feature, step]` | `""`: the state before it; per `:uid` an outcome, or a group's `:name` |
| `[run, "groups", step, name]` | `""`: the group; per `:uid` a member or its result |

An empty field says that the key was written. If it is missing where it is expected, e.g. because
the server evicted a key, the state is damaged. Members, results and outcomes begin with the digest
of what was sent. Steps also have, per `=uid`, the items that were counted with an outcome.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

import msgspec
from pydantic import FiniteFloat, TypeAdapter

from rewardfleet.wire.errors import Conflict

from .store import Damaged, Scope

RUNS, CLOCK, STORE = "runs", "clock", "store"
_DIGEST_BYTES = 8
#: The field that says that a key was written, or has what belongs to the key as a whole.
WHOLE = ""


class Shape(NamedTuple):
    """What a feature stores, and how transitions get and return it. Anything else is damaged."""

    #: The state of its scopes; None for any JSON.
    state: TypeAdapter[Any] | None
    #: The outcomes of its transitions; None for any JSON.
    outcome: TypeAdapter[Any] | None
    #: Fields of the state that no step changes, and that stay when its steps are discarded.
    kept: tuple[str, ...] = ()


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


#: The shapes of features, by `Scope.name`. Other features may store any JSON.
Shapes = Mapping[str, Shape]
NO_SHAPES: Shapes = {}


def shape_of(shapes: Shapes, scope: Scope) -> Shape:
    """Return the shape of a scope."""
    return shapes.get(scope.name, Shape(None, None))


#: Times of `RunClock`.
SECONDS = TypeAdapter(FiniteFloat)


def run_key(run: str) -> str:
    """Return the key of a run."""
    return msgspec.json.encode([run]).decode()


def step_key(scope: Scope, step: int) -> str:
    """Return the key of the outcomes of a step."""
    return msgspec.json.encode([*scope, step]).decode()


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


def unstamped(stored: bytes) -> bytes:
    """Return what is stored of a call, without its digest."""
    return stored[2 * _DIGEST_BYTES :]


def digest_of(stored: bytes) -> bytes:
    """Return the digest with which begins what is stored of a call."""
    return stored[: 2 * _DIGEST_BYTES]


def same(scope: Scope, stored: bytes, sent: bytes, what: str) -> bytes:
    """Return what is stored of a call, without its digest.

    Args:
        sent: The digest of what is sent now.
        what: Names the call.

    Raises:
        Conflict: Another content was sent the first time.
        Unavailable: There is no digest.
    """
    known = digest_of(stored)
    if len(known) < len(sent) or not known.isalnum():
        raise Damaged(scope)
    if known != sent:
        raise other_content(what)
    return unstamped(stored)


def other_content(what: str) -> Conflict:
    """Return the error for a call that differs from the one that it repeats."""
    return Conflict(
        f"{what}: other content than the first time; a repeated call sends the same, and a "
        "trainer that restarts and samples again sends a new `attempt`"
    )


def load(scope: Scope, text: str | bytes, adapter: TypeAdapter[Any] | None = None) -> Any:
    """Return a stored value.

    Raises:
        Unavailable: It is not JSON, or has another shape.
    """
    try:
        if adapter is None:
            return json.loads(text, parse_constant=_refuse_constant)
        encoded = text.encode() if isinstance(text, str) else text
        if b"NaN" in encoded or b"Infinity" in encoded:
            json.loads(text, parse_constant=_refuse_constant)
        return adapter.validate_json(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise Damaged(scope) from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)
