"""Damaged run state over HTTP: the documented error, never a 500, and no start."""

import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from rewardfleet_server.episode.settings import EpisodeSettings
from rewardfleet_server.run_state import open_run_state
from rewardfleet_server.testing import wait_until

from ...conftest import table
from ..processes import service_process
from ..tools.conftest import served_tools
from .conftest import served_episodes
from .test_redis import adapt, normalize
from .test_service import add_member, four_items

STRAY = 2**53

#: Valid JSON, of a shape that no service writes.
WRONG = table("wrong_json")
#: Which entries of a file: as conditions.
ENTRIES = dict(table("entries_of_stores"))


def use_everything(service: httpx.Client, new: int = 0) -> list[httpx.Response]:
    """Send repeated calls of each kind, and some that are new."""
    return [
        *(adapt(service, step) for step in (1, 2 + new)),
        *(normalize(service, group) for group in ("a", f"b{new}")),
        *(add_member(service, item) for item in four_items("open")[:2]),
        *(add_member(service, item) for item in four_items(f"new{new}")[:1]),
        *(add_member(service, item) for item in four_items("full")),
    ]


def write(path: Path, where: str, value: str) -> None:
    with sqlite3.connect(path, timeout=60) as db:
        db.execute(f"UPDATE entries SET value = ? WHERE {where}", (value,))
    db.close()


@pytest.mark.slow
@pytest.mark.parametrize("entries", ENTRIES)
def test_stored_json_of_a_wrong_shape_is_the_documented_error(tmp_path: Path, entries: str):
    file = tmp_path / "runs.sqlite"
    with served_episodes(run_state=file) as service:
        before = [each.status_code for each in use_everything(service)]
        assert before == [200] * 10 + [422]
        for new, wrong in enumerate(WRONG, 1):
            write(file, ENTRIES[entries], wrong)
            responses = use_everything(service, new)
            assert {each.status_code for each in responses} <= {200, 422, 503}
            problems = [each.json() for each in responses if each.status_code == 503]
            assert problems or (entries == "open groups" and wrong in {"[]", "{}"})  # valid
            assert all("is damaged" in each["detail"] for each in problems)
            assert service.post("/temperatures", json={"n": 2}).status_code == 200
            assert service.get("/readyz").status_code == 200


@pytest.mark.slow
def test_a_budget_of_a_wrong_shape_is_the_documented_error(tmp_path: Path):
    file = tmp_path / "runs.sqlite"

    def calls(service: httpx.Client) -> list[httpx.Response]:
        item = {"response": "", "ground_truth": "<response>1</response>", "run": "r"}
        return [
            service.get("/budgets/r"),
            service.put("/budgets/r", json={"budget": 1}),
            service.post("/budgets/r/update", json={"step": 5, "part": "b", "costs": [1]}),
            service.post("/score", json=item),
        ]

    with served_tools(run_state=file) as service:
        service.put("/budgets/r", json={})
        service.post("/budgets/r/update", json={"step": 1, "part": "a", "costs": [1]})
        with closing(sqlite3.connect(file)) as db:
            query = "SELECT value FROM entries WHERE field = 'budget'"
            state = json.loads(db.execute(query).fetchone()[0])
        changes = ({"open_step": -1}, {"parts": {}}, {"closed": [[2, 1]]}, {"more": 1})
        for wrong in (*WRONG, *(json.dumps(state | change) for change in changes)):
            write(file, "field = 'budget'", wrong)
            for response in calls(service):
                assert response.status_code == 503, (wrong, response.text)
                assert "is damaged" in response.json()["detail"]


