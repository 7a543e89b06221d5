"""Damaged run-state files are refused, old runs are deleted, and stray steps do no harm."""

import asyncio
import itertools
import os
import random
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, JsonValue, Strict, TypeAdapter

from rewardfleet.wire.errors import InvalidRequest, Unavailable
from rewardfleet_server.run_state import Group, GroupKey, RunState, Scope, Shape, open_run_state
from rewardfleet_server.run_state import state as state_module
from rewardfleet_server.run_state.groups import add_to_group
from rewardfleet_server.run_state.redis import RedisStore
from rewardfleet_server.run_state.settings import RunStateSettings
from rewardfleet_server.run_state.values import contains, including

from ...conftest import table
from ..conftest import RedisServer
from .test_state import SCOPE, OpenStore, add_one, open_file, open_store, outcome, settings

__all__ = ["open_store", "settings"]  # fixtures

pytestmark = pytest.mark.usefixtures("patient")

STRAY = 2**53


def score(_: Group, members: Sequence[JsonValue]) -> tuple[list[JsonValue], JsonValue, list]:
    """Return the rank of each member, the size, and the members for the call that releases them."""
    return list(range(1, len(members) + 1)), {"size": len(members)}, list(members)


async def add(
    store: RunState, key: GroupKey, uid: str = "a", size: int = 3, wait_s: float = 60.0
) -> tuple[Group, JsonValue, list | None]:
    new = Group(size=size, options={"b": 1, "a": 2}, left_s=wait_s)
    return await add_to_group(store, key, uid, {"uid": uid}, new, score=score)


async def arrived(store: RunState, key: GroupKey, uid: str = "a", size: int = 3) -> int:
    group, _, _ = await add(store, key, uid, size)
    return group.arrived


# Steps


def test_ranges_hold_the_steps_that_were_added_and_few_others():
    generator = random.Random(0)
    ranges, added = [], set()
    for _ in range(500):
        step = generator.randrange(0, 300)
        ranges = including(ranges, step)
        added.add(step)
        assert len(ranges) <= 64
        assert [end for each in ranges for end in each] == sorted(e for r in ranges for e in r)
        assert all(contains(ranges, each) for each in added)
    dense = including(including([], 5), 7)
    assert [contains(dense, step) for step in (4, 5, 6, 7, 8)] == [False, True, False, True, False]


def test_many_ranges_are_joined_where_they_are_nearest():
    ranges = [(STRAY, STRAY)]
    for step in range(0, 200_000, 1000):
        ranges = including(ranges, step)
    assert len(ranges) == 64
    assert not contains(ranges, 200_000) and not contains(ranges, STRAY - 1)


@pytest.mark.parametrize("when", ["first", "later"])
async def test_a_stray_step_does_not_refuse_the_steps_of_a_run(open_store: OpenStore, when: str):
    store = open_store()
    steps = [STRAY, *range(30)] if when == "first" else [*range(15), STRAY, *range(15, 30)]
    for step in steps:
        await store.apply_once(SCOPE, step, "a", add_one, keep_steps=10)
    assert await store.apply_once(SCOPE, 29, "a", add_one, keep_steps=10) == {"count": 31}
    for deleted in (0, STRAY):
        with pytest.raises(InvalidRequest, match="too old"):
            await store.apply_once(SCOPE, deleted, "a", add_one, keep_steps=10)
    assert await store.read(SCOPE) == 31


# Groups


async def test_a_group_that_cannot_be_scored_stays_as_it_was(open_store: OpenStore):
    store, key = open_store(), GroupKey("r", 1, "g")
    await add(store, key, "b", size=2)

    def fail(*_: Any) -> tuple[list[JsonValue], JsonValue, None]:
        raise InvalidRequest("too long to compare")

    new = Group(size=2, options={"b": 1, "a": 2}, left_s=60)
    with pytest.raises(InvalidRequest, match="too long"):
        await add_to_group(store, key, "a", {"uid": "a"}, new, score=fail)
    assert await arrived(store, key, "b", size=2) == 1


async def test_groups_of_old_steps_are_deleted_and_refused(open_store: OpenStore):
    store = open_store()
    for step in (STRAY, *range(20)):
        await add(store, GroupKey("r", step, "g"))
    for step in (STRAY, 0, 3):
        with pytest.raises(InvalidRequest, match="too old"):
            await add(store, GroupKey("r", step, "g"))
    assert await arrived(store, GroupKey("r", 4, "g")) == 1


