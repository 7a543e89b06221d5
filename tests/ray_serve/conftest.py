"""A local Ray cluster with GPUs that do not exist, on which all services run."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from rewardfleet import RewardFleet
from rewardfleet_server.testing import wait_until
from rewardfleet_server.up.settings import free_port

from ..conftest import DATA
from ..running import output_of
from ..server.conftest import RedisServer
from ..server.processes import descendants

ROOT = Path(__file__).parent.parent.parent
SCRIPT = ROOT / "deploy" / "ray_serve.py"
VIDEOS = DATA / "libero"
KEY = "a-key-of-tests"


@dataclass(frozen=True)
class Cluster:
    """A running Ray with the services on it.

    Attributes:
        url: The address of the fleet.
        address: That of Ray.
        environment: The variables of its processes.
    """

    url: str
    address: str
    environment: dict[str, str]

    def fleet(self) -> RewardFleet:
        return RewardFleet(self.url, api_key=KEY, timeout_s=60)

    def http(self) -> httpx.Client:
        headers = {"authorization": f"Bearer {KEY}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30, trust_env=False)

    def run_script(self, *arguments: str, code: int = 0) -> str:
        options = {"status": code, "seconds": 400, "env": self.environment}
        return output_of(sys.executable, SCRIPT, *arguments, **options)


def replicas(service: str) -> list[int]:
    """Return the processes of the replicas of a service, which Ray names."""
    title = f"ray::ServeReplica:{service}:{service}".encode()
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                is_replica = (process / "cmdline").read_bytes().startswith(title)
            except OSError:
                continue
            if is_replica:
                found.append(int(process.name))
    return sorted(found)


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return variables with which neither Ray nor the services write outside of a test's folder."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("REWARDFLEET_", "RAY_"))
    }
    home = tmp_path_factory.mktemp("home")
    paths = [str(Path(__file__).parent), inherited.get("PYTHONPATH", "")]
    return {
        **inherited,
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    }


@pytest.fixture(scope="session")
def cluster(
    environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("fleet")
    keys = folder / "keys"
    keys.write_text(KEY)
    ray_program = str(Path(sys.executable).with_name("ray"))
    address, port = f"127.0.0.1:{free_port()}", free_port()
    head = subprocess.Popen(
        [ray_program, "start", "--head", "--block", f"--port={address.rpartition(':')[2]}",
         "--node-ip-address=127.0.0.1", "--num-cpus=4", "--num-gpus=3",
         "--include-dashboard=false"],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        with RedisServer(folder) as redis:
            config = folder / "fleet.toml"
            text = (DATA / "ray_serve" / "fleet.toml").read_text()
            config.write_text(text.replace("VIDEOS", str(VIDEOS)).replace("REDIS", redis.url))
            found = Cluster(f"http://127.0.0.1:{port}", address, environment)
            wait_until(lambda: head.poll() is not None or _listens(address), 180)
            found.run_script(
                "--address", address, "--config", str(config), "--port", str(port),
                "--api-key-file", str(keys),
            )  # fmt: skip
            yield found
    finally:
        # At once: it would wait for the end of one process after the other.
        for pid in (head.pid, *descendants(head.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        head.wait(120)


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 1).close()
    except OSError:
        return False
    return True
