"""Caches of finished scores: in memory, in a SQLite file, or in Redis; and a single flight.

A cache may drop any entry at any time. It never fails: a broken store is a cache miss.
"""

import sqlite3
from collections.abc import Callable
from pathlib import Path

from rewardfleet.wire.optional_imports import require
from rewardfleet.wire.urls import redact
from rewardfleet_server.settings import CacheSettings, ServerSettings, is_url

from .entry import EntryFormat, read_signing_key
from .memory import MemoryCache, StoredCache

_MIB = 2**20
#: MiB of a cache file in use, which is about a million verdicts; the oldest are evicted first.
#: Whoever needs more runs replicas, which share a Redis server and its limit.
_FILE_MB = 1024


#: A store of finished scores, as bytes by key.
Cache = MemoryCache | StoredCache


def open_cache(settings: ServerSettings, on_damage: Callable[[], None]) -> Cache:
    """Open the cache that the settings describe.

    Args:
        on_damage: Called for each entry that is damaged, or not signed with the signing key.

    Raises:
        ValueError: The file cannot be opened, the URL is wrong, the signing key is none, or the
            `redis` package is missing.
        OSError: The default cache folder cannot be created.
    """
    if not isinstance(settings, CacheSettings):  # nothing of this service is cached
        return MemoryCache(0)
    memory, key_file = MemoryCache(settings.cache_mb * _MIB), settings.cache_signing_key_file
    signing_key = read_signing_key(key_file, settings.api_key_file) if key_file else None
    entry_format = EntryFormat(signing_key, on_damage)
    if settings.cache is None:
        return memory
    if is_url(settings.cache):
        from .redis import RedisCache  # noqa: PLC0415 - only services that share a cache need it

        source = f"--cache {redact(settings.cache)}"
        require("redis", source, "redis")
        try:
            return RedisCache(settings.cache, memory=memory, entry_format=entry_format)
        except ValueError:  # whose message may contain a part of the password
            raise ValueError(f"{source}: give a URL such as redis://127.0.0.1:6379/0") from None
    from .sqlite import SqliteCache  # noqa: PLC0415 - as Redis above

    file = Path(settings.cache)
    if "cache" not in settings.model_fields_set:  # the default folder may not exist yet
        file.parent.mkdir(parents=True, exist_ok=True)
    try:
        return SqliteCache(
            file, max_bytes=_FILE_MB * _MIB, memory=memory, entry_format=entry_format
        )
    except sqlite3.Error as error:
        raise ValueError(f"--cache {file}: {error}") from error
