"""`rewardfleet gateway`: names that change, and processes that hang or are started again."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import pytest

from rewardfleet.commands.main import main
from rewardfleet_server.http.allowed_hosts import AllowedHosts
from rewardfleet_server.http.server import GracefulServer
from rewardfleet_server.system.listener import bind
from rewardfleet_server.testing import serving, wait_until
from rewardfleet_server.tools.app import create_app
from rewardfleet_server.tools.settings import ToolsSettings
from rewardfleet_server.up import replicas as replicas_module
from rewardfleet_server.up import timeouts
from rewardfleet_server.up.gateway import Gateway
from rewardfleet_server.up.line import most_waiting
from rewardfleet_server.up.replicas import Replica, follow
from rewardfleet_server.up.settings import free_port

from ...conftest import table
from ...running import running
from ..processes import service_process

HEALTH_CHECK = Path(__file__).parents[3] / "deploy/healthcheck.py"


@contextmanager
def gateway(*services: str) -> Iterator[str]:
    """Run `rewardfleet gateway`; yield its URL."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    flags = [f"--port={port}", *(f"--service={each}" for each in services)]
    command = [sys.executable, "-m", "rewardfleet_server", "gateway", *flags]
    with running(command, f"{url}/readyz") as process:
        yield url
    assert process.returncode == 0


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.01)


class Names:
    """What DNS answers, which is the only stand-in here: the addresses of each name.

    Attributes:
        looks: How often it was asked.
    """

    def __init__(self) -> None:
        self.addresses: dict[str, list[str]] = {}
        self.looks = 0

    async def look_up(self, host: str, port: int, *, family: int, type: int):  # noqa: A002 - asyncio's
        assert type == socket.SOCK_STREAM
        self.looks += 1
        if family != socket.AF_INET or not self.addresses[host]:
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return [(family, type, 6, "", (each, port)) for each in self.addresses[host]]


@pytest.fixture
async def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    monkeypatch.setattr(timeouts, "LOOK_UP_SECONDS", 0.02)
    names = Names()
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", names.look_up)
    return names


@asynccontextmanager
async def followed(*hosts: str) -> AsyncIterator[tuple[list[Replica], str]]:
    """Follow names of a service on 127.0.0.1; yield its replicas and its port."""
    replicas: list[Replica] = []
    with serving(create_app(ToolsSettings())) as url:
        port = url.rstrip("/").rpartition(":")[2]
        urls = [f"http://{each}:{port}" for each in hosts]
        following = asyncio.create_task(follow("tools", urls, replicas))
        try:
            yield replicas, port
        finally:
            following.cancel()


