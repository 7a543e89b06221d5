"""A store that the version before has written is taken over, and its runs go on exactly."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from rewardfleet_server.run_state import open_run_state
from rewardfleet_server.run_state.settings import RunStateSettings

from ...conftest import DATA
from ..conftest import RedisServer
from ..episode.conftest import served_episodes
from ..tools.conftest import served_tools
from .test_state import PREFIX

#: What the version before stored, and what it answered to the calls that followed.
RECORDED = json.loads((DATA / "run_state/version_5.json").read_text())
#: What differs from call to call, and what answers had not before.
_OTHER = {"timing_ms", "provenance", "retry_after_s", "warning", "dialect", "untyped"}


def write_file(path: Path, *, version: int | None = None) -> Path:
    with sqlite3.connect(path) as db:
        for statement in RECORDED["setup"]:
            db.execute(statement)
        rows = ((key, field, value.encode()) for key, field, value in RECORDED["entries"])
        db.executemany("INSERT INTO entries VALUES (?, ?, ?)", rows)
        if version is not None:
            db.execute(f"PRAGMA user_version = {version}")
    db.close()
    return path


def write_redis(server: RedisServer) -> str:
    for key, field, value in RECORDED["entries"]:
        server.client.hset(f"{PREFIX}{key}", field, value)
    return server.url


def kept(answer: Any) -> Any:
    if isinstance(answer, dict):
        return {name: kept(each) for name, each in answer.items() if name not in _OTHER}
    return [kept(each) for each in answer] if isinstance(answer, list) else answer


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_runs_go_on_as_with_the_version_that_stored_them(
    kind: str, redis_server: RedisServer, tmp_path: Path
):
    """Repeated calls, the next steps, open groups, and a new attempt that discards steps."""
    is_file = kind == "sqlite"
    store = write_file(tmp_path / "runs.sqlite") if is_file else write_redis(redis_server)
    fields = {"run_state": store, "replicas": 2}
    with served_episodes(**fields) as episodes, served_tools(**fields) as tools:
        clients = {"episode": episodes, "tools": tools}
        for service, method, path, body, answer in RECORDED["calls"]:
            response = clients[service].request(method, path, json=body)
            assert (response.status_code, kept(response.json())) == (200, answer), (path, body)
    with served_tools(**fields) as tools:  # after a restart
        *_, (_, method, path, body, answer) = RECORDED["calls"]
        assert kept(tools.request(method, path, json=body).json()) == answer


def test_older_stores_are_refused(redis_server: RedisServer, tmp_path: Path):
    """A file at the start; the service with Redis is not ready."""
    with pytest.raises(ValueError, match="schema version is 4.*finish its runs with"):
        open_run_state(RunStateSettings(run_state=write_file(tmp_path / "a.sqlite", version=4)))
    write_redis(redis_server)
    redis_server.client.delete(f"{PREFIX}store")  # which version 4 did not have
    with served_tools(run_state=redis_server.url) as tools:
        answer = tools.get("/readyz").json()
        assert "that of an earlier version" in answer["detail"]
        assert tools.put("/budgets/r", json={"budget": 1}).json()["detail"] == answer["detail"]
