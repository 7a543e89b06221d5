"""Scoring, without HTTP.

Whichever route or transport an item came by, it gets its score in `Engine.score_item` or, with
others, in `Engine.score_batch`. An engine can be driven from a test or a notebook as well:

```python
engine = Engine(scorer, VideoScore, cache=MemoryCache(0), admission=admission, telemetry=telemetry)
score = await engine.score_item(request)
```
"""

import asyncio
import errno
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Generic, TypeVar

import msgspec
import numpy as np
from pydantic import BaseModel

from rewardfleet.wire.errors import (
    DeadlineExceeded,
    InternalError,
    Overloaded,
    RewardFleetError,
    Unavailable,
)
from rewardfleet.wire.score import Score, Status, Timing, abstained

from .admission import Admission
from .cache import Cache
from .cache.scores import Audits, CachedScores
from .cache.single_flight import SingleFlight
from .observe.score_log import BatchHeader, ServiceLog
from .observe.telemetry import RequestContext, Telemetry
from .observe.tracing import stage
from .scorer import BulkScorer, CachePolicy, ScoredBatch, ScoreFields, Scorer, ScoringPlan
from .system.anonymous_file import AnonymousFile
from .system.started import DeadlinePassed, finish_by

log = logging.getLogger(__name__)

#: Items of a batch that are planned at the same time, so that those of other requests, which use
#: the same threads and the same event loop, do not wait for all of them.
_PLANNED_AT_ONCE = 8
#: A larger batch is scored in a thread, in bytes of its body.
_SMALL_BATCH = 64 * 1024

#: A score as JSON, and what metrics take from it: the status, the score and the cause.
_Encoded = tuple[bytes, Status, float | None, str | None]

RequestT = TypeVar("RequestT", bound=BaseModel)
ScoreT = TypeVar("ScoreT", bound=Score)


