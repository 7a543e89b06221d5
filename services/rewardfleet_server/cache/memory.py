"""The cache in memory, which is also in front of those in a store."""

import math
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .entry import EntryFormat


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
        """Store `value` under `key` for seconds, or for good; evict older entries if need be."""
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
        """Release files, connections and threads."""


class StoredCache(ABC):
    """A cache whose entries are in a store; see `MemoryCache` for its methods.

    Args:
        memory: Front cache, which answers repeated lookups without the store.
        entry_format: Packs and checks entries. Default: not signed.
    """

    _MAX_TTL_SECONDS = math.inf  # of an entry of the store

    def __init__(self, memory: MemoryCache, entry_format: EntryFormat | None = None) -> None:
        self._memory = memory
        self._format = entry_format or EntryFormat(None)

    @abstractmethod
    async def _read(self, keys: Sequence[str]) -> Mapping[str, object]:
        """Return the entries of keys, of those that are stored; nothing if the store fails."""

    @abstractmethod
    async def _write(self, key: str, entry: bytes | None, ttl_s: float) -> None:
        """Store an entry if the store does not fail; None deletes it."""

    async def get_many(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        values = dict(await self._memory.get_many(keys))
        missing = [key for key in keys if key not in values]
        entries = await self._read(missing) if missing else {}
        for key, entry in entries.items():
            unpacked = self._format.unpack(key, entry)
            if unpacked is not None:
                values[key], ttl_s = unpacked
                await self._memory.put(key, values[key], ttl_s)
        return values

    async def put(self, key: str, value: bytes, ttl_s: float | None = None) -> None:
        await self._memory.put(key, value, ttl_s)
        seconds = min(math.inf if ttl_s is None else ttl_s, self._MAX_TTL_SECONDS)
        # The time is part of the entry: front caches must not store it longer than the store does.
        await self._write(key, self._format.pack(key, value, seconds), seconds)

    async def delete(self, key: str) -> None:
        await self._memory.delete(key)
        await self._write(key, None, 0)

    @abstractmethod
    async def aclose(self) -> None: ...
