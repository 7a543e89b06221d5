"""The run-state store: a transition is applied once for (scope, step, uid)."""

import asyncio
import math
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
from pydantic import JsonValue

from rewardfleet.wire.errors import InvalidRequest, Unavailable
from rewardfleet_server.run_state import RunState, Scope, open_run_state
from rewardfleet_server.run_state import redis as redis_state
from rewardfleet_server.run_state.groups import Group, GroupKey, add_to_group
from rewardfleet_server.run_state.redis import RedisStore
from rewardfleet_server.run_state.settings import RunStateSettings
from rewardfleet_server.run_state.sqlite import SqliteStore

from ...conftest import table
from ...measure import Stopwatch
from ..conftest import RedisServer

pytestmark = pytest.mark.usefixtures("patient")

OpenStore = Callable[[], RunState]

SCOPE = Scope("run {1}", "count")


def add_one(state: JsonValue) -> tuple[JsonValue, JsonValue]:
    count = (state or 0) + 1
    return count, {"count": count}


async def outcome(store: RunState, scope: Scope, step: int, uid: str) -> JsonValue:
    """Return the stored outcome of a transition; None if it was not applied."""

    def fail(_: JsonValue) -> tuple[JsonValue, JsonValue]:
        raise LookupError

    try:
        return await store.apply_once(scope, step, uid, fail)
    except LookupError:
        return None


def open_file(path: Path) -> RunState:
    return RunState(SqliteStore(path))


@pytest.fixture
def settings(run_state: str) -> RunStateSettings:
    return RunStateSettings(run_state=run_state)


@pytest.fixture
async def open_store(settings: RunStateSettings) -> AsyncIterator[OpenStore]:
    """Open the same store any number of times; each is closed with the test."""
    stores = []

    def opened() -> RunState:
        stores.append(open_run_state(settings))
        return stores[-1]

    yield opened
    for store in stores:
        await store.aclose()


@pytest.fixture
async def redis_store(redis_server: RedisServer) -> AsyncIterator[RunState]:
    store = RunState(RedisStore(redis_server.url))
    yield store
    await store.aclose()


# Every store


async def test_an_update_belongs_to_no_step_and_may_forget_the_outcomes(open_store: OpenStore):
    store = open_store()
    for step in range(3):
        await store.apply_once(SCOPE, step, "a", add_one)
    other = Scope(SCOPE.run, "other")
    await store.apply_once(other, 0, "a", add_one)
    assert await store.update(SCOPE, lambda state: (state * 10, "times ten")) == "times ten"
    assert await store.read(SCOPE) == 30
    assert await store.apply_once(SCOPE, 2, "a", add_one) == {"count": 3}

    # A checkpoint is restored: steps 1 and 2 are counted again, and an old step is not refused.
    assert await store.update(SCOPE, lambda _: (1, None), restored_step=0) is None
    assert await outcome(store, SCOPE, 2, "a") is None
    assert await store.apply_once(SCOPE, 1, "a", add_one) == {"count": 2}
    assert await outcome(store, other, 0, "a") == {"count": 1}


async def test_what_fails_changes_nothing(open_store: OpenStore):
    store = open_store()
    await store.apply_once(SCOPE, 1, "a", add_one)

    def fail(_: JsonValue) -> tuple[JsonValue, JsonValue]:
        raise InvalidRequest("no")

    for change, message in ((fail, "no"), (lambda _: (float("nan"), None), "JSON")):
        for call in (
            store.update(SCOPE, change, restored_step=0),
            store.apply_once(SCOPE, 1, "b", change),
            store.apply_once(SCOPE, 2, "a", change),
        ):
            with pytest.raises((InvalidRequest, ValueError), match=message):
                await call
    assert await store.read(SCOPE) == 1
    assert await outcome(store, SCOPE, 1, "a") == {"count": 1}
    assert await store.apply_once(SCOPE, 1, "b", add_one) == {"count": 2}


