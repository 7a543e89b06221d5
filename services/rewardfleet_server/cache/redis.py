"""The cache in Redis, which replicas share."""

import asyncio
import logging
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from rewardfleet.wire.urls import redact
from rewardfleet_server.system.log_throttle import LogThrottle
from rewardfleet_server.system.redis_server import reason_of, unreachable_reason
from rewardfleet_server.system.threads import run_in_thread

from .entry import EntryFormat
from .memory import MemoryCache, StoredCache

log = logging.getLogger(__name__)

_PREFIX = "rewardfleet:"
#: Seconds without a byte after which the server counts as down.
_SILENCE_SECONDS = 0.4
#: The longest that a request waits for the cache, in seconds.
_WAIT_SECONDS = 0.5
#: Seconds without any command after the server has failed.
_CIRCUIT_SECONDS = 5.0


@dataclass
class _RoundTrip:
    """Keys to look up, and entries to store for milliseconds, or to delete if they are None."""

    keys: list[str] = field(default_factory=list)
    entries: list[tuple[str, bytes | None, int]] = field(default_factory=list)
    #: What was found. The thread sets it, so that a busy event loop does not miss it.
    response: Mapping[str, bytes] | None = None
    late_at: float = math.inf  #: when the server should have answered


class RedisCache(StoredCache):
    """A cache in a Redis server. The server bounds its own memory (`maxmemory`).

    If the server is down or slow, requests bypass it. One connection is used, on a thread: what is
    looked up or stored in one turn of the event loop, or during a round trip, is sent together.

    Raises:
        ImportError: The `redis` package is not installed.
        ValueError: The URL is none of Redis. The message may contain a part of the password.
    """

    _MAX_TTL_SECONDS = 7 * 24 * 3600.0  # entries expire even where the server has room

    def __init__(
        self, url: str, *, memory: MemoryCache, entry_format: EntryFormat | None = None
    ) -> None:
        import redis.backoff  # noqa: PLC0415 - an extra
        import redis.retry  # noqa: PLC0415 - an extra

        # Not a ping, which a server answers that does not store anything, e.g. a sentinel.
        reason = unreachable_reason(url, _SILENCE_SECONDS, ("MGET", f"{_PREFIX}start"))
        if reason is not None:
            message = "--cache %s: the shared cache is bypassed until it can be used: %s"
            log.warning(message, redact(url), reason)
        super().__init__(memory, entry_format)
        self._redis = redis.Redis.from_url(
            url,
            socket_timeout=_SILENCE_SECONDS,
            socket_connect_timeout=_SILENCE_SECONDS,
            # Once more where the server has closed the connection, e.g. as it was restarted.
            retry=redis.retry.Retry(redis.backoff.NoBackoff(), 1, (redis.ConnectionError,)),
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="redis-cache")
        self._one_at_a_time = asyncio.Lock()
        self._next: tuple[_RoundTrip, asyncio.Task[None]] | None = None
        self._running: _RoundTrip | None = None
        self._circuit_open_until = 0.0
        self._refused = LogThrottle(log)

    async def _read(self, keys: Sequence[str]) -> Mapping[str, object]:
        found = await self._execute(keys)  # also of others
        return {key: found[key] for key in keys if key in found}

    async def _write(self, key: str, entry: bytes | None, ttl_s: float) -> None:
        await self._execute(entries=[(key, entry, math.ceil(ttl_s * 1000))])

    async def aclose(self) -> None:
        self._circuit_open_until = math.inf
        closing = run_in_thread(self._thread, self._redis.close)
        await asyncio.wait([closing], timeout=_WAIT_SECONDS)
        self._thread.shutdown(wait=False)

    async def _execute(
        self, keys: Sequence[str] = (), entries: Sequence[tuple[str, bytes | None, int]] = ()
    ) -> Mapping[str, bytes]:
        """Execute commands with the next round trip; return what it finds, nothing if it fails."""
        now, running = time.monotonic(), self._running
        is_late = running is not None and running.response is None and now > running.late_at
        if now < self._circuit_open_until or is_late:
            return {}
        if self._next is None:
            trip = _RoundTrip()  # its log lines have the request id of the first one who waits
            self._next = trip, asyncio.create_task(self._run(trip))
        trip, task = self._next
        trip.keys += keys
        trip.entries += entries
        await asyncio.wait([task], timeout=_WAIT_SECONDS)  # others wait for it as well
        return trip.response or {}

    async def _run(self, trip: _RoundTrip) -> None:
        async with self._one_at_a_time:
            self._next = None
            if time.monotonic() >= self._circuit_open_until:
                self._running, trip.late_at = trip, time.monotonic() + _WAIT_SECONDS
                await run_in_thread(self._thread, partial(self._round_trip, trip))

    def _round_trip(self, trip: _RoundTrip) -> None:
        try:
            trip.response = self._sent(trip)
        except Exception as error:  # noqa: BLE001 - whatever a server answers, a cache never fails
            # No request waits for the server in the next seconds.
            log.warning("the shared cache could not be used: %s", reason_of(error))
            self._circuit_open_until = time.monotonic() + _CIRCUIT_SECONDS
            trip.response = {}

    def _sent(self, trip: _RoundTrip) -> Mapping[str, bytes]:
        keys = list(dict.fromkeys(trip.keys))
        with self._redis.pipeline(transaction=False) as pipeline:
            if keys:  # values that are not strings are like missing ones
                pipeline.mget([_PREFIX + key for key in keys])
            for key, content, ttl_ms in trip.entries:
                if content is None:
                    pipeline.delete(_PREFIX + key)
                else:
                    pipeline.set(_PREFIX + key, content, px=ttl_ms)
            replies = pipeline.execute(raise_on_error=False)
        values = replies.pop(0) if keys else []
        if isinstance(values, Exception):
            raise values
        # E.g. because it is full. It still answers lookups.
        refusals = [reply for reply in replies if isinstance(reply, Exception)]
        if refusals:
            self._refused("the shared cache stores nothing: %s", reason_of(refusals[0]))
        return {key: value for key, value in zip(keys, values, strict=True) if value is not None}
