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
    """A running fleet: its URL, and the process of its gateway."""

    url: str
    pid: int

    def services(self) -> list[int]:
        """Return the processes of the services."""
        return list(
            map(int, Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split())
        )

    def replicas(self) -> list[dict]:
        """Return what the index says about each replica."""
        services = httpx.get(self.url, trust_env=False, timeout=60).json()["services"]
        return [each for service in services.values() for each in service["replicas"]]


@contextmanager
def fleet_up(
    folder: Path,
    config: str,
    *flags: str,
    program: Sequence[str] = (sys.executable, "-m", "rewardfleet_server"),
    **options: Any,
) -> Iterator[Fleet]:
    """Run a fleet, which keeps its data and its log in a folder.

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
        wait_until(lambda: "Ready after" in log.read_text() or process.poll() is not None, 120)
        ready = re.search(r"Ready after .*?: (http://\S+?)\. ", log.read_text())
        assert ready, f"the fleet did not start: {log.read_text()}"
        yield Fleet(ready[1], process.pid)
    finally:
        process.terminate()
        process.wait(60)
