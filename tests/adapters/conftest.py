"""A real code service, with its jail, and programs for it."""

import re
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from types import ModuleType

import httpx
import pytest

from rewardfleet import DeadlineExceeded, RewardFleet, Unavailable
from rewardfleet.event_loop_thread import EventLoopThread

from ..client.conftest import answering
from ..programs import FENCED as SUM  # noqa: F401 - for tests
from ..programs import HALF as ECHO  # noqa: F401
from ..programs import TESTS  # noqa: F401
from ..server.code.conftest import served_code

#: What a call to a dead service raises: on a busy machine, its short deadline may pass first.
UNREACHABLE = (Unavailable, DeadlineExceeded)


@pytest.fixture(scope="session")
def code_url():
    with served_code(workers=2) as service:
        yield str(service.client.base_url)


@pytest.fixture
def dead_url() -> Iterator[str]:
    """Return an address that refuses connections, and that no other process can take meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture
def lost_url() -> Iterator[str]:
    """Return the address of a service that can score nothing."""
    body = Unavailable("the service cannot be reached").problem().model_dump_json()
    head = f"HTTP/1.1 503 X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    with answering((head + body).encode()) as url:
        yield url


def install_modules(monkeypatch: pytest.MonkeyPatch, modules: dict[str, dict[str, object]]) -> None:
    """Put modules with these contents, and their packages, in the place of a trainer's."""
    for name, contents in modules.items():
        parts = name.split(".")
        for at in range(1, len(parts) + 1):
            module = ModuleType(".".join(parts[:at]))
            if at == len(parts):
                vars(module).update(contents)
            if at == len(parts) or module.__name__ not in sys.modules:
                monkeypatch.setitem(sys.modules, module.__name__, module)


def requests_to(url: str) -> int:
    """Return how many requests to score programs a code service has answered successfully."""
    metrics = httpx.get(f"{url.rstrip('/')}/metrics", timeout=30, trust_env=False).text
    line = r'(?m)^rewardfleet_requests_total\{kind="",.*service="code",status="200"\} (\S+)$'
    return sum(int(float(each)) for each in re.findall(line, metrics))


@pytest.fixture(autouse=True)
async def closes(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Close what adapters leave open until their process ends: connections, and event loops."""
    made: dict[type, list] = {RewardFleet: [], EventLoopThread: []}
    for kind, instances in made.items():

        def init(self, *args, init=kind.__init__, instances=instances, **given) -> None:
            instances.append(self)
            init(self, *args, **given)

        monkeypatch.setattr(kind, "__init__", init)
    yield

    async def close() -> None:
        for fleet in made[RewardFleet]:
            if hasattr(fleet, "_pending"):  # else it raised when it was created
                await fleet.aclose()

    await close()
    for loop in made[EventLoopThread]:
        loop.close(close())
