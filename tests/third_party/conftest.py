"""Services, and the clients of other projects, in processes of their own: see `load.py`."""

import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..adapters.conftest import closes  # noqa: F401 - a fixture
from ..server.processes import service_process
from .trainers import CLIENTS

HERE = Path(__file__).parent


@pytest.fixture(autouse=True, scope="session")
def _many_files() -> None:
    """Each of thousands of requests is a connection."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def start(client: str, url: str, number: int) -> subprocess.Popen[str]:
    """Send requests by a client, all at once."""
    command = [sys.executable, str(HERE / "load.py"), client, url, str(number)]
    environment = {**os.environ, "PYTHONPATH": str(CLIENTS)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def results(process: subprocess.Popen[str]) -> dict[str, int]:
    """Wait for a client; return how often it took each reward, or failed in each way."""
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return json.loads(output.splitlines()[-1])


@pytest.fixture
def load() -> Callable[[str, str, int], dict[str, int]]:
    return lambda client, url, number: results(start(client, url, number))


@pytest.fixture(scope="session")
def code_url() -> Iterator[str]:
    with service_process("code") as (_, url):
        yield url


@pytest.fixture
def dead_url() -> Iterator[str]:
    """Return an address that refuses connections, and that no other process can take meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
