"""The lookups of a batch's items, made at once."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol

#: Seconds that lookups wait for those of items whose videos are still hashed or fetched.
_WAIT_SECONDS = 0.5


class Lookup(Protocol):
    """Finds values by key: a cache, or the common lookup of a batch."""

    async def get_many(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        """Return the values that are stored under any of `keys`, by key."""


class BatchLookup:
    """Looks up the keys of all items of a batch at once.

    It waits until each item has asked or was left out, for 0.5 s. Then it looks up what was asked
    for so far, so that one slow item delays the others by no more than that.

    Args:
        cache: Where to look.
        count: The number of items.
    """

    def __init__(self, cache: Lookup, count: int) -> None:
        self._cache = cache
        self._missing = count
        self._complete = asyncio.Event()
        self._keys: dict[str, None] = {}
        self._lookup: asyncio.Task[Mapping[str, bytes]] | None = None

    def leave_out(self) -> None:
        """Wait no longer for one item."""
        self._missing -= 1
        if self._missing == 0:
            self._complete.set()

    async def get_many(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        """Return the values stored under the keys of one item, and of others."""
        self._keys.update(dict.fromkeys(keys))
        if self._lookup is None:
            self._lookup = asyncio.create_task(self._look_up())
        lookup = self._lookup
        self.leave_out()
        return await asyncio.shield(lookup)  # other items wait for it as well

    async def _look_up(self) -> Mapping[str, bytes]:
        with suppress(TimeoutError):
            async with asyncio.timeout(_WAIT_SECONDS):
                await self._complete.wait()
        keys, self._keys, self._lookup = list(self._keys), {}, None
        return await self._cache.get_many(keys)
