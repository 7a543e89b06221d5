"""A service in a process of its own, and one that is down."""

import resource
import socket
from collections.abc import Iterator

import pytest

from ..adapters.conftest import closes  # noqa: F401 - a fixture
from ..server.processes import service_process


@pytest.fixture(autouse=True, scope="session")
def _many_files() -> None:
    """Each of thousands of requests is a connection."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


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
