"""The caches, and the single flight."""

import asyncio
import math
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import closing, suppress
from pathlib import Path

import pytest

from rewardfleet_server.cache import Cache
from rewardfleet_server.cache.entry import EntryFormat
from rewardfleet_server.cache.memory import MemoryCache
from rewardfleet_server.cache.single_flight import Memo, SingleFlight
from rewardfleet_server.cache.sqlite import SqliteCache

from ..conftest import cached_value


def sqlite_cache(path: Path, max_bytes: int = 32_768) -> SqliteCache:
    return SqliteCache(path / "cache.sqlite", max_bytes=max_bytes, memory=MemoryCache(0))


@pytest.fixture(params=["memory", "sqlite"])
async def cache(request: pytest.FixtureRequest, tmp_path: Path):
    cache = MemoryCache(10_000) if request.param == "memory" else sqlite_cache(tmp_path)
    yield cache
    await cache.aclose()


async def test_every_cache_returns_what_was_stored_and_not_deleted(cache: Cache):
    assert await cached_value(cache, "a") is None
    await cache.put("a", b"1")
    await cache.put("b", b"2")
    assert (await cached_value(cache, "a"), await cached_value(cache, "b")) == (b"1", b"2")
    await cache.delete("a")
    await cache.delete("a")
    assert (await cached_value(cache, "a"), await cached_value(cache, "b")) == (None, b"2")


async def test_every_cache_limits_its_bytes(cache: Cache):
    for index in range(300):
        await cache.put(f"{index:03}", b"x" * 97)
    stored = [index for index in range(300) if await cached_value(cache, f"{index:03}")]
    assert stored and stored[-1] == 299
    assert len(stored) <= 250
    assert stored == list(range(stored[0], 300)), "the oldest go first"


@pytest.mark.slow
async def test_entries_that_are_replaced_take_no_further_bytes(tmp_path: Path):
    cache = sqlite_cache(tmp_path)
    for _ in range(20):
        for index in range(50):
            await cache.put(f"{index:03}", b"x" * 97)
    assert all([await cached_value(cache, f"{index:03}") for index in range(50)])
    await cache.aclose()


@pytest.mark.slow
async def test_processes_that_share_a_file_share_its_limit(tmp_path: Path):
    caches = [sqlite_cache(tmp_path, 65_536) for _ in range(2)]
    for index in range(300):
        for cache in caches:
            await cache.put(f"{index:03}", b"x" * 97)
    stored = [index for index in range(300) if await cached_value(caches[0], f"{index:03}")]
    assert len(stored) > 100 and stored[-1] == 299
    for cache in caches:
        await cache.aclose()


async def test_memory_evicts_the_least_recently_used_entry():
    cache = MemoryCache(40)
    for key in "abc":
        await cache.put(key, b"x" * 12)
    await cached_value(cache, "a")
    await cache.put("d", b"x" * 12)
    assert [key for key in "abcd" if await cached_value(cache, key)] == ["a", "c", "d"]


async def test_an_entry_larger_than_the_cache_is_not_stored():
    cache = MemoryCache(10)
    await cache.put("a", b"x" * 100)
    assert await cached_value(cache, "a") is None


