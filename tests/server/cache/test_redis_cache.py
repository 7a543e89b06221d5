"""The cache in Redis over HTTP: batches, foreign values, signatures, and a server that fails."""

import asyncio
import json
import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from rewardfleet_server.cache.entry import EntryFormat
from rewardfleet_server.cache.memory import MemoryCache
from rewardfleet_server.cache.redis import RedisCache
from rewardfleet_server.cache.sqlite import SqliteCache
from rewardfleet_server.code.app import create_app
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.testing import FakeSandbox, wait_until
from rewardfleet_server.up.settings import free_port

from ...conftest import Serve, client_of, table
from ...measure import Stopwatch
from ..conftest import RedisServer, cached_value
from ..http.test_requests import metric
from ..processes import service_process

#: The bytes in front of the JSON of an entry.
_HEADER = 49
#: The most commands for the 100 lookups of a batch: those that wait for one share the next.
FEW = 30
#: Starts one code service. Its sandbox echoes: programs pass if input and output are equal.
ServeCode = Callable[..., httpx.Client]


@pytest.fixture
def serve_code(redis_server: RedisServer) -> Iterator[ServeCode]:
    with ExitStack() as stack:

        def start(**settings: object) -> httpx.Client:
            given = {"cache_mb": 0, "cache": redis_server.url, **settings}
            app = create_app(CodeSettings(**given), FakeSandbox())
            return stack.enter_context(client_of(app))

        yield start