async def test_members_that_arrive_together_are_accepted_up_to_the_size(open_store: OpenStore):
    stores = [open_store(), open_store()]
    key = GroupKey("r", 1, "g")
    outcomes = await asyncio.gather(
        *(add(stores[n % 2], key, str(n), size=4) for n in range(20)), return_exceptions=True
    )
    refused = [each for each in outcomes if isinstance(each, InvalidRequest)]
    added = [each for each in outcomes if not isinstance(each, Exception)]
    assert (len(refused), sorted(group.arrived for group, *_ in added)) == (16, [1, 2, 3, 4])
    assert [len(members) for *_, members in added if members is not None] == [4]


@pytest.mark.slow
async def test_abandoned_runs_are_deleted_and_others_stay(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(state_module, "_MAX_AGE_SECONDS", 4.0)
    monkeypatch.setattr(state_module, "_INTERVAL_SECONDS", 0.4)
    store, old, active = open_store(), Scope("old", "count"), Scope("active", "count")
    for run in ("old", "active"):
        await add(store, GroupKey(run, 1, "g"))
    await store.apply_once(old, 1, "a", add_one)
    deadline = time.monotonic() + 60
    step = 0
    while await store.read(old) is not None:
        assert time.monotonic() < deadline
        await store.apply_once(active, step := step + 1, "a", add_one)
        await asyncio.sleep(0.02)
    assert await store.read(active) == step
    assert await outcome(store, old, 1, "a") is None
    assert await arrived(store, GroupKey("old", 1, "g"), "b") == 1
    assert await arrived(store, GroupKey("active", 1, "g"), "b") == 2
    assert await store.apply_once(old, 1, "a", add_one) == {"count": 1}


# Damaged files


class Count(BaseModel):
    count: int


def count_one(state: int | None) -> tuple[int, Count]:
    return (state or 0) + 1, Count(count=(state or 0) + 1)


COUNT = SCOPE._replace(shape=Shape(TypeAdapter(Annotated[int, Strict()]), TypeAdapter(Count)))


OPEN, RELEASED = (GroupKey("run", 1, name) for name in ("open", "released"))


async def written(path: Path) -> Path:
    store = open_file(path)
    await use(store)
    await store.aclose()
    return path


async def use(store: RunState) -> None:
    """Use what is stored of two runs: repeated calls and new ones."""
    uid = str(time.monotonic_ns())
    await store.apply_once(COUNT, 0, "a", count_one)
    await store.apply_once(COUNT, 0, uid, count_one)
    await add(store, OPEN)
    await add(store, RELEASED, size=1)
    await add(store, GroupKey("run", 1, uid))


def execute(path: Path, *statements: str) -> None:
    with sqlite3.connect(path) as db:
        for statement in statements:
            db.execute(statement)
    db.close()


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def overwrite_all_pages(path: Path) -> None:
    size = path.stat().st_size
    overwrite(path, 4096, random.Random(0).randbytes(size - 4096))


DAMAGES: dict[str, Callable[[Path], None]] = {
    "header": lambda path: overwrite(path, 0, b"x" * 100),
    "pages": overwrite_all_pages,
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "truncated within a page": lambda path: os.truncate(path, path.stat().st_size - 1000),
    **{
        name: lambda path, statement=statement: execute(path, statement)
        for name, statement in table("damages_of_files")
    },
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
async def test_a_damaged_file_is_refused_at_start(tmp_path: Path, damage: Callable[[Path], None]):
    path = await written(tmp_path / "runs.sqlite")
    damage(path)
    damaged = path.read_bytes()
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"cannot be used \(.*\); restore it from a backup"):
            open_file(path)
    settings = RunStateSettings(run_state=path)
    with pytest.raises(ValueError, match="--run-state .* cannot be used"):
        open_run_state(settings)
    assert path.read_bytes() == damaged, "it is not replaced"


@pytest.mark.parametrize(("name", "statement"), table("damages_of_entries"))
async def test_a_damaged_entry_is_noticed_when_it_is_used(
    tmp_path: Path, name: str, statement: str
):
    """It fails the calls that need it, and no others."""
    path = await written(tmp_path / "runs.sqlite")
    execute(path, statement)
    store = open_file(path)
    for _ in range(2):
        with pytest.raises(Unavailable, match="is damaged"):
            await use(store)
    assert store.failure is None
    if "clock" not in name:
        first = await store.apply_once(COUNT._replace(run="another"), 2, "a", count_one)
        assert first == Count(count=1)
    await store.aclose()


@pytest.mark.parametrize("is_there", [True, False])
async def test_a_lost_file_is_refused_while_its_log_is_there(tmp_path: Path, is_there: bool):
    path = tmp_path / "runs.sqlite"
    store = open_file(path)
    await store.apply_once(SCOPE, 1, "a", add_one)
    copy = tmp_path / "copy.sqlite"
    copy.with_name("copy.sqlite-wal").write_bytes(path.with_name("runs.sqlite-wal").read_bytes())
    if is_there:
        copy.touch()
    with pytest.raises(Unavailable, match="missing or empty, although it was written"):
        open_file(copy)
    await store.aclose()


def test_another_database_is_refused_and_not_changed(tmp_path: Path):
    path = tmp_path / "cache.sqlite"
    execute(path, "CREATE TABLE entries (key TEXT)")
    with pytest.raises(Unavailable, match="it is not a run-state file"):
        open_file(path)
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("entries",)]
    db.close()


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
@pytest.mark.parametrize("change", ["deleted", "replaced", "folder"])
@pytest.mark.parametrize("is_used", [True, False])
async def test_a_file_that_is_deleted_or_replaced_is_never_used_again(
    tmp_path: Path, suffix: str, change: str, is_used: bool
):
    folder = tmp_path / "state"
    folder.mkdir()
    path = await written(folder / "runs.sqlite")
    store = open_file(path)
    assert store.failure is None
    companion = path.with_name(path.name + suffix)
    if change == "folder":
        folder.rename(tmp_path / "moved")
    elif change == "deleted":
        companion.unlink()
    else:
        new = tmp_path / "copy"
        new.write_bytes(companion.read_bytes())
        new.replace(companion)
    if is_used:
        for _ in range(2):
            with pytest.raises(Unavailable, match=r"deleted, replaced .*; restore it from a bac"):
                await store.apply_once(SCOPE, 1, "a", add_one)
    assert "cannot be used" in str(store.failure)
    with pytest.raises(Unavailable, match="deleted, replaced"):
        await store.read(SCOPE)
    await store.aclose()


