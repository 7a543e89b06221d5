"""The cache in Redis, which replicas share."""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from rewardfleet_server.settings import redact
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
class _Command:
    """Keys to look up, entries to store or delete, and the future of what was found."""

    keys: Sequence[str] = ()
    entries: Sequence[_Entry] = ()
    #: The thread sets it, so that a busy event loop does not miss a response.
    found: Future[Mapping[str, bytes]] = field(default_factory=Future)


class RedisCache:
    """A cache in a Redis server. The server bounds its own memory (`maxmemory`).

    If the server is down or slow, requests bypass it. One connection is used, on a thread: what is
    looked up or stored during one round trip is sent together in the next one.

    Args:
        url: `redis://host:port/number`, or `rediss://` for TLS; it may contain a password.
        memory: Front cache, which answers repeated lookups without the network.
        entry_format: Packs and checks entries. Default: not signed.

    Raises:
        ImportError: The `redis` package is not installed.
        ValueError: It is not such a URL.
    """

    is_remote: ClassVar[bool] = True

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
        self._waiting: deque[_Command] = deque()
        self._sent_at = math.inf
        self._circuit_open_until = 0.0
        self._refused = LogThrottle(log)

    async def get(self, key: str) -> bytes | None:
        return (await self.get_many([key])).get(key)

    async def get_many(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        values = dict(await self._memory.get_many(keys))
        missing = [key for key in keys if key not in values]
        if missing:
            entries = await self._execute(_Command(keys=missing))
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
        await self._execute(_Command(entries=[_Entry(key, content, math.ceil(seconds * 1000))]))

    async def delete(self, key: str) -> None:
        await self._memory.delete(key)
        await self._execute(_Command(entries=[_Entry(key, None, 0)]))

    async def aclose(self) -> None:
        await self._memory.aclose()
        self._circuit_open_until = math.inf
        closing = run_in_thread(self._thread, self._redis.close)
        await asyncio.wait([closing], timeout=_WAIT_SECONDS)
        self._thread.shutdown(wait=False)

    async def _execute(self, command: _Command) -> Mapping[str, bytes]:
        """Send a command with the next round trip; return what it finds, or nothing if it fails."""
        now = time.monotonic()
        if now < self._circuit_open_until or now - self._sent_at > _WAIT_SECONDS:
            return {}
        self._waiting.append(command)
        if len(self._waiting) == 1:  # else the thread, which takes all of them, has yet to start
            run_in_thread(self._thread, self._round_trip)
        # Unlike a timeout, this notices a response that came while the event loop was busy.
        await asyncio.wait([asyncio.wrap_future(command.found)], timeout=_WAIT_SECONDS)
        return command.found.result() if command.found.done() else {}

    def _round_trip(self) -> None:
        """Execute all waiting commands, on the thread."""
        commands = []
        while self._waiting:
            commands.append(self._waiting.popleft())
        keys = list(dict.fromkeys(key for each in commands for key in each.keys))
        entries = [entry for each in commands for entry in each.entries]
        self._sent_at = time.monotonic()
        found: Mapping[str, bytes] = {}
        if commands and self._sent_at >= self._circuit_open_until:
            try:
                found = self._send(keys, entries)
            except Exception as error:  # noqa: BLE001 - whatever a server answers, a cache never fails
                self._open_circuit(error)
        self._sent_at = math.inf
        for command in commands:
            command.found.set_result(found)

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

    def _open_circuit(self, error: Exception) -> None:
        """Skip the server for 5 s: no request waits for it."""
        log.warning("the shared cache could not be used: %s", reason_of(error))
        self._circuit_open_until = time.monotonic() + _CIRCUIT_SECONDS
