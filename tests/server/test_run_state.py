"""The run-state store: a transition is applied once for (scope, step, uid)."""

import asyncio
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import JsonValue

from rewardfleet.wire.errors import InvalidRequest, Unavailable
from rewardfleet_server.run_state import Scope, SqliteRunState

SCOPE = Scope("run", "count")


def add_one(state: JsonValue) -> tuple[JsonValue, JsonValue]:
    count = (state or 0) + 1
    return count, {"count": count}


async def test_a_repeated_transition_gets_its_first_outcome(tmp_path: Path):
    store = SqliteRunState(tmp_path / "runs.sqlite")
    first = await store.apply_once(SCOPE, 1, "a", add_one)
    again = await store.apply_once(SCOPE, 1, "a", add_one)
    other = await store.apply_once(SCOPE, 1, "b", add_one)
    assert (first, again, other) == ({"count": 1}, {"count": 1}, {"count": 2})
    assert await store.read(SCOPE) == 2
    assert await store.read(Scope("another run", "count")) is None
    await store.aclose()


async def test_state_outlives_the_process(tmp_path: Path):
    store = SqliteRunState(tmp_path / "runs.sqlite")
    await store.apply_once(SCOPE, 1, "a", add_one)
    await store.aclose()
    store = SqliteRunState(tmp_path / "runs.sqlite")
    assert await store.apply_once(SCOPE, 1, "a", add_one) == {"count": 1}
    assert await store.apply_once(SCOPE, 2, "a", add_one) == {"count": 2}
    await store.aclose()


async def test_a_transition_that_raises_changes_nothing(tmp_path: Path):
    store = SqliteRunState(tmp_path / "runs.sqlite")

    def fail(state: JsonValue) -> tuple[JsonValue, JsonValue]:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await store.apply_once(SCOPE, 1, "a", fail)
    with pytest.raises(ValueError, match="JSON"):
        await store.apply_once(SCOPE, 1, "a", lambda _: (float("nan"), None))
    assert await store.apply_once(SCOPE, 1, "a", add_one) == {"count": 1}
    await store.aclose()


async def test_steps_too_old_to_be_known_are_refused_and_not_applied_twice(tmp_path: Path):
    store = SqliteRunState(tmp_path / "runs.sqlite")
    for step in range(100):
        await store.apply_once(SCOPE, step, "a", add_one, keep_steps=10)
    assert await store.apply_once(SCOPE, 95, "a", add_one, keep_steps=10) == {"count": 96}
    with pytest.raises(InvalidRequest, match="step 5 is too old"):
        await store.apply_once(SCOPE, 5, "a", add_one, keep_steps=10)
    assert await store.read(SCOPE) == 100
    await store.aclose()


@pytest.mark.slow
async def test_processes_share_a_file_without_losing_a_transition(tmp_path: Path):
    path = tmp_path / "runs.sqlite"
    program = f"""
import asyncio, sys
from pathlib import Path
from rewardfleet_server.run_state import Scope, SqliteRunState
SCOPE = Scope("run", "count")
def add_one(state):
    return (state or 0) + 1, None
async def main():
    store = SqliteRunState(Path({str(path)!r}))
    for step in range(100):
        await store.apply_once(SCOPE, step, sys.argv[1], add_one)
    await store.aclose()
asyncio.run(main())
"""
    workers = [subprocess.Popen([sys.executable, "-c", program, str(i)]) for i in range(3)]
    assert [worker.wait(60) for worker in workers] == [0, 0, 0]
    store = SqliteRunState(path)
    assert await store.read(SCOPE) == 300
    await store.aclose()


def test_a_damaged_file_is_refused_and_not_replaced(tmp_path: Path):
    """Continuing with an empty state would produce wrong rewards."""
    path = tmp_path / "runs.sqlite"
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises(Unavailable, match="restore it"):
        SqliteRunState(path)
    assert path.read_bytes().startswith(b"this is no database")


async def test_scopes_of_a_run_are_separate_and_outcomes_can_be_read(tmp_path: Path):
    store = SqliteRunState(tmp_path / "runs.sqlite")
    other = Scope("run", "other")
    await store.apply_once(SCOPE, 1, "a", add_one)
    assert await store.outcome(SCOPE, 1, "a") == {"count": 1}
    assert await store.outcome(SCOPE, 2, "a") is None
    assert await store.outcome(other, 1, "a") is None
    assert await store.read(other) is None
    await store.aclose()


async def test_reading_does_not_wait_for_a_writer(tmp_path: Path):
    path = tmp_path / "runs.sqlite"
    store = SqliteRunState(path)
    await store.apply_once(SCOPE, 1, "a", add_one)
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    async with asyncio.timeout(1):
        assert await store.read(SCOPE) == 1
        assert await store.outcome(SCOPE, 1, "a") == {"count": 1}
    writer.close()
    await store.aclose()
