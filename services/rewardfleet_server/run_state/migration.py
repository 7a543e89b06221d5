"""Conversion of a store of the version before, in the transaction that identifies the store."""

import json

from .groups import GROUPS, GroupKey
from .steps import load_steps
from .store import Scope, Transaction
from .values import CLOCK, RUNS, STORE, WHOLE, dump, load, run_key, step_key, steps_field

#: The keys that had other names.
EARLIER_STORE, _EARLIER_CLOCK = "store", "clock"


def migrated(tx: Transaction) -> bytes | None:
    """Convert a store of the version before; return its id, or None if it is no such store.

    Its times were pairs: the name of a clock, and the seconds that it showed.
    """
    known, clock = tx.get(EARLIER_STORE, WHOLE), tx.get(_EARLIER_CLOCK, WHOLE)
    if known is None:
        return None
    of_store, runs = Scope("", STORE), [Scope(run, GROUPS) for run in tx.fields(RUNS)]
    tx.expect(*((run_key(s.run), f) for s in runs for f in (GROUPS, steps_field(GROUPS))))
    logs = {s: load_steps(s, tx.get(run_key(s.run), steps_field(GROUPS))) for s in runs}
    steps = [(scope, step) for scope, log in logs.items() for step in log.stored]
    tx.expect(*((step_key(scope, step), None) for scope, step in steps))
    keys = [
        GroupKey(scope.run, step, field[1:]).members
        for scope, step in steps
        for field in tx.fields(step_key(scope, step)).keys() - {WHOLE}
    ]
    tx.expect(*((key, WHOLE) for key in keys))
    for key in keys:
        group = load(of_store, tx.get(key, WHOLE) or b"")
        tx.put(key, WHOLE, dump({**group, "seen": group["seen"][1]}))
    for scope in runs:
        if text := tx.get(run_key(scope.run), GROUPS):
            due = [(*json.loads(place), at) for place, (_, at) in load(scope, text).items()]
            tx.put(run_key(scope.run), GROUPS, dump(due))
    if clock is not None:
        record = load(of_store, clock)
        tx.put(CLOCK, WHOLE, dump((record["seconds"], record["seen"][1])))
    tx.drop(EARLIER_STORE)
    tx.drop(_EARLIER_CLOCK)
    return known
