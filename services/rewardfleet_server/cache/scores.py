"""Finished scores in a cache: under which keys, which may be used, and audits of a few of them."""

import asyncio
import hashlib
import json
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pydantic import ValidationError

from rewardfleet.wire.score import Score, Status
from rewardfleet_server.observe.telemetry import Telemetry
from rewardfleet_server.observe.tracing import SAMPLE
from rewardfleet_server.scorer import CachePolicy
from rewardfleet_server.system.log_throttle import LogThrottle

from . import Cache

ScoreT = TypeVar("ScoreT", bound=Score)

log = logging.getLogger(__name__)

#: The share of time that audits take at most. Where a score takes long, fewer hits are audited.
_AUDIT_SHARE = 0.02
#: Seconds until the next audit, at most: one may have waited until its deadline.
_MAX_AUDIT_PAUSE = 60.0


class CachedScores(Generic[ScoreT]):
    """The finished scores of one service."""

    def __init__(self, cache: Cache, score_type: type[ScoreT], telemetry: Telemetry) -> None:
        self._cache = cache
        self._score_type = score_type
        self._telemetry = telemetry
        self._warning = LogThrottle(log)
        # Part of every key: scores stored by a version with other fields are not looked up.
        schema = json.dumps(score_type.model_json_schema(), sort_keys=True)
        version = hashlib.sha256(schema.encode()).hexdigest()[:12]
        self._key_prefix = f"{telemetry.service}:{version}:"

    async def get(self, backend: str, policy: CachePolicy[ScoreT]) -> ScoreT | None:
        """Return the stored score of an item, adapted to it; None if its backend has none."""
        keys = [self._key_prefix + key for key in policy.lookup_keys]
        values = await self._cache.get_many(keys)
        score = None
        for key in keys:
            if score is None and key in values:
                score = self._decode(values[key], backend, policy)
        self._telemetry.lookups("miss" if score is None else "hit").inc()
        return None if score is None else policy.from_cached(score)

    def _decode(self, value: bytes, backend: str, policy: CachePolicy[ScoreT]) -> ScoreT | None:
        """Decode a score, which anyone may have stored; None if it cannot be that of an item."""
        try:
            score = self._score_type.model_validate_json(value, strict=True)
        except ValidationError:
            score = None
        is_usable = score and score.status is Status.OK and score.backend == backend
        if score is None or not (is_usable and policy.is_valid(score)):
            self._telemetry.damaged_entries().inc()
            self._warning("a cached score is not valid and is computed again")
            return None
        score.cached = True
        return score

    async def put(self, policy: CachePolicy[ScoreT], score: ScoreT) -> None:
        """Store the score of an item."""
        key, ttl_s = policy.lookup_keys[0], None
        if policy.store_policy is not None:
            key, ttl_s = policy.store_policy(score)
            if ttl_s == 0:
                return
        left_out = {"cached", "timing_ms", *policy.not_stored}
        value = score.model_dump_json(exclude=left_out, exclude_defaults=True)
        await self._cache.put(self._key_prefix + key, value.encode(), ttl_s)

    async def delete(self, policy: CachePolicy[ScoreT]) -> None:
        """Delete all scores that an item could get."""
        for key in policy.lookup_keys:
            await self._cache.delete(self._key_prefix + key)


@dataclass(eq=False)
class Audits(Generic[ScoreT]):
    """The audits of one service: a few cached scores are computed again and compared."""

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
