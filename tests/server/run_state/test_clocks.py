"""Wall clocks that are wrong, jump, or differ between replicas: nothing is deleted or released."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from rewardfleet_server.run_state import GroupKey, RunState, Scope, open_run_state
from rewardfleet_server.run_state.settings import RunStateSettings
from rewardfleet_server.run_state.store import Transaction
from rewardfleet_server.run_state.values import CLOCK
from rewardfleet_server.testing import wait_until

from ..processes import service_process
from .test_damage import add as add_member
from .test_damage import arrived
from .test_state import add_one

#: Runs a command of Python whose wall clock is ahead by the seconds in a file, as it is now.
SHIFTED = """
import sys, time, runpy
file, now, now_ns = sys.argv[1], time.time, time.time_ns
seconds = lambda: float(open(file).read())
time.time, time.time_ns = lambda: now() + seconds(), lambda: now_ns() + int(seconds() * 1e9)
sys.argv = sys.argv[4:]  # without `python -m rewardfleet_server`
runpy.run_module("rewardfleet_server", run_name="__main__")
"""
DAY = 86_400
#: Ahead by so many seconds, or behind: the year is 1972.
SKEWS = [60 * DAY, 120, -120, -1_700_000_000]


def set_ahead(clock: Path, seconds: float) -> Path:
    """Set by how many seconds the wall clock of a replica is ahead."""
    new = clock.with_suffix(".new")
    new.write_text(str(seconds))
    return new.replace(clock)


@contextmanager
def replica(clock: Path, *flags: str) -> Iterator[httpx.Client]:
    """Start the episode service with a clock of its own."""
    prefix = (sys.executable, "-c", SHIFTED, str(clock))
    with (
        service_process("episode", *flags, prefix=prefix) as (_, url),
        httpx.Client(base_url=url, timeout=60, trust_env=False) as client,
    ):
        yield client


def post(service: httpx.Client, path: str, body: dict) -> dict:
    response = service.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def step(service: httpx.Client, run: str, number: int = 1) -> dict:
    adapt = {"run": run, "step": number, "success_rate": 0.8, "target_success_rate": 0.5}
    return post(service, "/temperatures", {"n": 2, "adapt": adapt})


def add(service: httpx.Client, group: str, uid: str, wait_s: float) -> dict:
    item = {"uid": uid, "group": group, "success": True, "steps": 1, "max_steps": 5}
    body = {"run": "r", "step": 1, "group_size": 3, "item": item, "wait_s": wait_s}
    return post(service, "/groups/members", body)


@pytest.mark.slow
def test_replicas_with_wrong_clocks_delete_nothing_and_groups_wait_as_long_as_they_should(
    run_state: str, tmp_path: Path
):
    """The clock of one is wrong when it starts, that of the other jumps while it runs."""
    right_clock, clock = set_ahead(tmp_path / "right", 0), tmp_path / "wrong"
    store = "--run-state", run_state
    with replica(right_clock, *store) as right:
        step(right, "a")
        second = step(right, "a", 2)  # which depends on the first
        add(right, "of all", "a", 600)
        for ahead_s in SKEWS:
            set_ahead(clock, ahead_s)
            # It looks for old runs with its first change.
            with replica(clock, *store) as wrong:
                step(wrong, f"b {ahead_s}")
                assert step(right, "a", 2) == step(wrong, "a", 2) == second
                for opener, other in ((right, wrong), (wrong, right)):
                    group = f"{ahead_s} {opener is right}"
                    assert add(opener, group, "a", 600)["missing"] == 2
                    assert add(other, group, "b", 600)["missing"] == 1
                    assert not add(opener, group, "a", 600)["released"]
                    short = f"{group} short"
                    add(opener, short, "a", 0.2)
                    wait_until(lambda: add(other, short, "a", 0.2)["released"])  # noqa: B023
            set_ahead(right_clock, ahead_s)
            step(right, f"new {ahead_s}")
            assert step(right, "a", 2) == second
            assert not add(right, "of all", "a", 600)["released"]


OLD, NEW, GROUP = Scope("old", "count"), Scope("new", "count"), GroupKey("new", 1, "g")


async def is_kept(store: RunState) -> bool:
    """Change another run, so that old ones are deleted; return whether one is still there."""
    await store.update(NEW, add_one)
    await store._pruning
    return await store.read(OLD) is not None


async def shift(store: RunState, key: str, days: float, **fields: float) -> None:
    """Change what is stored as if the clock of the store had jumped since."""

    def work(tx: Transaction) -> None:
        stored, seen = json.loads(tx.get(key, "")), tx.now + days * DAY
        is_clock = isinstance(stored, list)
        changed = [stored[0], seen] if is_clock else {**stored, "seen": seen, **fields}
        tx.put(key, "", json.dumps(changed).encode())

    await store._store.transact(OLD, [(key, "")], work)


async def test_a_clock_that_jumps_makes_no_run_old_and_no_group_due(run_state: str):
    settings = RunStateSettings(run_state=run_state)
    state = open_run_state(settings)
    await state.update(OLD, add_one)
    await add_member(state, GROUP)
    kept = []
    for days in (-60, 60, *[-60] * 9):
        await shift(state, CLOCK, days)
        await state.aclose()
        state = open_run_state(settings)
        kept.append(await is_kept(state))
    # Each time counts for a tenth of the maximum age.
    assert kept[:8] == [True] * 8 and not kept[-1]
    waits = []
    for days in (60, -60, 0):  # as if it had jumped back, then ahead
        await shift(state, GROUP.members, days, left_s=60)
        assert await arrived(state, GROUP) == 1
        group, _, _ = await add_member(state, GROUP)
        assert group.arrived == 1
        waits.append(group.left_s)
    assert waits == [pytest.approx(60, abs=9), pytest.approx(50, abs=9), pytest.approx(60, abs=9)]
    await state.aclose()
