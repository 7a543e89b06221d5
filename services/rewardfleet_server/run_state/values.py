"""Keys of run state, and its values as JSON.

| key | fields |
|---|---|
| `runs` | per run, when it was changed last, by `RunClock` |
| `clock` | `""`: the record of `RunClock` |
| `[run]` | `""`; per feature its state, and as `NAME steps` its `StepLog` |
| `[run, feature, step]` | `""`; per `:uid` an outcome, or per `:name` of a group |
| `[run, "groups", step, name]` | `""`: the group; per `:uid` a member or its result |

An empty field says that the key was written. If it is missing where it is expected, e.g. because
the server evicted a key, the state is damaged.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

import msgspec
from pydantic import FiniteFloat, TypeAdapter

from .store import Damaged, Scope

RUNS, CLOCK = "runs", "clock"
#: The field that says that a key was written, or has what belongs to the key as a whole.
WHOLE = ""


class Shape(NamedTuple):
    """What a feature stores, and how transitions get and return it. Anything else is damaged."""

    #: The state of its scopes; None for any JSON.
    state: TypeAdapter[Any] | None
    #: The outcomes of its transitions; None for any JSON.
    outcome: TypeAdapter[Any] | None


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
