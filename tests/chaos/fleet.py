"""`rewardfleet up` in a process."""

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from rewardfleet_server.testing import wait_until


@dataclass(frozen=True)
class Fleet:
    """A fleet: the process of its gateway, and the file of its log."""

    process: subprocess.Popen[bytes]
    log_file: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    @property
    def url(self) -> str:
        ready = re.search(r"Ready after .*?: (http://\S+?)\. ", self.log)
        assert ready, f"the fleet did not start: {self.log}"
        return ready[1]

    def wait_until_ready(self) -> None:
        wait_until(lambda: "Ready after" in self.log or self.process.poll() is not None, 150)
        assert self.url

    def services(self) -> list[int]:
        """Return the processes of the services."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return list(map(int, children.split()))

    def index(self) -> dict[str, Any]:
        """Return what the index says about each service."""
        services: dict[str, Any] = httpx.get(
            self.url, trust_env=False, verify=False, timeout=60
        ).json()
        return services["services"]

    def replicas(self) -> list[dict]:
        """Return what the index says about each replica."""
        return [each for service in self.index().values() for each in service["replicas"]]


@contextmanager
def starting_fleet(
    folder: Path,
    config: str,
    *flags: str,
    program: Sequence[str] = (sys.executable, "-m", "rewardfleet_server"),
    **options: Any,
) -> Iterator[Fleet]:
    """Start a fleet, which keeps its data and its log in a folder.

    Args:
        folder: Where these are.
        config: The file of its settings, without its port, which is a free one.
        flags: In addition.
        program: What runs `rewardfleet`.
        options: Of the process.
    """
    path, log = folder / "fleet.toml", folder / "log"
    path.write_text(f"port = 0\n{config}")
    command = [*program, "up", "--config", str(path), "--data-dir", str(folder / "data"), *flags]
    with log.open("w") as stream:
        process = subprocess.Popen(command, stderr=stream, **options)
    try:
        yield Fleet(process, log)
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def fleet_up(folder: Path, config: str, *flags: str, **options: Any) -> Iterator[Fleet]:
    """Run a fleet that is ready: see `starting_fleet`."""
    with starting_fleet(folder, config, *flags, **options) as fleet:
        fleet.wait_until_ready()
        yield fleet
