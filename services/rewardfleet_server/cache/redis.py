"""The cache in Redis, which replicas share."""

import asyncio
import logging
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from rewardfleet.wire.urls import redact
from rewardfleet_server.system.log_throttle import LogThrottle
from rewardfleet_server.system.redis_server import reason_of, unreachable_reason
from rewardfleet_server.system.threads import run_in_thread

from .entry import EntryFormat
from .memory import MemoryCache

log = logging.getLogger(__name__)

_PREFIX = "rewardfleet:"
#: Seconds without a byte after which the server counts as down.
_SILENCE_SECONDS = 0.4
#: The longest that a request waits for the cache, in seconds.
_WAIT_SECONDS = 0.5
#: Seconds without any command after the server has failed.
_CIRCUIT_SECONDS = 5.0
#: One week: entries expire even where the server has room.
_MAX_TTL_SECONDS = 7 * 24 * 3600.0


class _Entry(NamedTuple):
    """What is to be stored under a key; None deletes it."""

    key: str
    content: bytes | None
    ttl_ms: int


@dataclass
class _RoundTrip:
    """Keys to look up, entries to store or delete, and what those who wait get."""

    #: What is found, or nothing if that takes too long.
    found: asyncio.Future[Mapping[str, bytes]]
    keys: list[str] = field(default_factory=list)
    entries: list[_Entry] = field(default_factory=list)
    #: The thread sets it, so that a busy event loop does not miss a response.
    response: Mapping[str, bytes] | None = None
    #: That of the first one who waits: log lines have its request id.
    context: Context = field(default_factory=copy_context)

    def finish(self) -> None:
        """Give those who wait what has been found by now."""
        if not self.found.done():
            self.found.set_result(self.response or {})


class RedisCache:
    """A cache in a Redis server. The server bounds its own memory (`maxmemory`).

    If the server is down or slow, requests bypass it. One connection is used, on a thread: what is
    looked up or stored in one turn of the event loop, or during a round trip, is sent together.

    Args:
        url: `redis://host:port/number`, or `rediss://` for TLS; it may contain a password.
        memory: Front cache, which answers repeated lookups without the network.
        entry_format: Packs and checks entries. Default: not signed.

    Raises:
        ImportError: The `redis` package is not installed.
        ValueError: It is not such a URL.
    """

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
        self._memory = memory
        self._format = entry_format or EntryFormat(None)
        self._redis = redis.Redis.from_url(
            url,
            socket_timeout=_SILENCE_SECONDS,
            socket_connect_timeout=_SILENCE_SECONDS,
            # Once more where the server has closed the connection, e.g. as it was restarted.
            retry=redis.retry.Retry(redis.backoff.NoBackoff(), 1, (redis.ConnectionError,)),
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="redis-cache")
        self._next: _RoundTrip | None = None
        self._running: _RoundTrip | None = None
        self._sent_at = 0.0
        self._circuit_open_until = 0.0
        self._refused = LogThrottle(log)

    async def get_many(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        values = dict(await self._memory.get_many(keys))
        missing = [key for key in keys if key not in values]
        if missing:
            entries = await self._execute(keys=missing)
            for key in missing:
                entry = entries.get(key)
                unpacked = None if entry is None else self._format.unpack(key, entry)
                if unpacked is not None:
                    values[key], ttl_s = unpacked
                    await self._memory.put(key, values[key], min(ttl_s, _MAX_TTL_SECONDS))
        return values

    async def put(self, key: str, value: bytes, ttl_s: float | None = None) -> None:
        await self._memory.put(key, value, ttl_s)
        seconds = min(ttl_s or math.inf, _MAX_TTL_SECONDS)
        # The time is part of the entry: front caches must not store it longer than Redis does.
        content = self._format.pack(key, value, seconds)
        await self._execute(entries=[_Entry(key, content, math.ceil(seconds * 1000))])

    async def delete(self, key: str) -> None:
        await self._memory.delete(key)
        await self._execute(entries=[_Entry(key, None, 0)])

    async def aclose(self) -> None:
        await self._memory.aclose()
        self._circuit_open_until = math.inf
        closing = run_in_thread(self._thread, self._redis.close)
        await asyncio.wait([closing], timeout=_WAIT_SECONDS)
        self._next = None  # those who wait for it get nothing
        self._thread.shutdown(wait=False)

    async def _execute(
        self, keys: Sequence[str] = (), entries: Sequence[_Entry] = ()
    ) -> Mapping[str, bytes]:
        """Execute commands with the next round trip; return what it finds, nothing if it fails."""
        now, running = time.monotonic(), self._running
        is_waiting = running is not None and running.response is None
        if now < self._circuit_open_until or (is_waiting and now - self._sent_at > _WAIT_SECONDS):
            return {}
        trip = self._next
        if trip is None:
            loop = asyncio.get_running_loop()
            trip = self._next = _RoundTrip(loop.create_future())
            if running is None:
                loop.call_soon(self._start)
            else:
                loop.call_later(_WAIT_SECONDS, trip.finish)
        trip.keys += keys
        trip.entries += entries
        return await asyncio.shield(trip.found)  # others wait for it as well

    def _start(self) -> None:
        trip, self._next = self._next, None
        assert trip is not None  # noqa: S101 - there is one whenever this is called
        self._running, self._sent_at = trip, time.monotonic()
        asyncio.get_running_loop().call_later(_WAIT_SECONDS, trip.finish)
        made = run_in_thread(self._thread, partial(self._round_trip, trip))
        made.add_done_callback(lambda _: self._end(trip))

    def _end(self, trip: _RoundTrip) -> None:
        trip.finish()
        self._running = None
        if self._next is not None:
            self._next.context.run(self._start)

    def _round_trip(self, trip: _RoundTrip) -> None:
        found: Mapping[str, bytes] = {}
        if time.monotonic() >= self._circuit_open_until:
            try:
                found = self._send(list(dict.fromkeys(trip.keys)), trip.entries)
            except Exception as error:  # noqa: BLE001 - whatever a server answers, a cache never fails
                # No request waits for the server in the next seconds.
                log.warning("the shared cache could not be used: %s", reason_of(error))
                self._circuit_open_until = time.monotonic() + _CIRCUIT_SECONDS
        trip.response = found

    def _send(self, keys: Sequence[str], entries: Sequence[_Entry]) -> Mapping[str, bytes]:
        """Look up keys, and store or delete entries; return what was found."""
        with self._redis.pipeline(transaction=False) as pipeline:
            if keys:  # values that are not strings are like missing ones
                pipeline.mget([_PREFIX + key for key in keys])
            for key, content, ttl_ms in entries:
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
            self._refused("the shared cache stores nothing: SET: %s", reason_of(refusals[0]))
        return {key: value for key, value in zip(keys, values, strict=True) if value is not None}
