"""What is remembered of a training run is changed once for each (run, step, uid)."""

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import JsonValue

from rewardfleet.wire.errors import InvalidRequest, Unavailable
from rewardfleet_server.runstate import SqliteRunState


def add_one(state: JsonValue) -> tuple[JsonValue, JsonValue]:
    count = (state or 0) + 1
    return count, {"count": count}


async def test_a_change_sent_again_gets_its_first_answer(tmp_path: Path):
    store = SqliteRunState(tmp_path / "runs.sqlite")
    first = await store.apply("run", 1, "a", add_one)
    again = await store.apply("run", 1, "a", add_one)
    other = await store.apply("run", 1, "b", add_one)
    assert (first, again, other) == ({"count": 1}, {"count": 1}, {"count": 2})
    assert await store.read("run") == 2
    assert await store.read("another run") is None
    await store.aclose()


async def test_it_outlives_the_process(tmp_path: Path):
    store = SqliteRunState(tmp_path / "runs.sqlite")
    await store.apply("run", 1, "a", add_one)
    await store.aclose()
    store = SqliteRunState(tmp_path / "runs.sqlite")
    assert await store.apply("run", 1, "a", add_one) == {"count": 1}
    assert await store.apply("run", 2, "a", add_one) == {"count": 2}
    await store.aclose()


async def test_a_change_that_fails_changes_nothing(tmp_path: Path):
    store = SqliteRunState(tmp_path / "runs.sqlite")

    def fail(state: JsonValue) -> tuple[JsonValue, JsonValue]:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await store.apply("run", 1, "a", fail)
    with pytest.raises(ValueError, match="JSON"):
        await store.apply("run", 1, "a", lambda _: (float("nan"), None))
    assert await store.apply("run", 1, "a", add_one) == {"count": 1}
    await store.aclose()


async def test_steps_too_old_to_be_known_are_refused_not_made_twice(tmp_path: Path):
    store = SqliteRunState(tmp_path / "runs.sqlite", keep_steps=10)
    for step in range(100):
        await store.apply("run", step, "a", add_one)
    assert await store.apply("run", 95, "a", add_one) == {"count": 96}
    with pytest.raises(InvalidRequest, match="step 5 is too old"):
        await store.apply("run", 5, "a", add_one)
    assert await store.read("run") == 100
    await store.aclose()


@pytest.mark.slow
async def test_processes_share_a_file_without_losing_a_change(tmp_path: Path):
    path = tmp_path / "runs.sqlite"
    program = f"""
import asyncio, sys
from pathlib import Path
from rewardfleet_server.runstate import SqliteRunState
def add_one(state):
    return (state or 0) + 1, None
async def main():
    store = SqliteRunState(Path({str(path)!r}))
    for step in range(100):
        await store.apply("run", step, sys.argv[1], add_one)
    await store.aclose()
asyncio.run(main())
"""
    workers = [subprocess.Popen([sys.executable, "-c", program, str(i)]) for i in range(3)]
    assert [worker.wait(60) for worker in workers] == [0, 0, 0]
    store = SqliteRunState(path)
    assert await store.read("run") == 300
    await store.aclose()


def test_a_damaged_file_is_refused_not_replaced(tmp_path: Path):
    """To go on with an empty memory would give wrong rewards."""
    path = tmp_path / "runs.sqlite"
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises(Unavailable, match="restore it"):
        SqliteRunState(path)
    assert path.read_bytes().startswith(b"this is no database")
