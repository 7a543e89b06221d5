"""The state of training runs: one small state per feature, changed once per (step, uid)."""

import asyncio
import logging
import math
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import msgspec
from prometheus_client import Counter
from pydantic import BaseModel, FiniteFloat, TypeAdapter

from rewardfleet.wire.errors import Unavailable
from rewardfleet_server.observe.telemetry import REQUEST

from .attempts import apply_to_later, count_items, enter_attempt, first_attempt, note_before
from .groups import drop_steps
from .steps import StepLog, enter_step, load_steps
from .store import Damaged, Entry, Scope, Store, Transaction, Work, seconds_between
from .values import (
    CLOCK,
    RUNS,
    STORE,
    WHOLE,
    Call,
    Transition,
    applied,
    digest,
    dump,
    load,
    run_key,
    same,
    step_key,
    steps_field,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Days after which a run that no call has changed is deleted.
MAX_AGE_DAYS = 30.0
#: Number of the last steps whose outcomes are stored by default.
KEEP_STEPS = 1000
#: Seconds after which it is stored again that a run is changed, and after which old runs are
#: deleted; less if the maximum age is below ten hours.
_INTERVAL_SECONDS = 3600.0
_EARLIER = (
    "run state is damaged, or that of an earlier version of rewardfleet: finish its runs with that "
    "version, or give another store; to start every run from scratch, delete all of it"
)
_SECONDS = TypeAdapter(FiniteFloat)
_CLOCK = TypeAdapter(tuple[FiniteFloat, FiniteFloat])
#: Limit on the runs that this process remembers to have changed.
_MAX_TOUCHED = 10_000


class RunState:
    """A small state per scope, and the outcomes of its transitions; groups are stored on it.

    Its reads are never cached. For errors of every method see `Store.transact`.

    Runs that no call has changed for long are deleted with all their scopes and groups.

    Args:
        max_age_days: Days after which a run that no call has changed is deleted.
    """

    def __init__(self, store: Store, *, max_age_days: float = MAX_AGE_DAYS) -> None:
        self._store = store
        self._max_age_s = max_age_days * 86_400
        self._interval_s = min(_INTERVAL_SECONDS, self._max_age_s / 10)
        self.id: str | None = None  #: of the store, the same in all processes that share it
        self._touched: dict[str, float] = {}
        self._prune_at = 0.0
        self._pruning: asyncio.Task[None] | None = None
        # registry=None: each service has its own registry, not the global one.
        self.failures = Counter(
            "rewardfleet_run_state_failures",
            "Uses of run state that failed: the store refuses, does not answer, or is damaged.",
            registry=None,
        )

    @property
    def failure(self) -> str | None:
        """Why the store can never be used again, or None."""
        return self._store.failure

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Identify the store, and close it at the end. If it cannot be used now, calls fail."""
        try:
            await self.identify()
        except Unavailable as error:
            log.warning("calls that need run state fail for now: %s", error.detail)
        try:
            yield
        finally:
            await self.aclose()

    async def read(self, scope: Scope, call: Call | None = None) -> Any:
        """Return the state of a scope, or None.

        Raises:
            Conflict: The attempt of the call has ended.
        """
        entry = run_key(scope.run), scope.name
        text = await self.change(scope, [entry], lambda tx: tx.get(*entry), call)
        return None if text is None else load(scope, text, scope.shape.state)

    async def apply_once(
        self,
        scope: Scope,
        step: int,
        uid: str,
        transition: Callable[..., tuple[Any, Any]],
        *,
        content: Any = None,
        items: Mapping[str, Any] | None = None,
        attempt: str | None = None,
        keep_steps: int = KEEP_STEPS,
        is_slow: bool = True,
    ) -> Any:
        """Apply a transition once for (scope, step, uid); return its outcome.

        A repeated call returns the stored outcome. If the transition raises, nothing changes.

        Args:
            step: The step of the run, 0 to 2^53.
            uid: Names the transition within the step.
            transition: A pure function.
            items: What counts once each in the step, by name. `transition` gets the values of those
                that are new, and then the state.
            content: What the call has sent, as JSON; a repeated call has the same.
            attempt: The attempt of the run; see `enter_attempt`.
            keep_steps: When a step is new to the scope, the outcomes of this many others are kept,
                those that came last. Other steps are deleted, and refused from then on.
            is_slow: See `Store.transact`.

        Raises:
            Conflict: It was called with other content before, or the attempt has ended.
            InvalidRequest: The step is so old that its outcomes were deleted.
            ValueError: The new state or the outcome is not JSON, e.g. contains NaN.
        """
        key, field, shape = step_key(scope, step), f":{uid}", scope.shape.outcome
        run, sent = run_key(scope.run), digest(content)

        def work(tx: Transaction) -> Any:
            known = tx.get(key, field)
            if known is not None:
                return load(scope, same(scope, known, sent, f"step {step}"), shape)
            is_new = tx.get(key, WHOLE) is None
            stored, old = enter_step(tx, scope, step, keep_steps)
            drop_steps(tx, scope, old)
            later = [each for each in stored if each > step] if max(stored) > step else []
            if is_new:
                note_before(tx, scope, step, later)
            change = transition
            if items is not None:
                change = partial(transition, count_items(tx, scope, step, uid, items))
            outcome = _apply(tx, scope, change)
            apply_to_later(tx, scope, later, change)
            tx.put(key, field, sent + dump(outcome, shape))
            return outcome

        expected = [(run, scope.name), (run, steps_field(scope.name)), (key, WHOLE), (key, field)]
        call = Call(attempt, step)
        return await self.change(scope, expected, work, call, is_slow=is_slow)

    async def update(
        self,
        scope: Scope,
        transition: Transition,
        *,
        call: Call = Call(),  # noqa: B008 - immutable
        forget_outcomes: bool = False,
    ) -> Any:
        """Apply a transition that belongs to no step, e.g. restore a checkpoint.

        Repeating the call applies it again: after `Unavailable`, whose cause may be a lost
        response, only transitions that set the state may be repeated.

        Args:
            transition: A pure function. It runs in a thread.
            call: The call that it serves.
            forget_outcomes: Also delete the outcomes of the scope, in the same transaction. Steps
                that were applied can then be applied again. What the state was before steps
                earlier than the call's is not known.

        Returns:
            The outcome, which is not stored.

        Raises:
            ValueError: The new state is not JSON, e.g. contains NaN.
        """

        def work(tx: Transaction) -> Any:
            outcome = _apply(tx, scope, transition)
            if forget_outcomes:
                _forget(tx, scope, call.step or 0)
            return outcome

        expected = [(run_key(scope.run), scope.name)]
        return await self.change(scope, expected, work, call, is_slow=True)

    async def delete(self, run: str) -> bool:
        """Delete all that is stored of a run; return whether anything was."""

        def work(tx: Transaction) -> bool:
            is_there = tx.get(RUNS, run) is not None
            _delete(tx, run)
            return is_there

        with self.failures.count_exceptions(Unavailable):
            return await self._store.transact(Scope(run, RUNS), [(RUNS, run)], work)

    async def change(
        self,
        scope: Scope,
        expected: Sequence[Entry],
        work: Work[T],
        call: Call | None = None,
        *,
        is_slow: bool = False,
    ) -> T:
        """Run a transaction on behalf of a run; see `Store.transact`.

        At times, note that the run is changed now, and delete what is too old.

        Raises:
            Conflict: The attempt of the call has ended; see `enter_attempt`.
        """
        now, run, whole = time.monotonic(), scope.run, (run_key(scope.run), WHOLE)
        is_due = self._touched.get(run, -math.inf) <= now - self._interval_s

        def noting(tx: Transaction) -> tuple[T, bool, int | None]:
            discarded = None if call is None else enter_attempt(tx, run, call)
            result = work(tx)
            is_noted = tx.has_writes and (is_due or tx.get(*whole) is None)
            if is_noted:
                self._note(tx, scope, first_attempt(call))
            return result, is_noted, discarded

        expected = [*expected, whole, *(((CLOCK, WHOLE), (RUNS, run)) if is_due else ())]
        with self.failures.count_exceptions(Unavailable):
            if self.id is None:
                await self.identify()
            result, is_noted, discarded = await self._store.transact(
                scope, expected, noting, is_slow=is_slow
            )
        if discarded is not None:
            log.warning("run %r began again: steps from %d on were discarded", run, discarded)
            if request := REQUEST.get(None):
                request.discarded_from = discarded
        if is_noted:
            if len(self._touched) >= _MAX_TOUCHED:
                self._touched.clear()
            self._touched[run] = now
        if now >= self._prune_at:
            self._prune_at = now + self._interval_s
            self._pruning = asyncio.create_task(self._prune())
        return result

    async def identify(self) -> None:
        """Read the id of the store and write it again, which shows that the store can be used."""
        scope = Scope("", STORE)

        def work(tx: Transaction) -> str:
            known = tx.get(STORE, WHOLE) or _renamed(tx)
            if known is None and tx.fields(RUNS):
                raise Unavailable(_EARLIER)
            text = known or dump(uuid.uuid4().hex)
            tx.put(STORE, WHOLE, text)
            return str(load(scope, text))

        known = await self._store.transact(scope, [(STORE, WHOLE)], work)
        self.id = self.id or known

    async def aclose(self) -> None:
        """Release files, connections and threads."""
        if self._pruning is not None:
            self._pruning.cancel()
            await asyncio.wait([self._pruning])
        await self._store.aclose()

    def _note(self, tx: Transaction, scope: Scope, attempt: bytes) -> None:
        """Store that a run is changed now.

        Args:
            attempt: Its first attempt, as it is stored.

        Raises:
            Unavailable: A part of the run is missing, e.g. because the server evicted it.
        """
        key, run = run_key(scope.run), scope.run
        if (tx.get(key, WHOLE) is None) != (tx.get(RUNS, run) is None):
            raise Damaged(scope)
        tx.put(key, WHOLE, tx.get(key, WHOLE) or attempt)
        tx.put(RUNS, run, dump(self._seconds(tx, scope)))

    def _seconds(self, tx: Transaction, scope: Scope) -> float:
        """Return the seconds by which runs age, which all processes with a store count together.

        From one look at the store's clock to the next, they grow by a tenth of the maximum age at
        most: a clock that jumps makes no run old.
        """
        text = tx.get(CLOCK, WHOLE)
        seconds, seen = (0.0, tx.now) if text is None else load(scope, text, _CLOCK)
        seconds += seconds_between(seen, tx.now, self._max_age_s / 10)
        if text is None or not 0 <= tx.now - seen <= self._interval_s / 10:
            tx.put(CLOCK, WHOLE, dump((seconds, tx.now), _CLOCK))
        return float(seconds)

    async def _prune(self) -> None:
        """Delete runs that are too old."""

        def prune(tx: Transaction, run: str) -> None:
            scope = Scope(run, RUNS)
            changed_at = tx.get(RUNS, run)
            oldest = self._seconds(tx, scope) - self._max_age_s
            if changed_at is not None and load(scope, changed_at, _SECONDS) < oldest:
                _delete(tx, run)

        try:
            with self.failures.count_exceptions(Unavailable):
                everything: Entry = RUNS, None
                runs = await self._store.transact(
                    Scope("", RUNS), [everything], lambda tx: list(tx.fields(RUNS))
                )
                for run in runs:
                    expected = [(RUNS, run), (CLOCK, WHOLE)]
                    await self._store.transact(Scope(run, RUNS), expected, partial(prune, run=run))
        except Unavailable as error:  # the next call that is due tries again
            log.warning("old run state could not be deleted: %s", error.detail)


class _EarlierClock(BaseModel):
    seconds: FiniteFloat
    seen: tuple[str, FiniteFloat]


def _renamed(tx: Transaction) -> bytes | None:
    """Rename what the version before has stored besides runs; return the id of its store, if any.

    Times had the name of the clock; `groups.py` reads those of groups.
    """
    known, clock = tx.get("store", WHOLE), tx.get("clock", WHOLE)
    if known is None:
        return None
    tx.drop("store")
    tx.drop("clock")
    if clock is not None:
        record = load(Scope("", CLOCK), clock, TypeAdapter(_EarlierClock))
        tx.put(CLOCK, WHOLE, dump((record.seconds, record.seen[1])))
    return known


def _apply(tx: Transaction, scope: Scope, transition: Transition) -> Any:
    """Write the next state; return the outcome."""
    key = run_key(scope.run)
    state, outcome = applied(scope, tx.get(key, scope.name), transition)
    tx.put(key, scope.name, state)
    return outcome


def _delete(tx: Transaction, run: str) -> None:
    """Delete all that is stored of a run."""
    for field in tx.fields(run_key(run)):
        if field.endswith(steps_field("")):
            _forget(tx, Scope(run, field.removesuffix(steps_field(""))))
    tx.drop(run_key(run))
    tx.put(RUNS, run, None)


def _forget(tx: Transaction, scope: Scope, first: int = 0) -> None:
    """Delete the outcomes of a scope, and its steps; its state has those before the first one."""
    key, field = run_key(scope.run), steps_field(scope.name)
    drop_steps(tx, scope, load_steps(scope, tx.get(key, field)).stored)
    log = StepLog(stored=[], deleted=[], first=first)
    tx.put(key, field, msgspec.json.encode(log) if first else None)