@pytest.fixture(autouse=True)
def long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the server until it answers, also on a busy machine."""
    monkeypatch.setattr("rewardfleet_server.cache.redis._SILENCE_SECONDS", 20.0)
    monkeypatch.setattr("rewardfleet_server.cache.redis._WAIT_SECONDS", 20.0)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "signing.key"
    file.write_text(secrets.token_hex(32) + "\n")
    return file


def item(number: int = 0, expected: str = "1", **fields: object) -> dict[str, Any]:
    cases = [{"stdin": "1", "stdout": expected}, {"stdin": "2", "stdout": "2"}]
    tests = {"kind": "stdio", "cases": cases}
    return {"revision": f"print({number})", "tests": tests, **fields}


def score(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    response = client.post("/score", json=item(**fields))
    assert response.status_code == 200, response.text
    return response.json()


def score_batch(client: httpx.Client, items: Sequence[Mapping[str, object]]) -> list[dict]:
    response = client.post("/score/batch", json={"items": items})
    assert response.status_code == 200, response.text
    return response.json()["results"]


def calls(server: RedisServer) -> dict[str, int]:
    """Return how often the server executed each command."""
    found = server.client.info("commandstats")
    return {name.removeprefix("cmdstat_"): stats["calls"] for name, stats in found.items()}


def stored_keys(server: RedisServer) -> list[bytes]:
    return sorted(server.client.keys("rewardfleet:*"))


def change(server: RedisServer, **fields: object) -> None:
    """Change fields of the stored scores, as somebody who can write to the server might."""
    for key in stored_keys(server):
        entry = server.client.get(key)
        stored = {**json.loads(entry[_HEADER:]), **fields}
        server.client.set(key, packed(key, json.dumps(stored).encode()))


def packed(key: bytes, value: bytes) -> bytes:
    """Return an entry with its checksum, which anybody can compute."""
    name = key.decode().removeprefix("rewardfleet:")
    return EntryFormat(None).pack(name, value, 1000.0)


def test_a_batch_is_looked_up_with_few_commands(serve_code: ServeCode, redis_server: RedisServer):
    client = serve_code()
    # In both modes; `all_pass` looks up two keys. Long programs are normalized in threads.
    long = "# a comment\n" * 300
    items = [item(n, mode="all_pass" if n % 2 else "pass_rate") for n in range(100)]
    items += [{**item(n), "revision": f"{long}print({n}, 2)"} for n in range(4)]
    redis_server.client.config_resetstat()
    assert not any(each["cached"] for each in score_batch(client, items))
    assert calls(redis_server)["mget"] <= FEW
    assert all(each["cached"] for each in score_batch(client, items))
    assert calls(redis_server)["mget"] <= 2 * FEW
    assert "get" not in calls(redis_server)
    redis_server.client.config_resetstat()
    assert score(client, number=1)["cached"], "in the other mode"
    assert calls(redis_server)["mget"] == 1
    assert redis_server.client.info("clients")["connected_clients"] == 2, "one besides the test's"


async def test_a_busy_event_loop_loses_no_entry_and_no_hit(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
):
    """The server answers at once; the event loop is busy for longer than a request waits."""
    monkeypatch.setattr("rewardfleet_server.cache.redis._WAIT_SECONDS", 0.1)
    cache = RedisCache(redis_server.url, memory=MemoryCache(0))
    round_trip, done = cache._round_trip, threading.Semaphore(0)

    def counted(trip: object) -> None:
        round_trip(trip)
        done.release()

    monkeypatch.setattr(cache, "_round_trip", counted)
    for command in (cache.put("a", b"1"), cached_value(cache, "a")):
        running = asyncio.create_task(command)
        for _ in range(2):  # it is sent in the turn after that of the command
            await asyncio.sleep(0)
        time.sleep(0.2)
        assert done.acquire(timeout=20)  # or longer, on a busy machine
        await cache.put("b", b"2")
        assert done.acquire(timeout=20)
        found = await running
    assert found == b"1"
    assert len(stored_keys(redis_server)) == 2
    await cache.aclose()


async def test_lookups_share_a_round_trip_and_one_that_is_cancelled_leaves_the_others(
    redis_server: RedisServer,
):
    cache = RedisCache(redis_server.url, memory=MemoryCache(0))
    await cache.put("a", b"1")
    redis_server.client.config_resetstat()
    lookups = [asyncio.create_task(cached_value(cache, key)) for key in ("b", *["a"] * 100)]
    await asyncio.sleep(0)
    lookups[0].cancel()
    assert await asyncio.gather(*lookups[1:]) == [b"1"] * 100
    assert calls(redis_server)["mget"] <= FEW
    await cache.aclose()


@pytest.mark.slow
def test_a_value_of_another_type_is_a_miss_and_is_replaced(
    serve_code: ServeCode, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
):
    client = serve_code()
    score(client, number=1)
    (other,) = stored_keys(redis_server)
    score(client, number=2)
    (key,) = set(stored_keys(redis_server)) - {other}
    both = [item(1), item(2)]
    for command in ("LPUSH x", "HSET x y", "SADD x", "ZADD 1 x", "XADD * x y"):
        name, *arguments = command.split()
        redis_server.client.delete(key)
        redis_server.client.execute_command(name, key, *arguments)
        assert [each["cached"] for each in score_batch(client, both)] == [True, False]
        assert [each["cached"] for each in score_batch(client, both)] == [True, True]
    assert "could not be used" not in caplog.text


def test_a_score_that_cannot_be_one_of_the_item_is_computed_again(
    serve_code: ServeCode, redis_server: RedisServer
):
    client = serve_code()
    first = score(client, expected="other")
    assert (first["score"], first["cached"]) == (0.5, False)
    for fields in table("forged_scores"):
        change(redis_server, **fields)
        again = score(client, expected="other")
        found = (again["score"], again["cached"], again["backend"])
        assert found == (0.5, False, first["backend"]), fields
        assert score(client, expected="other")["cached"], "it is stored again"


DAMAGED = [b"", b"c", b"s" * 100, b"c" * 100, b"{}", b"null", b"\xff" * 200]
#: Values with a valid checksum.
WRONG_VALUES = [b"", b"[" * 100_000, b'{"score": "\\ud800"}', b'{"score": 1e999, "status": "ok"}']


def test_damaged_entries_are_computed_again(serve_code: ServeCode, redis_server: RedisServer):
    client = serve_code()
    score(client)
    (key,) = stored_keys(redis_server)
    entries = [*DAMAGED, *(packed(key, value) for value in WRONG_VALUES)]
    for count, entry in enumerate(entries, 1):
        redis_server.client.set(key, entry)
        again = score(client)
        assert (again["score"], again["cached"]) == (1.0, False), entry[:50]
        assert score(client)["cached"], "it is stored again"
        assert metric(client, "rewardfleet_cache_damaged_entries_total") == count


def test_a_forged_score_of_a_video_is_computed_again(
    serve: Serve, redis_server: RedisServer, frames_request: dict[str, object]
):
    client = serve(cache_mb=0, cache=redis_server.url)
    assert client.post("/score", json=frames_request).json()["score"] == 1.0
    for fields in (
        {"score": 7.99},
        {"backend": "none"},
        {"curve": {"frames": [0], "values": [7.99]}},
        {"curve": {"frames": [-1], "values": [0.5]}},
        {"model_output": 5},
    ):
        change(redis_server, **fields)
        again = client.post("/score", json=frames_request)
        assert again.status_code == 200
        assert (again.json()["score"], again.json()["cached"]) == (1.0, False), fields


# Signatures


@pytest.mark.slow
def test_what_was_not_signed_with_the_key_is_computed_again(
    serve_code: ServeCode, redis_server: RedisServer, key_file: Path, tmp_path: Path
):
    """A forged score that the model allows: all tests accepted."""
    other_key = tmp_path / "other.key"
    other_key.write_text(secrets.token_hex(32))
    unsigned = serve_code()
    signed = serve_code(cache_signing_key_file=key_file)
    other = serve_code(cache_signing_key_file=other_key)
    score(unsigned, expected="other")
    accepted = [{"verdict": "accepted"}] * 2
    change(redis_server, verdicts=accepted, pass_rate=1.0, score=1.0)
    assert score(unsigned, expected="other")["score"] == 1.0, "without a key it is served"
    again = score(signed, expected="other")
    assert (again["score"], again["cached"]) == (0.5, False)
    assert score(serve_code(cache_signing_key_file=key_file), expected="other")["cached"]
    assert not score(other, expected="other")["cached"]
    assert not score(unsigned, expected="other")["cached"]


@pytest.mark.parametrize("is_signed", [True, False])
def test_every_byte_of_an_entry_and_its_key_are_checked(
    serve_code: ServeCode, redis_server: RedisServer, key_file: Path, is_signed: bool
):
    client = serve_code(cache_signing_key_file=key_file if is_signed else None)
    score(client, number=1)
    (key,) = stored_keys(redis_server)
    entry = redis_server.client.get(key)
    # Its kind, its signature or checksum, its times, and the first and last byte of its value.
    for position in (0, 1, 32, 33, 40, 41, 48, 49, len(entry) - 1):
        changed = bytearray(entry)
        changed[position] ^= 1
        redis_server.client.set(key, bytes(changed))
        assert not score(client, number=1)["cached"], position
    assert score(client, number=1)["cached"]
    score(client, number=2)
    (other,) = set(stored_keys(redis_server)) - {key}
    redis_server.client.set(other, entry)
    assert not score(client, number=2)["cached"], "of another program"


def test_expired_signed_entries_are_not_accepted_again():
    entries = EntryFormat(b"k" * 32)
    entry = entries.pack("key", b"value", -1)
    assert entries.unpack("key", entry) is None
    later = entries.pack("key", b"value", 100)
    assert entries.unpack("key", later)[0] == b"value"
    assert entries.unpack("key", entry[:33] + later[33:]) is None
    assert entries.unpack("ke", later) is None


@pytest.mark.parametrize(
    ("ahead_s", "remaining_s"),
    [(0, 100), (50, 50), (101, None), (10**9, None), (-50, 100), (-101, None), (-(10**9), None)],
)
def test_an_entry_lives_for_its_time_although_clocks_differ(
    monkeypatch: pytest.MonkeyPatch, ahead_s: float, remaining_s: float | None
):
    """A reader whose clock is far from that of the writer does not know how old an entry is."""
    entries, now = EntryFormat(None), time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    entry, unlimited = (entries.pack("key", b"value", ttl_s) for ttl_s in (100, math.inf))
    monkeypatch.setattr(time, "time", lambda: now + ahead_s)
    found = entries.unpack("key", entry)
    assert (found and found[1]) == (remaining_s and pytest.approx(remaining_s))
    assert entries.unpack("key", unlimited) == (b"value", math.inf)


def test_the_service_and_the_version_of_scores_are_part_of_the_key(
    serve_code: ServeCode, redis_server: RedisServer
):
    score(serve_code())
    (key,) = stored_keys(redis_server)
    _, service, version, digest, _ = key.decode().split(":")
    assert service == "code"
    assert (len(version), len(digest)) == (12, 64)


async def test_entries_of_a_file_are_signed_too(tmp_path: Path):
    def cache(signing_key: bytes | None) -> SqliteCache:
        return SqliteCache(
            tmp_path / "cache.sqlite",
            max_bytes=10**6,
            memory=MemoryCache(0),
            entry_format=EntryFormat(signing_key),
        )

    signed, same, other = cache(b"k" * 32), cache(b"k" * 32), cache(None)
    await signed.put("a", b"1")
    found = [await cached_value(each, "a") for each in (signed, same, other)]
    assert found == [b"1", b"1", None]
    for each in (signed, same, other):
        await each.aclose()


@pytest.mark.parametrize(("content", "reason"), table("unsuitable_signing_keys"))
def test_an_unsuitable_signing_key_prevents_the_start(
    tmp_path: Path, serve_code: ServeCode, content: str, reason: str
):
    api_keys, file = tmp_path / "api.keys", tmp_path / "signing.key"
    api_keys.write_text("# keys\nfirst\nthe-api-key\n")
    file.write_text(content)
    with pytest.raises(ValueError, match=f"cache_signing_key_file .*: {reason}"):
        serve_code(cache_signing_key_file=file, api_key_file=api_keys)


def test_a_short_signing_key_is_reported(
    tmp_path: Path, serve_code: ServeCode, caplog: pytest.LogCaptureFixture
):
    file = tmp_path / "signing.key"
    file.write_text("short")
    serve_code(cache_signing_key_file=file)
    assert "the key is short" in caplog.text


# A server that fails


def test_a_server_that_cannot_be_used_is_reported_at_the_start(
    serve_code: ServeCode, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
):
    """It is unreachable, has a password, or gives the user too few permissions: two commands."""
    url = f"redis://user:secret-word@127.0.0.1:{free_port()}/0"
    assert score(serve_code(cache=url))["score"] == 1.0
    (first, *_) = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert first.startswith("--cache redis://***@127.0.0.1:")
    assert first.endswith("the shared cache is bypassed until it can be used: Connection refused")
    redis_server.client.config_set("requirepass", "right")
    try:
        assert score(serve_code())["score"] == 1.0
    finally:
        redis_server.client.config_set("requirepass", "")
    assert "the shared cache is bypassed until it can be used: Auth" in caplog.text
    url = redis_server.url.replace("//", "//limited:secret-word@")
    grant = partial(
        redis_server.client.acl_setuser, "limited", True, passwords=["+secret-word"], reset=True
    )
    grant(commands=["+set"], keys=["rewardfleet:*"])
    assert score(serve_code(cache=url))["score"] == 1.0
    assert "the shared cache is bypassed until it can be used: NoPermission" in caplog.text
    assert "secret" not in caplog.text
    caplog.clear()
    grant(commands=["+set", "+mget"], keys=["rewardfleet:*"])
    client = serve_code(cache=url)
    assert [score(client)["cached"] for _ in range(2)] == [False, True]
    assert "the shared cache" not in caplog.text
    redis_server.client.acl_deluser("limited")


def test_a_full_server_still_answers_lookups(
    serve_code: ServeCode, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
):
    client = serve_code()
    score(client, number=1)
    redis_server.client.config_set("maxmemory", "1")
    try:
        results = [score_batch(client, [item(1), item(2)]) for _ in range(2)]
        assert [[each["cached"] for each in batch] for batch in results] == [[True, False]] * 2
    finally:
        redis_server.client.config_set("maxmemory", "0")
    assert caplog.text.count("the shared cache stores nothing: OutOfMemoryError: command") == 1
    assert not score(client, number=2)["cached"]
    assert score(client, number=2)["cached"]


@pytest.mark.slow
def test_a_server_that_was_restarted_is_used_at_once(
    serve_code: ServeCode, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
):
    client = serve_code()
    score(client)
    redis_server.stop()
    redis_server.start()
    assert score(client)["cached"]
    assert "could not be used" not in caplog.text


@pytest.mark.slow
def test_a_frozen_server_delays_one_lookup_and_is_used_again(
    serve_code: ServeCode, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("rewardfleet_server.cache.redis._SILENCE_SECONDS", 0.4)
    monkeypatch.setattr("rewardfleet_server.cache.redis._WAIT_SECONDS", 0.5)
    client = serve_code()
    items = [item(number) for number in range(256)]
    score_batch(client, items)
    redis_server.freeze()
    try:
        watch = Stopwatch()
        assert len(score_batch(client, items)) == 256
        first = watch.seconds
        watch = Stopwatch()
        results = score_batch(client, items)
        second = watch.seconds
    finally:
        redis_server.thaw()
    assert {each["score"] for each in results} == {1.0}
    assert not any(each["cached"] for each in results)
    assert max(first, second) < 30, "one waits for the server, and not each of 256"
    deadline = time.monotonic() + 60
    while not all(each["cached"] for each in score_batch(client, items)):
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.slow
def test_no_score_is_wrong_while_the_server_is_flushed_and_connections_are_killed(
    redis_server: RedisServer,
):
    """With a real process and real jails."""
    url = redis_server.url
    # Every second program passes one of its two tests.
    items = [item(number, expected="1" if number % 2 else "other") for number in range(40)]
    for number, each in enumerate(items):
        each["revision"] = f"number = {number}\nprint(input())"
    expected = [0.5, 1.0] * 20
    done = threading.Event()
    arguments = ["--cache", url, "--set", "cache_mb=0", "--workers", "2"]
    with service_process("code", *arguments) as (_, service), ThreadPoolExecutor(4) as pool:
        client = httpx.Client(base_url=service, trust_env=False, timeout=120)

        def call() -> list[list[dict]]:
            found = []
            while not done.is_set():
                found.append(score_batch(client, items))
            return found

        callers = [pool.submit(call) for _ in range(4)]
        for number in range(20):
            redis_server.client.client_kill_filter(_type="normal", skipme=True)
            if number % 5 == 0:
                redis_server.client.flushall()
            time.sleep(0.1)
        done.set()
        batches = [batch for caller in callers for batch in caller.result()]
        wait_until(lambda: all(each["cached"] for each in score_batch(client, items)), 100)
        client.close()
    assert len(batches) >= 4
    assert all([each["score"] for each in batch] == expected for batch in batches)
