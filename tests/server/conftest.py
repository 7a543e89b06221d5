"""The applications of all services, and a real Redis server, which tests stop and freeze."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
import redis

from rewardfleet_server.cache import Cache
from rewardfleet_server.http.app import RewardApp
from rewardfleet_server.registry import SERVICES
from rewardfleet_server.run_state import redis as redis_store
from rewardfleet_server.run_state import sqlite as sqlite_store
from rewardfleet_server.testing import FakeJudge, FakeSandbox, wait_until
from rewardfleet_server.up.settings import free_port

from ..conftest import required


def apps_of_all(judge: FakeJudge | None = None, **settings: Any) -> dict[str, RewardApp]:
    """Return the applications of all services, with fakes of what takes long."""
    apps = {}
    for name, entry in SERVICES.items():
        own = {"workers": 1} if name == "answers" else {}
        of_service = entry.settings.load()(**own, **settings)
        fakes = {"video": [{"fake": judge or FakeJudge()}], "code": [FakeSandbox()]}
        apps[name] = entry.app.load()(of_service, *fakes.get(name, ()))
    return apps


async def cached_value(cache: Cache, key: str) -> bytes | None:
    return (await cache.get_many([key])).get(key)


class RedisServer:
    """A `redis-server` on a free loopback port. What it stores survives a restart."""

    def __init__(self, folder: Path) -> None:
        program = required("redis-server")
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.client = redis.Redis.from_url(self.url)
        self._command = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
                         "--appendonly", "yes", "--dir", str(folder)]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        wait_until(self._answers)

    def stop(self) -> None:
        if self._process is not None:
            self.thaw()
            self._process.terminate()
            self._process.wait(60)
            self._process = None

    def freeze(self) -> None:
        """Make it accept connections without a response."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.stop()

    def _answers(self) -> bool:
        try:
            return self.client.ping()
        except redis.ConnectionError:  # it does not listen yet, or reads its file
            return False


@pytest.fixture(scope="session")
def _redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_server(_redis_server: RedisServer) -> RedisServer:
    """Return a server that is empty."""
    _redis_server.client.flushall()
    return _redis_server


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for stores of run state until they answer, also on a busy machine."""
    monkeypatch.setattr(redis_store, "_COMMAND_SECONDS", 60.0)
    for module in (redis_store, sqlite_store):
        monkeypatch.setattr(module, "BUSY_SECONDS", 60.0)


@pytest.fixture(params=["sqlite", "redis"])
def run_state(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return where processes can share run state: a file, or a server."""
    if request.param == "sqlite":
        return str(tmp_path / "runs.sqlite")
    server: RedisServer = request.getfixturevalue("redis_server")
    return server.url
