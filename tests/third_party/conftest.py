"""A service in a process of its own, and one that is down."""

import resource
from collections.abc import Iterator

import pytest

from ..adapters.conftest import closes, dead_url, lost_url  # noqa: F401 - fixtures
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
