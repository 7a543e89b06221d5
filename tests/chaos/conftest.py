"""Services whose processes are killed, frozen and restarted; only for `pytest -m chaos`."""

from collections.abc import Iterator

import pytest

from ..conftest import CHAOS_FACTOR
from ..server.conftest import RedisServer
from .figures import Figures

_LINES = pytest.StashKey[list[str]]()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    lines = config.stash.get(_LINES, [])
    if lines:
        terminalreporter.section("chaos")
    for line in lines:
        terminalreporter.write_line(line)


@pytest.fixture
def factor() -> int:
    return CHAOS_FACTOR


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Iterator[Figures]:
    """Return the figures of a test, which are printed at the end, whether or not it passes."""
    figures = Figures(request.node.name.removeprefix("test_").replace("_", " "))
    yield figures
    request.config.stash.setdefault(_LINES, []).append(figures.text())


@pytest.fixture
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server