@pytest.mark.slow
async def test_processes_lose_no_transition_and_count_none_twice(
    settings: RunStateSettings, open_store: OpenStore
):
    """Every process sends its own transitions and those that all send, in many tasks."""
    program = f"""
import asyncio, sys
from rewardfleet_server.run_state import Scope, open_run_state
from rewardfleet_server.run_state import redis, sqlite
from rewardfleet_server.run_state.settings import RunStateSettings
redis._COMMAND_SECONDS = redis.BUSY_SECONDS = sqlite.BUSY_SECONDS = 60.0  # on a busy machine
SCOPE = Scope{tuple(SCOPE[:2])!r}
def add_one(state):
    return (state or 0) + 1, None
async def main():
    store = open_run_state(RunStateSettings.model_validate_json({settings.model_dump_json()!r}))
    async def send(task):
        for step in range(10):
            for uid in ("all", sys.argv[1]):
                await store.apply_once(SCOPE, step, uid + str(task % 4), add_one)
    await asyncio.gather(*map(send, range(8)))
    await store.aclose()
asyncio.run(main())
"""
    workers = [subprocess.Popen([sys.executable, "-c", program, f"p{i}-"]) for i in range(2)]
    assert [worker.wait(150) for worker in workers] == [0, 0]
    assert await open_store().read(SCOPE) == 10 * 4 * (1 + len(workers))


# SQLite


async def test_reading_does_not_wait_for_a_writer(tmp_path: Path):
    path = tmp_path / "runs.sqlite"
    store = open_file(path)
    await store.apply_once(SCOPE, 1, "a", add_one)
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    async with asyncio.timeout(20):  # the writer's lock would delay it for 60 s
        assert await store.read(SCOPE) == 1
        assert await outcome(store, SCOPE, 1, "a") == {"count": 1}
    writer.close()
    await store.aclose()


# Redis


PREFIX = "rewardfleet:run-state:"
RUN, STEP = (f'{PREFIX}["run {{1}}"{part}]' for part in ("", ',"count",1'))
KEYS = [RUN, STEP, f"{PREFIX}runs", f"{PREFIX}clock 2"]


@pytest.mark.parametrize(
    "damage",
    [
        *table("damages_of_values"),
        ["HSET", RUN, "count", b"\xff"],
        ["HSET", RUN, "count", "[" * 100_000],
    ],
    ids=lambda damage: " ".join(map(str, damage)).replace(PREFIX, "")[:40],
)
async def test_damaged_values_are_an_error_and_are_not_overwritten(
    redis_server: RedisServer, damage: list[str | bytes]
):
    """Whether this process has just seen them, or another one finds them."""
    stores = [RunState(RedisStore(redis_server.url)) for _ in range(2)]
    await stores[0].apply_once(SCOPE, 1, "a", add_one)
    redis_server.client.delete(damage[1] if damage[0] == "SET" else "")
    redis_server.client.execute_command(*damage)
    before = [redis_server.client.dump(key) for key in KEYS]
    for store in stores:
        for _ in range(2):
            with pytest.raises(Unavailable, match=r"run 'run \{1\}' \(count\) is damaged"):
                await store.apply_once(SCOPE, 1, "b", add_one)
        await store.aclose()
    assert [redis_server.client.dump(key) for key in KEYS] == before


async def test_keys_of_a_run_do_not_expire_and_old_outcomes_are_deleted(
    redis_server: RedisServer, redis_store: RunState
):
    for step in range(50):
        for uid in "ab":
            await redis_store.apply_once(SCOPE, step, uid, add_one, keep_steps=10)
    assert len(redis_server.client.keys('*"count",*')) == 11
    assert {redis_server.client.ttl(key) for key in redis_server.client.scan_iter()} == {-1}


