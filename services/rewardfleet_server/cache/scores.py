"""Finished scores in a cache: under which keys, and which of them may be used."""

import hashlib
import json
import logging
from typing import Generic, TypeVar

from pydantic import ValidationError

from rewardfleet.wire.score import Score, Status
from rewardfleet_server.observe.telemetry import Telemetry
from rewardfleet_server.scorer import CachePolicy
from rewardfleet_server.system.log_throttle import LogThrottle

from . import Cache

ScoreT = TypeVar("ScoreT", bound=Score)

log = logging.getLogger(__name__)


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
        """Return the stored score of an item, adapted to it; None if there is none.

        Args:
            backend: What would score the item.
            policy: Its keys.
        """
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