class Engine(Generic[RequestT, ScoreT]):
    """Scores the items of one service.

    Args:
        audit_rate: Share of the cache hits that are computed again and compared, in [0, 1], unless
            that takes too much time.
        abstention_fails: Whether an abstention, counted as one, is the failure `Abstained`.
    """

    def __init__(
        self,
        scorer: Scorer[RequestT, ScoreT],
        score_type: type[ScoreT],
        *,
        cache: Cache,
        admission: Admission,
        telemetry: Telemetry,
        audit_rate: float = 0.0,
        abstention_fails: bool = False,
        score_log: ServiceLog | None = None,
    ) -> None:
        self.service, self.scorer, self._score_type = telemetry.service, scorer, score_type
        self._cached: CachedScores[ScoreT] = CachedScores(cache, score_type, telemetry)
        self._audits = Audits(audit_rate, self._cached, telemetry)
        self._admission, self._telemetry, self._score_log = admission, telemetry, score_log
        self._abstention_fails = abstention_fails
        self._single_flight: SingleFlight[ScoreT] = SingleFlight()
        #: Items that its backend has scored; items and calls that failed for the service's sake.
        self.computed = self.failed = 0

    async def score_item(
        self,
        item: RequestT | RewardFleetError,
        context: RequestContext | None = None,
        upload: AnonymousFile | None = None,
    ) -> ScoreT:
        """Score one item before the context's deadline, and count its result once.

        Args:
            item: The item; or why it is not one, which is counted as its failure and raised.

        Raises:
            RewardFleetError: There is no score. An exception of any other type becomes an
                `InternalError`, and a passed deadline what `ScoringPlan.overdue` returns.
        """
        score, failure = await self._result(item, context or RequestContext(), upload)
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # its traceback holds this frame: a cycle would keep an upload's file open
        score.provenance = {**self.scorer.provenance(score.backend), **score.provenance}
        return score

    async def score_batch(
        self, items: Sequence[RequestT | RewardFleetError], context: RequestContext
    ) -> list[ScoreT]:
        """Score independent items concurrently; the error of an item is part of its own score.

        The provenance that all scores of a backend share is left out; see `Scorer.provenance`.
        """
        begun = asyncio.Semaphore(_PLANNED_AT_ONCE)
        results = []
        async with asyncio.TaskGroup() as group:
            for item in items:
                await begun.acquire()
                result = self._result(item, context, on_planned=begun.release, share=1 / len(items))
                results.append(group.create_task(result))
        return [each.result()[0] for each in results]

    async def score_in_bulk(
        self,
        scorer: BulkScorer[RequestT],
        items: Sequence[RequestT | RewardFleetError],
        context: RequestContext,
    ) -> ScoredBatch:
        """Score independent items in one computation, which holds one permit.

        As in `score_batch`, the error of an item is part of its own score, also the deadline that
        leaves no time for it. The content of the result is the list of scores.
        """
        timing = Timing()
        requests = [item for item in items if not isinstance(item, RewardFleetError)]
        scored: list[_Encoded] = []
        failure: RewardFleetError = _overdue(context)  # of the items that are not scored
        try:
            async with self.permit(context, timing, items=len(items), backend=scorer.backend):
                with stage(timing, "backend"):
                    score = await scorer.prepare(requests)
                    work = partial(_score_in_turn, items, score, context, scored)
                    if context.body_bytes <= _SMALL_BATCH:
                        work()
                    else:
                        await asyncio.to_thread(work)
        except RewardFleetError as error:
            failure = error
        results = scored[:]  # the thread may go on with the item that it has begun
        results += [_encoded(_failed(failure, context))] * (len(items) - len(results))
        contents, statuses, scores, causes = zip(*results, strict=True)
        shares = {"queue": timing.queue, "backend": timing.backend / max(len(items), 1)}
        of_each = {"timing_ms": {**shares, "total": round(context.elapsed_ms, 3)}}
        batch = ScoredBatch(
            b"[%b]" % b",".join(contents),
            Counter(statuses),
            np.array([each for each in scores if each is not None], float),
            Counter(filter(None, causes)),
            lambda: (
                (item, {**of_each, **msgspec.json.decode(content)})
                for item, content in zip(items, contents, strict=True)
                if not isinstance(item, RewardFleetError)
            ),
            len(items),
        )
        self._record_batch(batch, scorer.backend, context, timing)
        return batch

    async def score_together(
        self,
        backend: str,
        context: RequestContext,
        compute: Callable[[Timing], Awaitable[ScoredBatch]],
        *,
        items: int = 1,
        header: BatchHeader | None = None,
    ) -> ScoredBatch:
        """Score a batch whose items depend on each other: one permit, one computation, no cache.

        See `score_item` for errors, each of which is counted once for the batch. `compute` fills in
        the stages of a `Timing` except `queue` and `total`.
        """
        timing = Timing()
        try:
            async with self.permit(context, timing, items=items, backend=backend):
                batch = await compute(timing)
        except RewardFleetError as error:
            self._telemetry.record_failure(context, error.kind, backend)
            raise
        self._record_batch(batch, backend, context, timing, header)
        return batch

    def _record_batch(
        self,
        batch: ScoredBatch,
        backend: str,
        context: RequestContext,
        timing: Timing,
        header: BatchHeader | None = None,
    ) -> None:
        timing.total = round(context.elapsed_ms, 3)
        self._telemetry.record_batch(
            context, backend, batch.statuses, batch.rewards, causes=batch.causes, timing=timing
        )
        if self._score_log is not None and batch.logged is not None:
            self._score_log.add_batch(
                batch.logged,
                context,
                count=batch.logged_count or sum(batch.statuses.values()),
                provenance=self.scorer.provenance(backend),
                header=header,
            )

    @asynccontextmanager
    async def permit(
        self,
        context: RequestContext,
        timing: Timing | None = None,
        *,
        items: int = 1,
        backend: str = "",
    ) -> AsyncIterator[None]:
        """Hold a permit, before the context's deadline, for work that is not the score of an item.

        See `score_item` for errors. The wait is added to the `queue` of `timing`.
        """
        sample = context.begin(items)
        sample.backend = backend
        if (span := sample.root) is not None:
            span.otel.set_attribute("rewardfleet.backend", backend)
            span.otel.set_attribute("rewardfleet.items", items)
        limit, waited = asyncio.timeout_at(context.deadline), timing or Timing()
        try:
            permit = self._admission.permit(waited, context, is_patient=context.is_patient)
            async with limit, permit:
                yield
            if span is not None:
                span.end()
        except Exception as error:
            failure = as_failure(error, context, overdue=limit.expired())
            self.failed += failure.status >= 500
            if span is not None:
                span.end(failure.kind)
            raise failure from error
        finally:
            context.end(sample)

    async def _result(
        self,
        item: RequestT | RewardFleetError,
        context: RequestContext,
        upload: AnonymousFile | None = None,
        on_planned: Callable[[], object] = lambda: None,
        share: float = 1.0,
    ) -> tuple[ScoreT, RewardFleetError | None]:
        """Score one item and count its result; return the score, and the failure if it failed.

        `on_planned` is called when it is known how the item will be scored, or that it cannot be.
        """
        failure = plan = None
        sample = context.begin()

        async def scored() -> ScoreT:
            nonlocal plan
            try:
                if isinstance(item, RewardFleetError):
                    raise item
                plan = await self.scorer.plan(item, upload)
            finally:
                on_planned()
            sample.backend = plan.backend
            return await self._score(plan, context)

        try:
            try:
                score = await finish_by(context.deadline, scored())
            except Exception as error:  # noqa: BLE001 - every failure gets a type
                failure = as_failure(error, context, overdue=isinstance(error, DeadlinePassed))
                is_overdue = isinstance(failure, DeadlineExceeded) and failure is not error
                if plan and plan.overdue and is_overdue:
                    failure = plan.overdue()
                self.failed += failure.status >= 500
                failure = failure.with_traceback(None)  # see `score_item`
                problem = failure.problem(context.request_id)
                score = self._score_type(
                    score=None, status=Status.ERROR, backend=sample.backend, error=problem
                )
            score.timing_ms.total = round(context.elapsed_ms, 3)
            self._telemetry.record_score(context, score, sample.root)
            if self._score_log is not None and not isinstance(item, RewardFleetError):
                backend, seen = (plan.backend, plan.seen) if plan else ("", None)
                provenance = partial(self.scorer.provenance, backend) if plan else dict
                self._score_log.add(
                    item, score, context, seen=seen, provenance=provenance, share=share
                )
            if self._abstention_fails and score.status is Status.ABSTAINED:
                failure = abstained(score)
                problem = failure.problem(context.request_id)
                score = score.model_copy(update={"status": Status.ERROR, "error": problem})
        finally:
            context.end(sample)
        return score, failure

    async def _score(self, plan: ScoringPlan[ScoreT], context: RequestContext) -> ScoreT:
        """Cache lookup → single flight → permit → compute → store; and audit of a cached score."""
        policy = plan.cache
        if policy is None:
            return await self._compute(plan, context)
        cached = await self._cached.get(plan.backend, policy)
        if cached is None:
            return await self._share(plan, policy, context)
        if self._audits.is_due(self._admission.free_permits):
            compute = partial(self._share, plan, policy, context)
            self._audits.begin(policy, cached, compute, context.timeout_s)
        return cached

    async def _share(
        self, plan: ScoringPlan[ScoreT], policy: CachePolicy[ScoreT], context: RequestContext
    ) -> ScoreT:
        key = policy.lookup_keys[0]
        if context.call_timeout_s is not None and context.call_timeout_s < plan.full_timeout_s:
            key = f"{key} {context.call_timeout_s}"
        try:
            shared = await self._single_flight.do(key, lambda: self._compute(plan, context))
        except Overloaded:  # of another request, which has not waited in line
            if not context.is_patient:
                raise
            shared = await self._compute(plan, context)
        # Each waiter has its own total, and may change its own score.
        own = {"timing_ms": shared.timing_ms.model_copy(), "details": dict(shared.details)}
        return policy.from_cached(shared.model_copy(update=own))

    async def _compute(self, plan: ScoringPlan[ScoreT], context: RequestContext) -> ScoreT:
        """Permit → compute → store."""
        waited = Timing()
        async with self._admission.permit(
            waited, context, is_large=plan.is_large, is_patient=context.is_patient
        ):
            score = await plan.compute(context.call_timeout_s)
        score.timing_ms.queue = round(score.timing_ms.queue + waited.queue, 3)
        if plan.cache is not None and score.status is Status.OK:
            self.computed += 1
            await self._cached.put(plan.cache, score)
        return score