async def test_a_caller_that_waits_no_longer_does_not_end_those_of_others(redis_store: RunState):
    """Calls of one run that arrive while another one is executed are committed together."""
    for cancelled in (0, 3):
        scope = Scope(f"run {cancelled}", "count")
        calls = [
            asyncio.create_task(redis_store.apply_once(scope, 1, str(number), add_one))
            for number in range(6)
        ]
        await asyncio.sleep(0)  # all wait now
        calls[cancelled].cancel()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(outcomes.pop(cancelled), asyncio.CancelledError)
        assert len({outcome["count"] for outcome in outcomes}) == 5
        assert await redis_store.read(scope) in {5, 6}


async def test_a_call_that_fails_does_not_change_what_is_committed_with_it(redis_store: RunState):
    def fail(state: JsonValue) -> tuple[JsonValue, JsonValue]:
        raise InvalidRequest("no")

    transitions = [add_one, fail, add_one, fail, add_one]
    outcomes = await asyncio.gather(
        *(redis_store.apply_once(SCOPE, 1, str(n), each) for n, each in enumerate(transitions)),
        return_exceptions=True,
    )
    assert [type(each) for each in outcomes] == [dict, InvalidRequest] * 2 + [dict]
    assert await redis_store.read(SCOPE) == 3
    assert await outcome(redis_store, SCOPE, 1, "1") is None


@pytest.mark.slow
async def test_more_calls_at_once_than_connections(redis_store: RunState):
    scopes = [Scope(f"run {number}", "count") for number in range(300)]
    await asyncio.gather(*(redis_store.apply_once(scope, 1, "a", add_one) for scope in scopes))
    assert await asyncio.gather(*map(redis_store.read, scopes)) == [1] * 300
    await redis_store._pruning
    assert not redis_store._store._waiting, "queues do not accumulate"


async def test_a_transition_whose_response_was_lost_is_found_by_the_next_call(
    redis_server: RedisServer, redis_store: RunState
):
    """A proxy passes the script on and closes the connection before the response."""
    forwarding = set[asyncio.Task[None]]()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        forwarding.add(asyncio.current_task())
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", redis_server.port)
        while data := await reader.read(2**16):
            server_writer.write(data)
            response = await server_reader.read(2**16)
            if b"count steps" in data and b'{"count' in data:  # it writes
                break
            writer.write(response)
        for each in (server_writer, writer):
            each.close()
            await each.wait_closed()

    async with await asyncio.start_server(forward, "127.0.0.1", 0) as proxy:
        port = proxy.sockets[0].getsockname()[1]
        store = RunState(RedisStore(redis_server.url))
        store._store._redis.connection_pool.connection_kwargs["port"] = port
        store._prune_at = math.inf  # no connection in the background, which may come late
        with pytest.raises(Unavailable):
            await store.apply_once(SCOPE, 1, "a", add_one)
        await store.aclose()
        await asyncio.wait(forwarding)
    assert await redis_store.read(SCOPE) == 1, "the script was executed"
    assert await redis_store.apply_once(SCOPE, 1, "a", add_one) == {"count": 1}
    assert await redis_store.read(SCOPE) == 1