@pytest.mark.slow
async def test_sqlite_survives_kill_9(tmp_path: Path):
    """Entries stored before a kill -9 are there afterwards."""
    program = f"""
import asyncio, os, signal
from pathlib import Path
from rewardfleet_server.cache.entry import EntryFormat
from rewardfleet_server.cache.memory import MemoryCache
from rewardfleet_server.cache.sqlite import SqliteCache
async def main():
    cache = SqliteCache(Path({str(tmp_path / "cache.sqlite")!r}), max_bytes=10**6,
                        memory=MemoryCache(0))
    for i in range(50):
        await cache.put(str(i), b"answer")
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    cache = sqlite_cache(tmp_path)
    assert [await cached_value(cache, str(i)) for i in range(50)] == [b"answer"] * 50
    await cache.aclose()


async def test_a_file_that_is_not_a_database_is_renamed_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "cache.sqlite").write_bytes(b"this is no database" * 100)
    cache = sqlite_cache(tmp_path)
    await cache.put("a", b"1")
    assert await cached_value(cache, "a") == b"1"
    assert "renamed" in caplog.text
    assert [path.name for path in tmp_path.glob("*.corrupt-*")]
    await cache.aclose()


@pytest.mark.slow
async def test_a_file_that_becomes_corrupt_in_use_is_renamed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    cache = sqlite_cache(tmp_path, max_bytes=10**7)
    for index in range(2000):
        await cache.put(str(index), b"x" * 500)
    await cache.aclose()
    path = tmp_path / "cache.sqlite"
    with path.open("r+b") as file:  # everything but the first page, which opening reads
        file.seek(4096)
        file.write(b"\xff" * (os.path.getsize(path) - 4096))
    cache = sqlite_cache(tmp_path, max_bytes=10**7)
    assert await cached_value(cache, "5") is None
    await cache.put("a", b"1")
    assert await cached_value(cache, "a") == b"1"
    assert "renamed" in caplog.text
    await cache.aclose()


async def test_no_flipped_bit_of_an_entry_in_a_file_changes_its_value(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    cache = sqlite_cache(tmp_path)
    value = b'{"score": 0.99}'
    await cache.put("key", value)
    await cache.aclose()
    path = tmp_path / "cache.sqlite"
    content = path.read_bytes()
    end = content.index(value) + len(value)
    start = content.rindex(b"key", 0, end) - 16  # with the lengths in front of the row
    entries, kept = EntryFormat(None), 0

    def flip(position: int) -> None:
        changed = bytearray(content)
        changed[position // 8] ^= 1 << position % 8
        path.write_bytes(changed)

    for position in range(8 * start, 8 * (end + 8)):  # with the expiry behind it
        flip(position)
        with closing(sqlite3.connect(path)) as db, suppress(sqlite3.DatabaseError):
            for entry in db.execute("SELECT value FROM entries WHERE key = 'key'"):
                found = entries.unpack("key", *entry)
                assert found in {(value, math.inf), None}, position
                kept += found is not None
    assert kept < 200, "no bits but those of what is not used"
    flip(8 * content.index(b"0.99") + 16)  # it is 0.89
    cache = sqlite_cache(tmp_path)
    assert await cached_value(cache, "key") is None
    assert "is damaged, or not signed" in caplog.text
    await cache.put("key", value)
    assert await cached_value(cache, "key") == value
    await cache.aclose()


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_file_that_is_deleted_or_replaced_is_opened_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, suffix: str, is_replaced: bool
):
    one, other = sqlite_cache(tmp_path), sqlite_cache(tmp_path)
    await one.put("a", b"1")
    file = tmp_path / f"cache.sqlite{suffix}"
    if is_replaced:
        new = tmp_path / "new"
        new.write_bytes(file.read_bytes())
        new.replace(file)
    else:
        file.unlink()
    for _ in range(3):  # each may open what the other has renamed since
        for cache in (one, other):
            await cached_value(cache, "unknown")
    assert f"{file.name} was deleted, replaced" in caplog.text
    caplog.clear()
    await one.put("b", b"2")
    assert await cached_value(other, "b") == b"2"
    assert not caplog.text
    for cache in (one, other):
        await cache.aclose()
    with closing(sqlite3.connect(tmp_path / "cache.sqlite")) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def test_opening_waits_for_a_process_that_is_creating_the_file(tmp_path: Path):
    other = sqlite3.connect(tmp_path / "cache.sqlite", check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    done = threading.Timer(0.3, other.rollback)  # longer than a statement waits for a lock
    done.start()
    try:
        cache = sqlite_cache(tmp_path)
    finally:
        done.join()
        other.close()
    await cache.put("k", b"1")
    assert await cached_value(cache, "k") == b"1"
    await cache.aclose()


async def test_a_locked_file_is_bypassed(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    cache = sqlite_cache(tmp_path)
    other = sqlite3.connect(tmp_path / "cache.sqlite")
    other.execute("BEGIN EXCLUSIVE")
    await cache.put("a", b"1")
    assert "could not be used" in caplog.text
    other.rollback()
    other.close()
    assert await cached_value(cache, "a") is None
    await cache.aclose()


async def test_a_file_that_cannot_be_replaced_is_switched_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    cache = sqlite_cache(tmp_path)

    def corrupt(_: sqlite3.Connection) -> None:
        raise sqlite3.DatabaseError("malformed")

    def full(_: Path) -> Path:
        raise OSError("no space left on device")

    monkeypatch.setattr("rewardfleet_server.system.sqlite_file.SqliteFile.set_aside", full)
    assert await cache._guarded(corrupt) is None
    assert "switched off" in caplog.text
    await cache.put("a", b"1")
    assert await cached_value(cache, "a") is None
    await cache.aclose()


class Work:
    """A computation that ends when the test sets `may_end`."""

    def __init__(self) -> None:
        self.started = 0
        self.cancelled = 0
        self.may_end = asyncio.Event()

    async def __call__(self) -> str:
        self.started += 1
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return "done"


async def run_pending_tasks() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


Share = Callable[[str, Callable[[], Coroutine[None, None, str]]], Coroutine[None, None, str]]


@pytest.fixture(params=["SingleFlight", "Memo"])
def share(request: pytest.FixtureRequest) -> Share:
    return SingleFlight[str]().do if request.param == "SingleFlight" else Memo(1000, len).get


async def test_identical_computations_run_once(share: Share):
    work = Work()
    waiters = [asyncio.create_task(share("k", work)) for _ in range(10)]
    await run_pending_tasks()
    work.may_end.set()
    assert await asyncio.gather(*waiters) == ["done"] * 10
    assert work.started == 1


async def test_a_cancelled_waiter_leaves_the_others_waiting(share: Share):
    work = Work()
    first, second = (asyncio.create_task(share("k", work)) for _ in range(2))
    await run_pending_tasks()
    first.cancel()
    await run_pending_tasks()
    work.may_end.set()
    assert await second == "done"
    assert (work.started, work.cancelled) == (1, 0)


async def test_it_is_cancelled_with_its_last_waiter_and_the_next_starts_another(share: Share):
    work = Work()
    waiters = [asyncio.create_task(share("k", work)) for _ in range(2)]
    await run_pending_tasks()
    for waiter in waiters:
        waiter.cancel()
    await asyncio.gather(*waiters, return_exceptions=True)
    later = asyncio.create_task(share("k", work))
    await run_pending_tasks()
    assert (work.started, work.cancelled) == (2, 1)
    work.may_end.set()
    assert await later == "done"


async def test_a_failure_reaches_every_waiter_and_is_not_stored(share: Share):

    async def fail() -> str:
        raise ValueError("broken")

    waiters = [asyncio.create_task(share("k", fail)) for _ in range(3)]
    results = await asyncio.gather(*waiters, return_exceptions=True)
    assert [str(result) for result in results] == ["broken"] * 3
    work = Work()
    work.may_end.set()
    assert await share("k", work) == "done"


async def test_what_is_kept_has_a_limit_and_the_least_recently_used_leaves_first():
    kept, computed = Memo[str](3 * sys.getsizeof("a") + 30, len), []

    async def value(key: str, length: int = 10) -> str:
        async def compute() -> str:
            computed.append(key)
            return key * length

        return await kept.get(key, compute)

    for key in "abcabdacb":
        assert await value(key) == key * 10
    assert "".join(computed) == "abcdcb"
    assert await value("x", 1000) == "x" * 1000, "too large to be kept"
    assert kept.bytes == 0
