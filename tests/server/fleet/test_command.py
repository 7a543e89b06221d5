"""`rewardfleet gateway`: real services, one of which is frozen, and names that change."""

import asyncio
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from rewardfleet import RewardFleet
from rewardfleet_server.cli import main
from rewardfleet_server.fleet import discovery, health
from rewardfleet_server.fleet.settings import free_port
from rewardfleet_server.testing import serving, wait_until
from rewardfleet_server.tools.app import create_app
from rewardfleet_server.tools.settings import ToolsSettings

from ..processes import service_process

HEALTH_CHECK = Path(__file__).parents[3] / "deploy/healthcheck.py"


@contextmanager
def gateway(*services: str) -> Iterator[str]:
    """Run `rewardfleet gateway`; yield its URL."""
    port = free_port()
    flags = [f"--port={port}", *(f"--service={each}" for each in services)]
    process = subprocess.Popen([sys.executable, "-m", "rewardfleet_server", "gateway", *flags])
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: _status(f"{url}/readyz") == 200, 120)
        yield url
    finally:
        process.terminate()
        assert process.wait(60) == 0


def _status(url: str) -> int:
    try:
        return httpx.get(url, trust_env=False, timeout=2).status_code
    except httpx.TransportError:
        return 0


def _is_ready(url: str, replica: str) -> bool:
    services = httpx.get(url, trust_env=False, timeout=60).json()["services"]
    return {each["url"]: each["is_ready"] for each in services["code"]["replicas"]}[replica]


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_no_call_is_lost_while_a_replica_is_frozen(tmp_path: Path):
    """Two processes of `code`, one of which is stopped by SIGSTOP under load."""
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                service_process("code", "--workers=1", f"--cache-file={tmp_path}/{number}")
            )
            for number in range(2)
        ]
        urls = [url for _, url in running]
        absent = "vlm=http://rewardfleet.invalid:8080"
        url = stack.enter_context(gateway(*(f"code={each}" for each in urls), absent))
        wait_until(lambda: all(_is_ready(url, each) for each in urls))
        frozen = running[0][0].pid
        try:
            done, tests = itertools.count(), {"kind": "stdio", "cases": [{"stdout": "1"}]}
            half = asyncio.Event()

            async def score(http: httpx.AsyncClient, number: int) -> tuple[int, float | None]:
                program = f"import time\ntime.sleep(0.05)\nprint({number} // {number})"
                body = {"revision": program, "tests": tests}
                answer = await http.post(f"{url}/code/score", json=body)
                if next(done) == 20:
                    half.set()
                return answer.status_code, answer.json().get("score")

            limits = httpx.Limits(max_connections=30)
            async with httpx.AsyncClient(trust_env=False, timeout=120, limits=limits) as http:
                # This client repeats nothing.
                load = asyncio.gather(*(score(http, number) for number in range(1, 101)))
                await half.wait()
                os.kill(frozen, signal.SIGSTOP)
                assert not load.done()
                assert await load == [(200, 1.0)] * 100
            assert not _is_ready(url, urls[0])
            assert _status(f"{url}/readyz") == 200
            assert _status(f"{url}/vlm/readyz") == 503
            async with RewardFleet(url) as fleet:
                assert (await fleet.code.score("print(1)", tests)).score == 1.0
        finally:
            os.kill(frozen, signal.SIGCONT)
        wait_until(lambda: _is_ready(url, urls[0]))


async def test_requests_stay_while_no_other_replica_answers(monkeypatch: pytest.MonkeyPatch):
    """A machine that is busy delays all replicas; the work of none is thrown away."""
    monkeypatch.setattr(health, "_CHECK_SECONDS", 0.05)
    monkeypatch.setattr(health, "_READY_SECONDS", 0.05)
    monkeypatch.setattr(health, "_MOVE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        replica, peer = health.Replica("code", url, True), health.Replica("code", url)
        given_up: list[str] = []
        monkeypatch.setattr(replica, "abandon", given_up.append)
        watching = asyncio.create_task(health.watch(replica, [replica, peer]))
        try:
            async with asyncio.timeout(60):
                while replica.is_ready:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.5)
                assert not given_up
                peer.is_ready = True
                while not given_up:
                    await asyncio.sleep(0.01)
        finally:
            watching.cancel()
    assert given_up[0].startswith("it has not answered for")


async def test_replicas_are_the_addresses_of_a_name(monkeypatch: pytest.MonkeyPatch):
    """Of a name in DNS, which is the only stand-in here."""
    monkeypatch.setattr(discovery, "_LOOK_SECONDS", 0.02)
    addresses: list[str] = []

    async def look_up(host: str, port: int, *, family: int, type: int):  # noqa: A002 - asyncio's
        assert (host, type) == ("tools", socket.SOCK_STREAM)
        if family != socket.AF_INET or not addresses:
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return [(family, type, 6, "", (each, port)) for each in addresses]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
    replicas: list[discovery.Replica] = []

    async def until(*ready: bool) -> None:
        async with asyncio.timeout(60):
            while [each.is_ready for each in replicas] != list(ready):
                await asyncio.sleep(0.01)

    with serving(create_app(ToolsSettings())) as url:
        port = url.rstrip("/").rpartition(":")[2]
        following = asyncio.create_task(
            discovery.follow("tools", [f"http://tools:{port}"], replicas)
        )
        try:
            await asyncio.sleep(0.1)
            assert replicas == []
            addresses += ["127.0.0.1"]
            await until(True)
            (first,) = replicas
            addresses += ["127.0.0.2"]  # nothing listens there
            await until(True, False)
            assert replicas[0] is first
            addresses.clear()  # DNS does not answer: the one that answers stays
            await until(True)
            assert replicas == [first]
            addresses += ["127.0.0.3"]
            await until(False)
            addresses.clear()
            async with asyncio.timeout(60):
                while replicas[0].last_failure != "its name has no address":
                    await asyncio.sleep(0.01)
        finally:
            following.cancel()


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--service=code"],
        ["--service=code=https://code:8080"],
        ["--service=code=http://"],
        ["--service=/=http://code"],
        ["--service=code=http://code:8080/score"],
    ],
)
def test_a_service_needs_a_name_and_a_url(flags: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(["gateway", *flags]) == 2
    assert "give" in capsys.readouterr().err


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
