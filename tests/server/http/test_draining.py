"""A server that is ended: every connection that the kernel has accepted gets its answer."""

import asyncio
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from rewardfleet_server.http.server import refuse_new
from rewardfleet_server.testing import wait_until

from ...chaos.fleet import fleet_up
from ..processes import service_process
from .raw import connect_to, has_ended, response

pytestmark = pytest.mark.slow

REQUEST = b"GET /tools/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
Ended = tuple[subprocess.Popen[str], str]


@pytest.fixture(params=["service", "gateway"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ended]:
    if request.param == "service":
        with service_process("tools") as running:
            yield running
    else:
        with fleet_up(tmp_path, "[tools]\nport = 0\n", "--only", "tools") as fleet:
            yield fleet.process, fleet.url


async def ask(url: str) -> str:
    """Send one request on a connection of its own; return its status, or how it failed.

    A server that ends waits half a second for a request: a later reset says the machine is busy.
    """
    address, began = urlsplit(url), time.monotonic()
    try:
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
    except ConnectionRefusedError:
        return "refused"
    try:
        writer.write(REQUEST)
        start = await reader.readline()
        if start:
            return start.split()[1].decode()
        outcome = "closed"
    except ConnectionResetError:
        outcome = "reset"
    finally:
        writer.close()
    return outcome if time.monotonic() < began + 0.5 else "late"


async def test_no_connection_is_reset_that_was_accepted(server: Ended):
    process, url = server
    calls: list[asyncio.Task[str]] = []
    while process.poll() is None:
        is_burst = len(calls) < 500
        calls += [asyncio.create_task(ask(url)) for _ in range(50 if is_burst else 10)]
        if len(calls) == 500:
            process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.002 if is_burst else 0.05)
    outcomes = Counter(await asyncio.gather(*calls))
    assert process.returncode == 0
    allowed = {"200", "404", "503", "refused", "late"}
    assert outcomes.keys() <= allowed and outcomes.total() > 500, outcomes


def test_connections_that_are_idle_get_one_more_answer_and_end(server: Ended):
    process, url = server
    with connect_to(url) as used, connect_to(url) as unused, connect_to(url) as silent:
        used.sendall(REQUEST)
        assert response(used)[0] in {200, 404}
        process.send_signal(signal.SIGTERM)
        with socket.socket() as listener:
            if refuse_new(listener):  # else it listens until it has ended
                wait_until(lambda: not is_listening(url))
        unused.sendall(REQUEST)
        assert response(unused)[0] in {200, 404, 503}
        assert has_ended(unused) and has_ended(used) and has_ended(silent)
        assert process.wait(60) == 0


def is_listening(url: str) -> bool:
    """Return whether a connection is accepted; within a second, the kernel may not answer."""
    try:
        with socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), timeout=0.05):
            return True
    except OSError:
        return False