@pytest.mark.slow
async def test_a_redis_that_is_down_is_a_warning_at_start_and_an_error_of_calls(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    with RedisServer(tmp_path) as server:
        server.stop()
        store = open_run_state(RunStateSettings(run_state=server.url))
        async with store.opened():
            pass
        assert "fail for now: run state cannot be used now: Redis: ConnectionError" in caplog.text
        for call in (
            store.read(SCOPE),
            store.apply_once(SCOPE, 1, "a", add_one),
            store.update(SCOPE, add_one),
        ):
            with pytest.raises(Unavailable, match="run state cannot be used now") as failure:
                await call
            assert failure.value.retryable and failure.value.retry_after == 1
        server.start()
        assert await store.apply_once(SCOPE, 1, "a", add_one) == {"count": 1}
        scopes = [Scope(f"run {number}", "count") for number in range(20)]
        assert await asyncio.gather(*map(store.read, scopes)) == [None] * 20
        server.stop()
        server.start()  # all connections of the pool are closed
        await asyncio.gather(*(store.apply_once(scope, 1, "a", add_one) for scope in scopes))
        assert await asyncio.gather(*map(store.read, scopes)) == [1] * 20
        assert await store.apply_once(SCOPE, 2, "a", add_one) == {"count": 2}
        await store.aclose()


async def test_a_server_without_memory_refuses_a_transition_and_changes_nothing(
    redis_server: RedisServer, redis_store: RunState
):
    await redis_store.apply_once(SCOPE, 1, "a", add_one)
    redis_server.client.config_set("maxmemory", 1)
    try:
        with pytest.raises(Unavailable):
            await redis_store.apply_once(SCOPE, 2, "a", add_one)
    finally:
        redis_server.client.config_set("maxmemory", 0)
    assert await outcome(redis_store, SCOPE, 2, "a") is None
    assert await redis_store.read(SCOPE) == 1


@pytest.mark.slow
async def test_a_frozen_redis_delays_no_call_for_long(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(redis_state, "_COMMAND_SECONDS", 4.0)
    monkeypatch.setattr(redis_state, "BUSY_SECONDS", 10.0)
    redis_store = RunState(RedisStore(redis_server.url))
    await redis_store.apply_once(SCOPE, 1, "a", add_one)
    redis_server.freeze()
    try:
        watch = Stopwatch()
        calls = [redis_store.apply_once(SCOPE, 2, str(n), add_one) for n in range(100)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        elapsed_s = watch.seconds
    finally:
        redis_server.thaw()
    assert {type(outcome) for outcome in outcomes} == {Unavailable}
    assert elapsed_s < 25
    assert await redis_store.apply_once(SCOPE, 1, "a", add_one) == {"count": 1}
    # The one that was sent when it froze may be executed now; others were not sent.
    assert await redis_store.read(SCOPE) in {1, 2}
    await redis_store.aclose()


async def test_messages_contain_no_password(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
):
    url = redis_server.url.replace("//", "//user:s3cret@")
    store = open_run_state(RunStateSettings(run_state=url))
    with pytest.raises(Unavailable) as failure:
        await store.read(SCOPE)
    await store.aclose()
    assert "cannot be used" in failure.value.detail
    assert "AuthenticationError" in failure.value.detail
    with pytest.raises(ValueError, match=r"--run-state ftp://\*\*\*@host: give a URL") as invalid:
        open_run_state(RunStateSettings(run_state="ftp://user:s3cret@host"))
    assert "s3cret" not in caplog.text + failure.value.detail + str(invalid.value)


# Settings


def test_replicas_without_a_shared_store_are_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="--replicas 2: replicas must share the state"):
        RunStateSettings(replicas=2)
    assert RunStateSettings(replicas=1).replicas == 1
    RunStateSettings(replicas=2, run_state="redis://127.0.0.1")
    RunStateSettings(replicas=2, run_state=tmp_path / "runs.sqlite")


def test_a_missing_package_is_named_with_its_installation(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ValueError, match="--run-state .* needs redis, not installed here: .*"):
        open_run_state(RunStateSettings(run_state="redis://127.0.0.1"))


async def test_a_group_is_released_at_once_while_redis_moves_its_members(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
):
    """A hash that became larger shortly before gives its fields in another order each time."""
    state = open_run_state(RunStateSettings(run_state=redis_server.url))
    scripts = []
    evaluate = state._store._redis.eval
    monkeypatch.setattr(
        state._store._redis, "eval", lambda *given: scripts.append(given) or evaluate(*given)
    )
    key, pad = GroupKey("run", 1, "group"), "x" * 80  # long values are in a table at once
    for number in range(129):
        scripts.clear()
        new = Group(size=129, options=None, left_s=60.0)
        value = {"pad": pad, "number": number}
        group, *_ = await add_to_group(state, key, str(number), value, new, score=_score)
    assert group.missing == 0 and len(scripts) <= 3
    await state.aclose()


def _score(_: Group, values: Sequence[JsonValue]) -> tuple[Sequence[JsonValue], JsonValue, None]:
    return [*values], None, None