@pytest.fixture(params=["memory", "sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, object]:
    """Return the settings of a store."""
    if request.param == "redis":
        return {"run_state": request.getfixturevalue("redis_server").url}
    return {"run_state": tmp_path / "runs.sqlite"} if request.param == "sqlite" else {}


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("stray", [STRAY, 10**6])
def test_a_stray_step_does_not_end_a_run(store: dict[str, object], stray: int):
    """It is a step like any other, and the run goes on where it was."""
    with served_episodes(**store) as service:
        for step in (stray, 1, stray, 2, stray - 1, 3):
            assert adapt(service, step).status_code == 200
            options = {"options": {"normalize": "running"}, "run": "a", "step": step}
            response = service.post("/score/batch", json={"items": four_items(), **options})
            assert response.status_code == 200, response.text
            for item in four_items(f"g{step}")[:3]:
                response = add_member(service, item, step=step)
            assert response.json()["released"], response.text
        for step in range(4, 30):
            assert not add_member(service, four_items()[0], step=step).json()["released"]
        too_old = add_member(service, four_items()[0], step=stray)
        assert (too_old.status_code, too_old.json()["retryable"]) == (422, False)
    options = {"controller": "dual_ascent", "eta": 1, "budget": 0, "parts": 1}
    with served_tools(**store) as service:

        def part(step: int, name: str = "a") -> httpx.Response:
            body = {"step": step, "part": name, "costs": [1]}
            return service.post("/budgets/a/update", json=body)

        service.put("/budgets/a", json=options)
        lambdas = [part(step).json()["lambda"] for step in (1, stray, 2, 3, 4)]
        assert lambdas == [1, 2, 3, 4, 5]
        for step in (2, stray):  # repeated calls get their answers
            assert part(step).json()["closed"]
            assert part(step, "late").status_code == 422
        assert service.get("/budgets/a").json()["lambda"] == 5
        # A checkpoint whose last step is a stray one does not end the run either.
        part(stray - 1)
        checkpoint = service.get("/budgets/a").json()["checkpoint"]
        assert checkpoint["step"] == stray - 1
        service.put("/budgets/a", json={**options, "checkpoint": checkpoint})
        assert [part(step).status_code for step in (4, stray - 1, 5)] == [422, 422, 200]


@pytest.mark.slow
@pytest.mark.parametrize("is_used", [True, False])
def test_a_service_ends_when_its_file_is_deleted_and_does_not_start_again(
    tmp_path: Path, is_used: bool
):
    folder = tmp_path / "state"
    folder.mkdir()
    file = folder / "runs.sqlite"
    arguments = ("--run-state", str(file))
    with (
        service_process("episode", *arguments) as (process, url),
        httpx.Client(base_url=url, timeout=60, trust_env=False) as service,
    ):
        assert use_everything(service)[0].status_code == 200
        for each in folder.iterdir():
            each.unlink()
        if is_used:
            assert {each.status_code for each in use_everything(service)} == {503}
            assert service.get("/readyz").status_code == 503
        wait_until(lambda: process.poll() is not None)
        assert process.returncode == 1
    with pytest.raises(ValueError, match=r"--run-state .* was deleted while a service"):
        open_run_state(EpisodeSettings(run_state=file))


@pytest.mark.slow
def test_a_service_ends_when_its_file_is_damaged_and_does_not_start_again(tmp_path: Path):
    file = tmp_path / "runs.sqlite"
    arguments = ("--run-state", str(file))
    with service_process("episode", *arguments) as (process, url):
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as service:
            assert use_everything(service)[0].status_code == 200
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    with sqlite3.connect(file) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    with service_process("episode", *arguments) as (process, url):
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as service:
            size = file.stat().st_size
            with file.open("r+b") as opened:
                opened.seek(4096)
                opened.write(b"\xff" * (size - 4096))
            with sqlite3.connect(file) as db:  # another process writes: copies are read again
                db.execute("PRAGMA user_version = 3")
            db.close()
            responses = use_everything(service)
            assert {each.status_code for each in responses} == {503}
            assert "cannot be used" in responses[0].json()["detail"]
        wait_until(lambda: process.poll() is not None)
        assert process.returncode == 1
    start = subprocess.run(
        [sys.executable, "-m", "rewardfleet_server", "serve", "episode", "--port", "0", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert start.returncode != 0
    assert "--run-state" in start.stderr and "restore it from a backup" in start.stderr