async def test_requests_stay_while_no_other_replica_answers(monkeypatch: pytest.MonkeyPatch):
    """A machine that is busy delays all replicas; the work of none is thrown away."""
    monkeypatch.setattr(timeouts, "CHECK_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(timeouts, "READY_CHECK_SECONDS", 0.05)
    monkeypatch.setattr(timeouts, "MOVE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        replica, peer = Replica("code", url, True), Replica("code", url)
        given_up: list[str] = []
        monkeypatch.setattr(replica, "abandon", given_up.append)
        watching = asyncio.create_task(replicas_module.watch(replica, [replica, peer]))
        try:
            await until(lambda: not replica.is_ready)
            await asyncio.sleep(0.5)
            assert not given_up
            peer.is_ready = True
            await until(lambda: bool(given_up))
        finally:
            watching.cancel()
    assert given_up[0].startswith("it has not answered for")


async def test_replicas_are_the_addresses_of_a_name(names: Names):
    names.addresses["tools"] = addresses = []
    async with followed("tools") as (replicas, _):

        async def until_ready(*ready: bool) -> None:
            await until(lambda: [each.is_ready for each in replicas] == list(ready))

        await asyncio.sleep(0.1)
        assert replicas == []
        addresses += ["127.0.0.1"]
        await until_ready(True)
        (first,) = replicas
        addresses += ["127.0.0.2"]  # nothing listens there
        await until_ready(True, False)
        assert replicas[0] is first
        addresses.clear()  # DNS does not answer: the one that answers stays
        await until_ready(True)
        assert replicas == [first]
        addresses += ["127.0.0.3"]
        await until_ready(False)
        addresses.clear()
        await until(lambda: replicas[0].last_failure == "its name has no address")


async def test_a_name_server_that_fails_changes_no_replica(monkeypatch: pytest.MonkeyPatch):
    """It may fail for one family of addresses only."""
    status = socket.EAI_NONAME

    async def look_up(host: str, port: int, *, family: int, type: int):  # noqa: A002 - asyncio's
        if family == socket.AF_INET:
            raise socket.gaierror(status, "no IPv4 address")
        return [(family, type, 6, "", ("::1", port, 0, 0))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
    assert await replicas_module._addresses("http://tools:8080") == {"http://[::1]:8080"}
    status = socket.EAI_AGAIN
    assert await replicas_module._addresses("http://tools:8080") == set()


async def test_a_replica_stays_while_its_name_alone_is_unknown(names: Names):
    """Of two names of a service; the other one has an address."""
    names.addresses |= {"first": ["127.0.0.1"], "second": ["127.0.0.2"]}
    async with followed("first", "second") as (replicas, port):
        await until(lambda: any(each.is_ready for each in replicas))
        assert len(replicas) == 2
        names.addresses["first"].clear()
        before = names.looks
        await until(lambda: names.looks >= before + 10)
    assert {each.url: each.is_ready for each in replicas} == {
        f"http://127.0.0.1:{port}": True,
        f"http://127.0.0.2:{port}": False,
    }


async def test_a_replica_that_left_its_name_is_watched_while_it_has_requests(
    names: Names, monkeypatch: pytest.MonkeyPatch
):
    """It may freeze while it ends, and its requests are sent to others."""
    for name in ("CHECK_TIMEOUT_SECONDS", "READY_CHECK_SECONDS"):
        monkeypatch.setattr(timeouts, name, 0.05)
    monkeypatch.setattr(timeouts, "MOVE_SECONDS", 0.5)
    given_up: list[str] = []
    monkeypatch.setattr(Replica, "abandon", lambda each, _: given_up.append(each.url))
    names.addresses["tools"] = ["127.0.0.1", "127.0.0.2"]  # nothing listens at the second
    async with followed("tools") as (replicas, _):
        await until(lambda: len(replicas) == 2)
        gone = next(each for each in replicas if "127.0.0.2" in each.url)
        gone.outstanding = 1
        del names.addresses["tools"][1]
        await until(lambda: len(replicas) == 1)
        given_up.clear()
        await until(lambda: gone.url in given_up)


PORT = ["--port=99999", "--service=code=http://code"]


@pytest.mark.parametrize(
    ("flags", "reason"), [*((each, "give") for each in table("gateway_flags")), (PORT, "--port")]
)
def test_what_is_no_service_or_port_is_refused(flags: list[str], reason: str, capsys):
    assert main(["gateway", *flags]) == 2
    assert reason in capsys.readouterr().err


async def test_a_gateway_that_knows_no_replica_is_not_ready():
    hosts = AllowedHosts([], listens_on="127.0.0.1", has_keys=False)
    gateway = Gateway({"code": []}, hosts)
    transport = httpx.ASGITransport(gateway)  # type: ignore[arg-type] # it is one
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        answer = await http.get("/readyz")
    assert (answer.status_code, answer.json()["detail"]) == (503, "no replica is ready: code")


def test_the_line_has_the_files_that_are_free():
    """A request in line has one open file, and at a replica two."""
    assert most_waiting(20_000, 64) == (20_000 - 2 * 4096 - 256) // 2
    assert most_waiting(20_000, 1) == 10_000
    assert most_waiting(10_000, 1) == 10_000 - 2 * 4096 - 256 - 256


async def test_a_gateway_can_be_started_again_at_once():
    """Connections that it has closed do not keep its address."""
    port = 0
    for _ in range(2):
        listener = bind("127.0.0.1", port)
        port = listener.getsockname()[1]
        hosts = AllowedHosts([], listens_on="127.0.0.1", has_keys=False)
        server = GracefulServer(Gateway({}, hosts), handles_signals=False)
        serving = asyncio.create_task(server.serve([listener]))
        await until(lambda server=server: server.started)
        async with httpx.AsyncClient(trust_env=False) as http:
            assert (await http.get(f"http://127.0.0.1:{port}/healthz")).status_code == 200
            server.should_exit = True
            await serving


def _check_health(port: int) -> subprocess.CompletedProcess[str]:
    """Run the health check of the images, which here waits for a second instead of 32."""
    program = (
        "import runpy, sys\n"
        f"main = runpy.run_path({str(HEALTH_CHECK)!r})['main']\n"
        "main.__globals__.update(ANSWER_SECONDS=0.5, ATTEMPTS=2)\n"
        "sys.exit(main())"
    )
    command = [sys.executable, "-I", "-c", program, str(port)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_health_check_ends_a_service_that_is_frozen():
    with service_process("tools") as (service, url):
        port = int(url.rpartition(":")[2])
        assert subprocess.run([sys.executable, "-I", HEALTH_CHECK, str(port)], check=False,
                              timeout=60).returncode == 0  # fmt: skip
        os.kill(service.pid, signal.SIGSTOP)
        started = time.monotonic()
        found = _check_health(port)
        assert found.returncode == 1
        assert f"process {service.pid} is killed" in found.stdout
        assert time.monotonic() - started >= 1
        wait_until(lambda: _check_health(port).stdout.startswith("[Errno"))  # refused: it has ended
