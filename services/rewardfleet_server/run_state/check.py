"""Whether a run-state file has what transactions write, and nothing is missing."""

import json
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter

from .attempts import ITEMS
from .clock import RECORD
from .groups import GROUP, GROUPS, OPEN
from .steps import load_steps
from .store import Damaged, Scope
from .values import (
    CLOCK,
    RUNS,
    SECONDS,
    STORE,
    WHOLE,
    Shapes,
    load,
    shape_of,
    steps_field,
    unstamped,
)

#: A part of the state of a scope, and whether it is there or another part needs it.
_Part = tuple[Scope, object, bool]


def check_rows(rows: Iterable[tuple[str, str, bytes]], shapes: Shapes) -> None:
    """Check rows of key, field and value, sorted.

    The shapes of members of groups are checked when they are used.

    Raises:
        Unavailable: Something is damaged.
    """
    parts: set[_Part] = set()
    for key, group in groupby(rows, itemgetter(0)):
        fields = {field: value for _, field, value in group}
        try:
            parts.update(_parts(key, fields, shapes))
        except (ValueError, TypeError, KeyError) as error:
            raise Damaged(Scope(key, "unknown")) from error
    for scope, part, is_there in parts:
        if (scope, part, not is_there) not in parts:
            raise Damaged(scope)


def _parts(key: str, fields: dict[str, bytes], shapes: Shapes) -> Iterator[_Part]:
    """Check the fields of a key; return the parts that they are, and those that they need."""
    clock = Scope("", CLOCK)
    if key == RUNS:
        yield clock, CLOCK, False
        for run, seconds in fields.items():
            load(Scope(run, RUNS), seconds, SECONDS)
            yield Scope(run, RUNS), RUNS, True
        return
    whole = fields.pop(WHOLE)
    if key == STORE:
        load(Scope("", STORE), whole)
        return
    if key == CLOCK:
        load(clock, whole, RECORD)
        yield from ((clock, CLOCK, is_there) for is_there in (True, False))
        return
    run, *place = json.loads(key)
    if not place:
        yield from _parts_of_run(run, fields, shapes)
        return
    name, step, *group = place
    scope = Scope(run, name)
    load(scope, whole, GROUP if group else None)
    yield scope, (step, *group), True
    for field, value in fields.items():
        if name == GROUPS and not group:
            yield scope, (step, field[1:]), False
        else:
            is_item = field.startswith("=")
            shape = None if group else ITEMS if is_item else shape_of(shapes, scope).outcome
            load(scope, value if is_item else unstamped(value), shape)


def _parts_of_run(run: str, fields: dict[str, bytes], shapes: Shapes) -> Iterator[_Part]:
    yield Scope(run, RUNS), RUNS, False
    for field, value in fields.items():
        scope = Scope(run, field.removesuffix(steps_field("")))
        if field != scope.name:
            yield from ((scope, (step,), False) for step in load_steps(scope, value).stored)
        else:
            load(scope, value, OPEN if field == GROUPS else shape_of(shapes, scope).state)
