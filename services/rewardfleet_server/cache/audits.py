"""Audits: a few cached scores are computed again and compared."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from rewardfleet.wire.score import Score
from rewardfleet_server.observe.telemetry import Telemetry
from rewardfleet_server.observe.tracing import SAMPLE
from rewardfleet_server.scorer import CachePolicy

from .scores import CachedScores

log = logging.getLogger(__name__)

ScoreT = TypeVar("ScoreT", bound=Score)

#: The share of time that audits take at most. Where a score takes long, fewer hits are audited.
_AUDIT_SHARE = 0.02
#: Seconds until the next audit, at most: one may have waited until its deadline.
_MAX_AUDIT_PAUSE = 60.0


@dataclass(eq=False)
class Audits(Generic[ScoreT]):
    """The audits of one service."""

    #: Share of the cache hits that are audited, in [0, 1], unless that takes too much time.
    _rate: float
    _scores: CachedScores[ScoreT]  #: a score that differs from its recomputation is deleted here
    _telemetry: Telemetry
    _running: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _next: float = field(default=0.0, init=False)  #: not before this time of `time.monotonic`

    def is_due(self, free_permits: int) -> bool:
        """Return whether to audit a hit now: never at the expense of requests."""
        is_sampled = self._rate > 0 and random.random() < self._rate  # noqa: S311 - no secret
        return is_sampled and time.monotonic() >= self._next and len(self._running) < free_permits

    def begin(
        self,
        policy: CachePolicy[ScoreT],
        cached: ScoreT,
        compute: Callable[[], Awaitable[ScoreT]],
        timeout_s: float | None,
    ) -> None:
        """Compute a cached score again in the background, and compare.

        The caller has its score already. If they differ, neither may be served: the key lacks
        something, or the score is not deterministic.
        """
        expected = policy.audit_fields(cached)  # now, as the caller may change its score

        async def audit() -> None:
            SAMPLE.set(None)  # no sample in flight waits for it
            started = time.monotonic()
            try:
                async with asyncio.timeout(timeout_s):
                    computed = await compute()
            except Exception as error:  # noqa: BLE001 - no caller waits for it
                log.warning("a cached score could not be audited: %r", error)
                return
            finally:
                now = time.monotonic()
                pause = min((now - started) / _AUDIT_SHARE, _MAX_AUDIT_PAUSE)
                self._next = max(now, self._next) + pause
            agrees = expected == policy.audit_fields(computed)
            if not agrees:
                await self._scores.delete(policy)
                message = "a cached score differs from its recomputation and was evicted: %s"
                log.warning(message, policy.lookup_keys[0])
            self._telemetry.audits("agree" if agrees else "disagree").inc()

        running = asyncio.create_task(audit())
        self._running.add(running)
        running.add_done_callback(self._running.discard)
