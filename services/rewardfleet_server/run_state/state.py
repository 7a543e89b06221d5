"""The state of training runs: one small state per feature, changed once per (step, uid)."""

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from prometheus_client import Counter
from pydantic import BaseModel, FiniteFloat, TypeAdapter

from rewardfleet.wire.errors import Unavailable
from rewardfleet_server.observe.telemetry import REQUEST

from . import attempts
from .groups import drop_steps
from .store import Call, Damaged, Entry, Scope, Store, Transaction, Work
from .values import CLOCK, RUNS, STORE, WHOLE, applied, digest, dump, enter_step, load, same

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds after which a run that no call has changed is deleted.
_MAX_AGE_SECONDS = 30 * 86_400.0
#: Number of the last steps whose outcomes are stored by default.
KEEP_STEPS = 1000
#: Seconds after which it is stored again that a run is changed, and after which old runs are
#: deleted.
_INTERVAL_SECONDS = 3600.0
_EARLIER = (
    "run state is damaged, or that of an earlier version of rewardfleet: finish its runs with that "
    "version, or give another store; to start every run from scratch, delete all of it"
)
_SECONDS = TypeAdapter(FiniteFloat)
_CLOCK = TypeAdapter(tuple[FiniteFloat, FiniteFloat])


class RunState:
    """A small state per scope, and the outcomes of its transitions; groups are stored on it.

    Its reads are never cached. For errors of every method see `Store.transact`.

    Runs that no call has changed for 30 days are deleted with all their scopes and groups.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.id: str | None = None  #: of the store, the same in all processes that share it
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
        """Return the state of a scope, or None; see `change`."""
        entry = scope.key, scope.name
        text = await self.change(scope, [entry], lambda tx: tx.get(*entry), call)
        return None if text is None else load(scope, text, scope.shape.state)

    async def apply_once(
        self,
        scope: Scope,
        step: int,
        uid: str,
        transition: Callable[..., tuple[Any, T]],
        *,
        content: Any = None,
        items: Mapping[str, Any] | None = None,
        attempt: str | None = None,
        keep_steps: int = KEEP_STEPS,
    ) -> T:
        """Apply a transition once for (scope, step, uid); return its outcome.

        A repeated call returns the stored outcome. If the transition raises, nothing changes.

        Args:
            step: The step of the run, 0 to 2^53.
            uid: Names the transition within the step.
            transition: A pure function.
            items: What counts once each in the step, by name. `transition` gets the values of those
                that are new, and then the state.
            content: What the call has sent, as JSON; a repeated call has the same.
            attempt: The attempt of the run; see `attempts.enter_attempt`.
            keep_steps: When a step is new to the scope, the outcomes of this many others are kept,
                those that came last. Other steps are deleted, and refused from then on.

        Raises:
            Conflict: It was called with other content before, or the attempt has ended.
            InvalidRequest: The step is so old that its outcomes were deleted.
            ValueError: The new state or the outcome is not JSON, e.g. contains NaN.
        """
        key, field, shape = scope.step_key(step), f":{uid}", scope.shape.outcome
        sent = digest(content)

        def work(tx: Transaction) -> T:
            outcome: T
            if (known := tx.get(key, field)) is not None:
                outcome = load(scope, same(scope, known, sent, f"step {step}"), shape)
                return outcome
            is_new = tx.get(key, WHOLE) is None
            stored, old = enter_step(tx, scope, step, keep_steps)
            drop_steps(tx, scope, old)
            later = [each for each in stored if each > step] if max(stored) > step else []
            if is_new:
                attempts.note_before(tx, scope, step, later)
            change = transition
            if items is not None:
                change = partial(transition, attempts.count_items(tx, scope, step, uid, items))
            outcome = _apply(tx, scope, change)
            attempts.apply_to_later(tx, scope, later, change)
            tx.put(key, field, sent + dump(outcome, shape))
            return outcome

        fields = scope.name, scope.steps_field
        expected = [*((scope.key, each) for each in fields), (key, WHOLE), (key, field)]
        return await self.change(scope, expected, work, Call(attempt, step))

    async def update(
        self,
        scope: Scope,
        transition: Callable[[Any], tuple[Any, T]],
        *,
        attempt: str | None = None,
        restored_step: int | None = None,
    ) -> T:
        """Apply a transition of no step, e.g. restore a checkpoint; return its outcome.

        Repeating the call applies it again: after `Unavailable`, whose cause may be a lost
        response, only transitions that set the state may be repeated.

        Args:
            transition: A pure function. It runs in a thread.
            attempt: As for `apply_once`.
            restored_step: The step before which the state was what the transition sets. The
                outcomes of the scope are deleted in the same transaction: steps that were applied
                can be applied again. What the state was before earlier steps is not known.

        Raises:
            ValueError: The new state is not JSON, e.g. contains NaN.
        """

        def work(tx: Transaction) -> T:
            outcome = _apply(tx, scope, transition)
            if restored_step is not None:
                attempts.forget_steps(tx, scope, restored_step)
            return outcome

        call = Call(attempt, restored_step, sets=scope.name)
        return await self.change(scope, [(scope.key, scope.name)], work, call)

    async def delete(self, run: str) -> bool:
        """Delete all that is stored of a run; return whether anything was."""

        def work(tx: Transaction) -> bool:
            is_there = tx.get(RUNS, run) is not None
            attempts.delete_run(tx, run)
            return is_there

        with self.failures.count_exceptions(Unavailable):
            return await self._store.transact(Scope(run, RUNS), [(RUNS, run)], work)

    async def change(
        self, scope: Scope, expected: Sequence[Entry], work: Work[T], call: Call | None = None
    ) -> T:
        """Run a transaction on behalf of a run; see `Store.transact`.

        If it writes, note that the run is changed now; at times, delete what is too old.

        Raises:
            Conflict: The attempt of the call has ended; see `attempts.enter_attempt`.
        """

        def noting(tx: Transaction) -> tuple[T, int | None]:
            discarded = None if call is None else attempts.enter_attempt(tx, scope, call)
            result = work(tx)
            if tx.has_writes:
                _note(tx, scope, call)
            return result, discarded

        expected = [*expected, (scope.key, WHOLE), (RUNS, scope.run), (CLOCK, WHOLE)]
        with self.failures.count_exceptions(Unavailable):
            if self.id is None:
                await self.identify()
            result, discarded = await self._store.transact(scope, expected, noting)
        if discarded is not None:
            log.warning("run %r began again: steps from %d on were discarded", scope.run, discarded)
            if request := REQUEST.get(None):
                request.discarded_from = discarded
        if (now := time.monotonic()) >= self._prune_at:
            self._prune_at = now + _INTERVAL_SECONDS
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

    async def _prune(self) -> None:
        """Delete runs that are too old."""

        def prune(tx: Transaction, run: str) -> None:
            scope = Scope(run, RUNS)
            changed_at = tx.get(RUNS, run)
            oldest = _seconds(tx, scope) - _MAX_AGE_SECONDS
            if changed_at is not None and load(scope, changed_at, _SECONDS) < oldest:
                attempts.delete_run(tx, run)

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


def _note(tx: Transaction, scope: Scope, call: Call | None) -> None:
    """Store that a run is changed now, to the hour, and its first attempt."""
    known, changed_at = tx.get(scope.key, WHOLE), tx.get(RUNS, scope.run)
    if (known is None) != (changed_at is None):
        raise Damaged(scope)  # e.g. because the server evicted a part of the run
    if known is None:
        begun = None if call is None or call.step is None else digest(call.attempt or "")
        tx.put(scope.key, WHOLE, begun or attempts.NO_ATTEMPT)
    now = _seconds(tx, scope)
    if changed_at is None or load(scope, changed_at, _SECONDS) <= now - _INTERVAL_SECONDS:
        tx.put(RUNS, scope.run, dump(now))


def _seconds(tx: Transaction, scope: Scope) -> float:
    """Return the seconds by which runs age, which all processes with a store count together.

    From one look at the store's clock to the next, they grow by a tenth of the maximum age at most:
    a clock that jumps makes no run old.
    """
    text = tx.get(CLOCK, WHOLE)
    seconds, seen = (0.0, tx.now) if text is None else load(scope, text, _CLOCK)
    seconds += tx.seconds_since(seen, _MAX_AGE_SECONDS / 10)
    if text is None or not 0 <= tx.now - seen <= _INTERVAL_SECONDS / 10:
        tx.put(CLOCK, WHOLE, dump((seconds, tx.now), _CLOCK))
    return float(seconds)


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


def _apply(tx: Transaction, scope: Scope, transition: Callable[[Any], tuple[Any, T]]) -> T:
    """Write the next state; return the outcome."""
    state, outcome = applied(scope, tx.get(scope.key, scope.name), transition)
    tx.put(scope.key, scope.name, state)
    return outcome
