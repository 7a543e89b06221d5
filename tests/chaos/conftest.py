"""Services whose processes are killed, frozen and restarted; only for `pytest -m chaos`."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..server.conftest import RedisServer
from .figures import Figures

_LINES = pytest.StashKey[list[str]]()


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    return None if "chaos" in config.getoption("markexpr") else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.chaos)
            item.add_marker(pytest.mark.timeout(180 * chaos_factor()))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    lines = config.stash.get(_LINES, [])
    if lines:
        terminalreporter.section("chaos")
    for line in lines:
        terminalreporter.write_line(line)


def chaos_factor() -> int:
    """Return how many times as long as in CI the tests run; `make chaos` sets it."""
    return int(os.environ.get("CHAOS_FACTOR", "1"))


@pytest.fixture
def factor() -> int:
    return chaos_factor()


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
