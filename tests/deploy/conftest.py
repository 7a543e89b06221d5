"""The stack of docker-compose.yml in an engine of the tests' own; only for `pytest -m deploy`."""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rewardfleet import RewardFleet
from rewardfleet_server.fleet.settings import free_port

from ..debian import MissingTool
from .engine import ROOT, Engine

_DATA = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rewardfleet-deploy"


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    return None if "deploy" in config.getoption("markexpr") else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.deploy)
        item.add_marker(pytest.mark.timeout(900))


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


@dataclass(frozen=True)
class Stack:
    """The running stack.

    Attributes:
        url: The address of the fleet.
        prometheus: That of Prometheus.
        api_key: The key that `make secrets` created.
        network: The network of the services.
    """

    engine: Engine
    url: str
    prometheus: str
    api_key: str
    network: str

    def compose(self, *arguments: object, check: bool = True) -> str:
        return self.engine.docker("compose", *arguments, check=check)

    def up(self, *flags: object) -> None:
        self.compose("up", "--detach", "--wait", *flags)

    def containers(self, service: str = "") -> list[str]:
        return self.compose("ps", "-q", *([service] if service else [])).split()

    def inspect(self, container: str) -> dict:
        return json.loads(self.engine.docker("inspect", container))[0]

    def client(self, *, timeout_s: float = 60) -> RewardFleet:
        return RewardFleet(self.url, api_key=self.api_key, timeout_s=timeout_s)


@pytest.fixture(scope="session")
def stack(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    secrets = tmp_path_factory.mktemp("stack") / "secrets"
    subprocess.run(["make", "secrets", f"SECRETS={secrets}"], cwd=ROOT, check=True, timeout=30)
    fleet, prometheus = free_port(), free_port()
    name = "rewardfleet-test"
    engine.environment |= {
        "COMPOSE_PROJECT_NAME": name,
        "SECRETS": str(secrets),
        "FLEET_PORT": str(fleet),
        "PROMETHEUS_PORT": str(prometheus),
        "CODE_CPUS": "1",  # there may be no more
        "VIDEO_CPUS": "1",
    }
    stack = Stack(
        engine,
        f"http://127.0.0.1:{fleet}",
        f"http://127.0.0.1:{prometheus}",
        (secrets / "api_key").read_text(),
        f"{name}_services",
    )
    stack.compose("down", "--volumes", "--timeout=5")  # of a run that was killed
    try:
        stack.up("--no-build")
        yield stack
    finally:
        stack.compose("down", "--volumes", "--timeout=10")
        assert (
            engine.docker("ps", "-q", "--filter", f"label=com.docker.compose.project={name}") == ""
        )
