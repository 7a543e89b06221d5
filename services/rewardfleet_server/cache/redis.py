"""The cache in Redis, which replicas share."""

import asyncio
import logging
import math
import struct
import time
from collections.abc import Awaitable, Callable

from .memory import MemoryCache

log = logging.getLogger(__name__)

_PREFIX = "rewardfleet:"
_CONNECTIONS = 64
#: Seconds for one command, and seconds without any command after one has failed.
_COMMAND_SECONDS, _CIRCUIT_SECONDS = 0.25, 5.0
#: One week: entries expire even where the server has room.
_MAX_TTL_SECONDS = 7 * 24 * 3600.0
#: The time at which an entry expires, in front of its value.
_EXPIRES_AT = struct.Struct("!d")


class RedisCache:
    """A cache in a Redis server. The server bounds its own memory (`maxmemory`).

    If the server is down, slow or full, requests bypass it.

    Args:
        url: `redis://host:port/number`, or `rediss://` for TLS; it may contain a password.
        memory: Front cache, which answers repeated lookups without the network.

    Raises:
        ImportError: The `redis` package is not installed.
        ValueError: It is not such a URL.
    """

    def __init__(self, url: str, *, memory: MemoryCache) -> None:
        import redis.asyncio  # noqa: PLC0415 - an extra

        self._memory = memory
        self._failures: tuple[type[Exception], ...] = (redis.RedisError, OSError, TimeoutError)
        self._redis = redis.asyncio.from_url(
            url,
            max_connections=_CONNECTIONS,
            socket_timeout=_COMMAND_SECONDS,
            socket_connect_timeout=_COMMAND_SECONDS,
        )
        # The pool raises at its limit instead of waiting for a connection.
        self._connections = asyncio.Semaphore(_CONNECTIONS)
        self._circuit_open_until = 0.0

    async def get(self, key: str) -> bytes | None:
        value = await self._memory.get(key)
        if value is not None:
            return value
        match await self._guarded(lambda: self._redis.get(_PREFIX + key)):
            case bytes(value) if len(value) > _EXPIRES_AT.size:
                (expires_at,) = _EXPIRES_AT.unpack_from(value)
                if expires_at <= time.time():
                    return None
                value = value[_EXPIRES_AT.size :]
                await self._memory.put(key, value, expires_at - time.time())
                return value
        return None

    async def put(self, key: str, value: bytes, ttl_s: float | None = None) -> None:
        await self._memory.put(key, value, ttl_s)
        seconds = min(ttl_s or math.inf, _MAX_TTL_SECONDS)
        # The time is part of the value: front caches must not store it longer than Redis does.
        stamped = _EXPIRES_AT.pack(time.time() + seconds) + value
        await self._guarded(
            lambda: self._redis.set(_PREFIX + key, stamped, px=math.ceil(seconds * 1000))
        )

    async def _guarded(self, command: Callable[[], Awaitable[object]]) -> object:
        """Run a command. After a failure the server is skipped for 5 s: no request waits for it."""
        async with self._connections:
            if time.monotonic() < self._circuit_open_until:
                return None
            try:
                async with asyncio.timeout(2 * _COMMAND_SECONDS):
                    return await command()
            except self._failures as error:
                log.warning("the shared cache could not be used: %s", type(error).__name__)
                self._circuit_open_until = time.monotonic() + _CIRCUIT_SECONDS
                return None

    async def aclose(self) -> None:
        await self._memory.aclose()
        await self._redis.aclose()
