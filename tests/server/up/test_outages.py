"""Outages behind a gateway, of real processes and callers that repeat nothing: no call is lost."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from rewardfleet.commands.status import command as status_command
from rewardfleet_server.http.server import GracefulServer
from rewardfleet_server.system.listener import bind
from rewardfleet_server.up import timeouts
from rewardfleet_server.up.gateway import Gateway

from ...chaos.processes import ServiceProcess
from ...gateways import LOOPBACK
from .test_command import gateway, until
from .test_supervisor import running, tools_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

ANSWER = '<think>x</think>\n<tool_call>\n{"name": "search", "parameters": {}}\n</tool_call>'
BODY = json.dumps({"response": ANSWER, "ground_truth": ANSWER}).encode()
#: Bytes of the bodies, which take turns.
_SIZES = (500, 50_000, 2**20 - 1000)
_CALLERS = 12


class Load:
    """Callers of a gateway that repeat nothing; `done` counts the right scores, each with 200."""

    def __init__(self, url: str) -> None:
        self.done = 0
        self._url = url
        self._over = False

    async def _call(self, http: httpx.AsyncClient, number: int) -> None:
        while not self._over:
            body = BODY.ljust(_SIZES[number % len(_SIZES)])
            headers = {"x-request-id": f"caller-{number}", "content-type": "application/json"}
            answer = await http.post(f"{self._url}/tools/score", content=body, headers=headers)
            assert (answer.status_code, answer.json().get("score")) == (200, 4.0), answer.text
            self.done += 1

    async def more(self, calls: int) -> None:
        """Wait until so many more calls have been answered."""
        least = self.done + calls
        await until(lambda: self.done >= least)

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator["Load"]:
        limits = httpx.Limits(max_connections=2 * _CALLERS)
        async with (
            httpx.AsyncClient(trust_env=False, timeout=120, limits=limits) as http,
            asyncio.TaskGroup() as group,
        ):
            for number in range(_CALLERS):
                group.create_task(self._call(http, number))
            yield self
            self._over = True


def held(url: str) -> list[int]:
    """Return how many requests wait: by the gauge, in `/inflight`, and as the command shows it."""
    lines = httpx.get(f"{url}/metrics", trust_env=False, timeout=60).text.splitlines()
    gauge = 'rewardfleet_waiting_requests{route="/tools",service="gateway"} '
    (value,) = (each.removeprefix(gauge) for each in lines if each.startswith(gauge))
    listed = httpx.get(f"{url}/tools/inflight", trust_env=False, timeout=60).json()
    shown = CliRunner().invoke(status_command, ["--inflight", url]).output
    of_line = [each for each in listed["samples"] if each["stage"] == "line"]
    assert all(each["path"] == "/score" and "caller-" in each["request_id"] for each in of_line)
    return [int(float(value)), len(of_line), shown.count("line for")]


@pytest.mark.parametrize(("gone", "count"), [(1, 1), (2, 2), (1, 2)])
@pytest.mark.parametrize("way", ["SIGKILL", "SIGSTOP", "SIGTERM"])
async def test_no_call_is_lost_while_replicas_are_gone(
    tmp_path: Path, way: str, gone: int, count: int
):
    """Killed, frozen or ended under load, and there again; calls wait if all of them are."""
    flags = ["tools", "--run-state", str(tmp_path / "runs.sqlite"), "--replicas", str(count)]
    with ExitStack() as stack:
        replicas = [stack.enter_context(ServiceProcess(tmp_path, *flags)) for _ in range(count)]
        for each in replicas:
            each.wait_until_ready()
        absent = "vlm=http://rewardfleet.invalid:8080"
        url = stack.enter_context(gateway(*(f"tools={each.url}" for each in replicas), absent))
        await until(lambda: len(ready(url)) == count)
        async with Load(url)() as load:
            await load.more(3 * _CALLERS)
            for each in replicas[:gone]:
                {"SIGKILL": each.kill, "SIGSTOP": each.freeze, "SIGTERM": each.terminate}[way]()
            if gone == count and way != "SIGSTOP":  # else a frozen process has some of them
                while await asyncio.to_thread(held, url) != [_CALLERS] * 3:
                    await asyncio.sleep(0.1)
            await until(lambda: len(ready(url)) == count - gone)
            if gone < count:
                await load.more(3 * _CALLERS)
            for each in replicas[:gone]:
                each.thaw() if way == "SIGSTOP" else each.start()
            await load.more(3 * _CALLERS)
        assert await asyncio.to_thread(held, url) == [0, 0, 0]


def ready(url: str) -> Sequence[bool]:
    services = httpx.get(url, trust_env=False, timeout=60).json()["services"]
    return [each for each in services["tools"]["replicas"] if each["is_ready"]]


async def test_requests_of_a_frozen_process_are_sent_to_the_one_that_replaces_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(timeouts, "FROZEN_SECONDS", 4)
    monkeypatch.setattr(timeouts, "CHECK_TIMEOUT_SECONDS", 1)
    process = tools_process(tmp_path, tmp_path)
    async with running(process) as replica:
        server = GracefulServer(Gateway({"tools": [replica]}, LOOPBACK), handles_signals=False)
        listener = bind("127.0.0.1", 0)
        serving = asyncio.create_task(server.serve([listener]))
        await until(lambda: server.started)
        async with Load(f"http://127.0.0.1:{listener.getsockname()[1]}")() as load:
            await load.more(3 * _CALLERS)
            process._process.send_signal(signal.SIGSTOP)
            await until(lambda: replica.restarts == 1)
            await load.more(3 * _CALLERS)
        server.should_exit = True
        await serving
    assert "SIGKILL" in replica.last_failure
