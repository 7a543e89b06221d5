"""The in-memory cache."""

import math
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(eq=False)
class MemoryCache:
    """A cache in memory that evicts the least recently used entries first."""

    _max_bytes: int  #: limit on the bytes of keys and values together; 0 stores nothing
    _bytes: int = field(default=0, init=False)
    #: By key: the value, and the monotonic time at which it expires.
    _entries: OrderedDict[str, tuple[bytes, float]] = field(default_factory=OrderedDict, init=False)

    async def get_many(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        """Return the values that are stored under any of `keys`, by key, with one access."""
        found = {}
        for key in keys:
            value, expires_at = self._entries.get(key, (None, 0.0))
            if value is not None and time.monotonic() <= expires_at:
                self._entries.move_to_end(key)
                found[key] = value
        return found

    async def put(self, key: str, value: bytes, ttl_s: float | None = None) -> None:
        """Store `value` under `key`, evicting older entries if there is no room.

        Args:
            key: At most a few hundred bytes.
            ttl_s: Time to live in seconds; None for no limit.
        """
        await self.delete(key)
        self._entries[key] = value, math.inf if ttl_s is None else time.monotonic() + ttl_s
        self._bytes += len(key) + len(value)
        while self._bytes > self._max_bytes:
            evicted_key, (evicted, _) = self._entries.popitem(last=False)
            self._bytes -= len(evicted_key) + len(evicted)

    async def delete(self, key: str) -> None:
        """Delete what is stored under `key`, if anything is."""
        value, _ = self._entries.pop(key, (None, 0.0))
        if value is not None:
            self._bytes -= len(key) + len(value)

    async def aclose(self) -> None:
        self._entries.clear()
        self._bytes = 0