def _score_in_turn(
    items: Sequence[RequestT | RewardFleetError],
    score: Callable[[RequestT], ScoreFields],
    context: RequestContext,
    results: list[_Encoded],
) -> None:
    """Append the result of each item, until the deadline. Encoded at once, it is still cached."""
    for item in items:
        if context.deadline is not None and time.monotonic() > context.deadline:
            return
        try:
            fields = _failed(item, context) if isinstance(item, RewardFleetError) else score(item)
        except Exception as error:  # noqa: BLE001 - every failure gets a type
            fields = _failed(as_failure(error, context, overdue=False), context)
        results.append(_encoded(fields))


def _encoded(fields: ScoreFields) -> _Encoded:
    return msgspec.json.encode(fields), fields["status"], fields["score"], fields["cause"]


def _failed(failure: RewardFleetError, context: RequestContext) -> ScoreFields:
    problem = failure.problem(context.request_id).model_dump(mode="json")
    return {"score": None, "status": Status.ERROR, "cause": failure.kind, "error": problem}


def _overdue(context: RequestContext) -> DeadlineExceeded:
    return DeadlineExceeded(f"the deadline of this request passed ({context.timeout_s or 0:g} s)")


def as_failure(error: Exception, context: RequestContext, *, overdue: bool) -> RewardFleetError:
    """Return the typed failure that the caller sees instead of `error`.

    A timeout is that of the request if its deadline has passed, `overdue`.
    """
    if isinstance(error, RewardFleetError):
        return error
    if isinstance(error, TimeoutError) and overdue:
        return _overdue(context)
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
        log.error("the disk is full: %s", error)
        return Unavailable("the disk for temporary files of this service is full", retry_after=1)
    log.error("unhandled exception", exc_info=error)
    return InternalError("internal error; the service's log has it under this request id")
