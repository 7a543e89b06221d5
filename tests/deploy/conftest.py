"""The stack of docker-compose.yml in an engine of the tests' own; only for `pytest -m deploy`."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from rewardfleet import RewardFleet
from rewardfleet_server.up.settings import free_port

from ..debian import MissingTool
from .engine import ROOT, Engine

_DATA = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rewardfleet-deploy"
PROJECT = "rewardfleet-test"


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    engine = Engine(_DATA)
    try:
        engine.start()
    except MissingTool as error:
        pytest.exit(f"the deployment cannot be tested here: {error}", returncode=1)
    try:
        engine.make_base_image()
        engine.make_images()
        yield engine
    finally:
        engine.stop()


def request(method: str, url: str, **options: Any) -> httpx.Response:
    return httpx.request(method, url, **{"timeout": 60, "trust_env": False, **options})


def status(method: str, url: str, **options: Any) -> int:
    """Return the status of a response; 0 without a response."""
    try:
        return request(method, url, timeout=20, **options).status_code
    except httpx.HTTPError:
        return 0


@dataclass(frozen=True)
class Stack:
    """The running stack: addresses, and the key that `make secrets` created."""

    engine: Engine
    url: str
    prometheus: str
    api_key: str

    def compose(self, *arguments: object) -> str:
        return self.engine.docker("compose", *arguments)

    def up(self, *flags: object) -> None:
        self.compose("up", "--detach", "--wait", *flags)

    def containers(self, service: str = "") -> list[str]:
        return self.compose("ps", "-q", *([service] if service else [])).split()

    def client(self, *, timeout_s: float = 60) -> RewardFleet:
        return RewardFleet(self.url, api_key=self.api_key, timeout_s=timeout_s)


@pytest.fixture(scope="session")
def stack(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    secrets = tmp_path_factory.mktemp("stack") / "secrets"
    subprocess.run(["make", "secrets", f"SECRETS={secrets}"], cwd=ROOT, check=True, timeout=30)
    fleet, prometheus = free_port(), free_port()
    engine.environment |= {
        "COMPOSE_PROJECT_NAME": PROJECT,
        "SECRETS": str(secrets),
        "FLEET_PORT": str(fleet),
        "PROMETHEUS_PORT": str(prometheus),
        "CODE_CPUS": "1",  # there may be no more
        "VIDEO_CPUS": "1",
        "PROXY_CPUS": "1",
    }
    api_key = (secrets / "api_key").read_text()
    stack = Stack(engine, f"http://127.0.0.1:{fleet}", f"http://127.0.0.1:{prometheus}", api_key)
    engine.remove("compose", "down", "--volumes", "--timeout=5")  # of a run that was killed
    try:
        stack.up("--no-build")
        yield stack
    finally:
        engine.remove("compose", "down", "--volumes", "--timeout=10")
        label = f"label=com.docker.compose.project={PROJECT}"
        assert engine.docker("ps", "-q", "--filter", label) == ""
