"""Budgets in a real Redis whose disk is full, as docker-compose.yml and k8s/ start and check it."""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import redis
import yaml

from rewardfleet_server.testing import wait_until
from rewardfleet_server.up.settings import free_port

from ...conftest import required
from ..http.test_requests import metric
from .conftest import served_tools

ROOT = Path(__file__).parents[3]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["redis"]
MANIFEST = next(
    each["spec"]["template"]["spec"]["containers"][0]
    for each in yaml.safe_load_all((ROOT / "k8s/base/redis.yaml").read_text())
    if each["kind"] == "StatefulSet"
)
PASSWORD = "the-password"
HEALTH = COMPOSE["healthcheck"]["test"][1:]
READINESS = MANIFEST["readinessProbe"]["exec"]["command"]
LIVENESS = MANIFEST["livenessProbe"]["exec"]["command"]
UPDATE = {"part": "all", "costs": [1.0, 0.0]}


def _in_compose(port: int, folder: Path) -> list[str]:
    command = [re.sub(r"\$\{\w+:-(.*)\}", r"\1", each) for each in COMPOSE["command"]]
    return [*command, "--port", str(port), "--dir", str(folder)]


def _on_kubernetes(port: int, folder: Path) -> list[str]:
    *shell, script = MANIFEST["args"]
    return [*shell, script.replace("\nEND", f"\nport {port}\ndir {folder}\nEND")]


def _every_second(port: int, folder: Path) -> list[str]:
    return [*_in_compose(port, folder), "--appendfsync", "everysec"]


class Server:
    """A Redis server whose files cannot grow beyond a limit, as if its disk were full."""

    def __init__(self, command: list[str], port: int, environment: dict[str, str]) -> None:
        required("redis-server")
        self.port = port
        self.environment = {**os.environ, **environment}
        self._command = command
        self.process = self.start(limit=20_000)

    def start(self, limit: int) -> subprocess.Popen[bytes]:
        self.process = subprocess.Popen(
            ["prlimit", f"--fsize={limit}", *self._command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self.environment,
            restore_signals=False,  # SIGXFSZ, which Python ignores, would end it
        )
        wait_until(lambda: self.runs(LIVENESS) == 0)
        return self.process

    def runs(self, check: list[str]) -> int:
        """Return the exit status of a check of its container."""
        program, *arguments = check
        done = subprocess.run(
            [program, "-p", str(self.port), *arguments],
            env=self.environment,
            capture_output=True,
            check=False,
            timeout=60,
        )
        return done.returncode


@contextmanager
def _server(make, folder: Path) -> Iterator[tuple[Server, str]]:
    """Run a server; yield it and its URL."""
    port = free_port()
    has_password = make is _on_kubernetes
    environment = {"REDISCLI_AUTH": PASSWORD} if has_password else {}
    server = Server(make(port, folder), port, environment)
    login = f":{PASSWORD}@" if has_password else ""
    try:
        yield server, f"redis://{login}127.0.0.1:{port}/0"
    finally:
        server.process.kill()
        server.process.wait(60)


def _fill(service: httpx.Client) -> tuple[int, dict]:
    """Update a budget until that fails; return how many updates were acknowledged, and why."""
    assert service.put("/budgets/run", json={"budget": 0.3, "parts": 1}).status_code == 200
    for step in range(1000):
        answer = service.post("/budgets/run/update", json={"step": step, **UPDATE})
        if answer.status_code != 200:
            assert answer.status_code == 503
            return step, answer.json()
    raise AssertionError("the disk is never full")


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("make", [_in_compose, _on_kubernetes])
def test_an_acknowledged_step_survives_a_full_disk_and_a_kill(make, tmp_path: Path):
    with _server(make, tmp_path) as (server, url):
        assert server.runs(HEALTH) == server.runs(READINESS) == 0
        with served_tools(run_state=url) as service:
            acknowledged, problem = _fill(service)
            assert acknowledged > 0
            assert problem["retryable"]
            server.process.kill()
            server.process.wait(60)
            server.start(limit=10**9)
            state = service.get("/budgets/run").json()["checkpoint"]
            assert state["updates"] in {acknowledged, acknowledged + 1}  # the last was not answered
            again = service.post("/budgets/run/update", json={"step": acknowledged, **UPDATE})
            assert again.status_code == 200
            state = service.get("/budgets/run").json()["checkpoint"]
            assert state["updates"] == acknowledged + 1


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_a_redis_that_cannot_write_is_seen_and_not_restarted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """With the default of Redis for `appendfsync`, with which it goes on."""
    with (
        _server(_every_second, tmp_path) as (server, url),
        served_tools(run_state=url) as service,
    ):
        _, problem = _fill(service)
        refusal = "Redis: ResponseError: MISCONF Errors writing to the AOF file: No space left"
        assert refusal in problem["detail"]
        assert any(refusal in getattr(each, "detail", "") for each in caplog.records)
        assert metric(service, "rewardfleet_run_state_failures_total") == 1
        assert server.runs(HEALTH) != 0
        assert server.runs(READINESS) != 0
        assert server.runs(LIVENESS) == 0


def test_the_password_is_in_no_argument(tmp_path: Path):
    with _server(_on_kubernetes, tmp_path) as (server, url):
        shown = Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
        assert b"redis-server" in shown
        assert PASSWORD not in str(MANIFEST) + shown.decode()
        assert redis.Redis.from_url(url).ping()
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=server.port).ping()
