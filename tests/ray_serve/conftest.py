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
    """A running Ray with the services on it."""

    url: str  #: of the fleet
    address: str  #: of Ray
    environment: dict[str, str]  #: of its processes

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
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            if command.read_bytes().startswith(title):
                found.append(int(command.parent.name))
    return sorted(found)


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return variables with which neither Ray nor the services write outside of a test's folder."""
    others = ("REWARDFLEET_", "RAY_")
    inherited = {name: each for name, each in os.environ.items() if not name.startswith(others)}
    home = tmp_path_factory.mktemp("home")
    paths = [str(Path(__file__).parent), inherited.get("PYTHONPATH", "")]
    folders = {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
    folders["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    ray = dict.fromkeys(("RAY_USAGE_STATS_ENABLED", "RAY_ENABLE_UV_RUN_RUNTIME_ENV"), "0")
    return {**inherited, **folders, **ray}


@pytest.fixture(scope="session")
def cluster(
    environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("fleet")
    keys = folder / "keys"
    keys.write_text(KEY)
    ray_port, port = free_port(), free_port()
    address = f"127.0.0.1:{ray_port}"
    start = f"start --head --block --port={ray_port} --node-ip-address=127.0.0.1"
    start += " --num-cpus=4 --num-gpus=3 --include-dashboard=false"
    command = [Path(sys.executable).with_name("ray"), *start.split()]
    nowhere = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
    head = subprocess.Popen(command, env=environment, **nowhere)
    try:
        with RedisServer(folder) as redis:
            config = folder / "fleet.toml"
            text = (DATA / "ray_serve" / "fleet.toml").read_text()
            config.write_text(text.replace("VIDEOS", str(VIDEOS)).replace("REDIS", redis.url))
            found = Cluster(f"http://127.0.0.1:{port}", address, environment)
            wait_until(lambda: head.poll() is not None or _listens(ray_port), 180)
            options = ["--config", config, "--port", port, "--api-key-file", keys]
            found.run_script("--address", address, *map(str, options))
            yield found
    finally:
        # At once: it would wait for the end of one process after the other.
        for pid in (head.pid, *descendants(head.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        head.wait(120)


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
