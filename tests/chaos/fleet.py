"""`rewardfleet up` in a process."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from rewardfleet_server.testing import wait_until
from rewardfleet_server.up.settings import free_port


@contextmanager
def fleet_up(
    folder: Path, config: str, *flags: str
) -> Iterator[tuple[str, Callable[[], list[int]]]]:
    """Run a fleet; yield its URL, and a function that returns the processes of the services."""
    path, port, log = folder / "fleet.toml", free_port(), folder / "log"
    path.write_text(f"port = {port}\n{config}")
    command = [sys.executable, "-m", "rewardfleet_server", "up", "--config", str(path)]
    with log.open("w") as stream:
        process = subprocess.Popen(
            [*command, "--data-dir", str(folder / "data"), *flags], stderr=stream
        )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    try:
        wait_until(lambda: "Ready after" in log.read_text() or process.poll() is not None, 90)
        assert process.poll() is None, log.read_text()
        yield f"http://127.0.0.1:{port}", lambda: list(map(int, children.read_text().split()))
    finally:
        process.terminate()
        process.wait(60)


def replicas_of(url: str) -> list[dict]:
    """Return what the index of a gateway says about each replica."""
    services = httpx.get(url, trust_env=False, timeout=60).json()["services"]
    return [each for service in services.values() for each in service["replicas"]]