async def test_a_service_does_not_begin_from_nothing_after_its_file_was_deleted(tmp_path: Path):
    path = await written(tmp_path / "runs.sqlite")
    store = open_file(path)
    for each in tmp_path.iterdir():
        each.unlink()
    assert "deleted" in str(store.failure)
    await store.aclose()
    with pytest.raises(Unavailable, match="was deleted while a service used it.*move it away"):
        open_file(path)
    await written(tmp_path / "backup.sqlite")
    (tmp_path / "backup.sqlite").replace(path)
    store = open_file(path)
    assert store.failure is None
    os.truncate(path, 0)
    assert "emptied" in str(store.failure)
    await store.aclose()


async def test_a_locked_or_full_file_is_no_damage(tmp_path: Path):
    path = await written(tmp_path / "runs.sqlite")
    store = open_file(path)
    await store._store._file.call(lambda db: db.execute("PRAGMA max_page_count = 1").fetchall())
    state: JsonValue = "x" * 100_000
    with pytest.raises(Unavailable, match="full") as failure:
        await store.update(Scope("another", "text"), lambda _: (state, None))
    assert failure.value.retry_after == 1 and store.failure is None
    await store.aclose()


# Damage in Redis


@pytest.mark.parametrize(("group", "damage"), table("damages_in_redis"))
async def test_damaged_groups_are_an_error(
    redis_server: RedisServer, group: str, damage: list[str]
):
    """The third member completes a group."""
    stores = [RunState(RedisStore(redis_server.url)) for _ in range(2)]
    for uid in "ab":
        await add(stores[0], GroupKey("run {1}", 1, "g"), uid)
    redis_server.client.execute_command(*damage)
    for store in stores:
        with pytest.raises(Unavailable, match=r"run 'run \{1\}' \(groups\) is damaged"):
            await add(store, GroupKey("run {1}", 1, group), "c")
        await store.aclose()


# Cost


@pytest.mark.serial
@pytest.mark.slow
async def test_the_cost_of_a_member_does_not_depend_on_the_open_groups(open_store: OpenStore):
    store = open_store()

    async def seconds(run: str, groups: int, limit: float) -> float:
        """Return the best of five times; of more if all are above the limit, for some seconds."""
        for number in range(groups):
            await add(store, GroupKey(run, 1, str(number)), "0")
        best = float("inf")
        deadline = time.monotonic() + 30
        for repeat in itertools.count():
            if repeat >= 5 and (best < limit or time.monotonic() > deadline):
                return best
            started = time.process_time()
            for number in range(100):
                for _ in range(2):
                    await add(store, GroupKey(run, 1, f"new {repeat}"), f"{repeat}-{number}", 1000)
            best = min(best, time.process_time() - started)
        raise AssertionError

    few = await seconds("few", 8, float("inf"))
    many = await seconds("many", 1000, 2 * few)
    assert many < 2 * few
