"""`rewardfleet up`: real processes, below one address."""

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path

import pytest

from rewardfleet import blocking
from rewardfleet_server.testing import wait_until
from rewardfleet_server.up import timeouts
from rewardfleet_server.up.processes import ReplicaProcess
from rewardfleet_server.up.replicas import Replica
from rewardfleet_server.up.settings import plan, read_config

from ...chaos.fleet import Fleet, starting_fleet
from ...measure import Stopwatch
from ...running import output_of
from ..processes import is_zombie

pytestmark = pytest.mark.slow

ANSWER = "<think>a</think>\n<response>1</response>"


def up(folder: Path) -> AbstractContextManager[Fleet]:
    """Start a fleet of three processes."""
    config = "[episode]\nport = 0\n[tools]\nport = 0\nreplicas = 2\n"
    return starting_fleet(folder, config, "--only", "tools,episode")


def test_a_fleet_restarts_a_replica_and_ends_with_its_services_if_killed_and_by_ctrl_c(
    tmp_path: Path,
):
    """No other fleet starts with its data folder before it has ended."""
    with up(tmp_path) as fleet:
        fleet.wait_until_ready()
        before = fleet.services()
        with blocking.RewardFleet(fleet.url) as client:
            os.kill(before[0], signal.SIGKILL)
            for _ in range(50):
                assert client.tools.reward(ANSWER, ANSWER) == 1.0
        wait_until(lambda: len(set(fleet.services()) - set(before)) == 1)

        def states() -> list[tuple[bool, int]]:
            return sorted((each["is_ready"], each["restarts"]) for each in fleet.replicas())

        wait_until(lambda: states() == [(True, 0), (True, 0), (True, 1)])
        assert "was ended by SIGKILL" in fleet.log
        pids = fleet.services()
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "data").symlink_to(tmp_path / "data")
        with up(tmp_path / "other") as other:
            assert other.process.wait(150) == 2
            assert f"the fleet of process {fleet.process.pid} uses it" in other.log
        assert fleet.services() == pids
        fleet.process.kill()  # services end with their parent
        fleet.process.wait(60)
        wait_until(lambda: all(map(is_zombie, pids)))
    # It keeps no lock.
    with up(tmp_path / "other") as fleet:
        fleet.wait_until_ready()
        assert set(fleet.index()) == {"tools", "episode"}
        assert f"{fleet.url}/tools" in fleet.log
        assert "Starting tools-0, tools-1, episode-0 below" in fleet.log
        assert re.search(r"(?m)^ *[\d.]+ s  tools-1 is ready$", fleet.log)
        with blocking.RewardFleet(fleet.url) as client:
            assert client.tools.reward(ANSWER, ANSWER) == 1.0
            client.tools.put_budget("run", budget=0.5)
        pids = fleet.services()
        assert len(pids) == 3
        fleet.process.send_signal(signal.SIGINT)
        assert fleet.process.wait(90) == 130
        assert all(map(is_zombie, pids))
    assert (tmp_path / "data" / "logs" / "tools-1.log").exists()


def test_an_occupied_port_is_reported_before_anything_starts(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = occupied.getsockname()[1]
        path = tmp_path / "fleet.toml"
        path.write_text(f"port = 0\n[tools]\nport = {port}\n[episode]\nport = 0\n")
        command = (sys.executable, "-m", "rewardfleet_server", "up", "--only", "tools,episode")
        flags = ("--config", path, "--data-dir", tmp_path / "data")
        text = output_of(*command, *flags, status=1)
    assert f"tools-0: --port {port}" in text
    assert "Nothing was started" in text
    assert not (tmp_path / "data").exists()


def test_a_service_that_cannot_start_ends_the_fleet_with_its_log(tmp_path: Path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "run-state.sqlite").write_text("no database" * 100)
    with starting_fleet(tmp_path, "[tools]\nport = 0\n", "--only", "tools") as fleet:
        assert fleet.process.wait(150) == 1
        assert "ended with status 2" in fleet.log
        assert "run-state" in fleet.log


def tools_process(folder: Path, data: Path) -> ReplicaProcess:
    """Return the process of one replica, which does not run yet."""
    path = folder / "fleet.toml"
    path.write_text("[tools]\nport = 0\n")
    (planned,) = plan(read_config(path, {"only": ["tools"], "data_dir": data}))
    replica = Replica("tools", f"http://127.0.0.1:{planned.settings.port}")
    return ReplicaProcess(planned, replica, folder / "log", [replica])


@asynccontextmanager
async def running(process: ReplicaProcess) -> AsyncIterator[Replica]:
    """Run a replica; yield it once it has been ready."""
    task = asyncio.create_task(process.run())
    try:
        async with asyncio.timeout(150):
            await process.replica.has_been_ready.wait()
            yield process.replica
    finally:
        task.cancel()
        watch = Stopwatch()
        await asyncio.gather(task, return_exceptions=True)
    assert watch.seconds < 30


async def test_a_replica_that_was_ready_for_long_is_restarted_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    process = tools_process(tmp_path, tmp_path)
    async with running(process) as replica:
        for number, (seconds, pause) in enumerate(((60, "0.5"), (0, "0"))):
            monkeypatch.setattr(timeouts, "STABLE_SECONDS", seconds)
            process._process.kill()
            while replica.restarts == number or not replica.is_ready:
                await asyncio.sleep(0.05)
            assert f"was ended by SIGKILL; it is restarted in {pause} s" in caplog.text


async def test_a_replica_moves_to_another_port_if_its_own_was_taken(tmp_path: Path):
    process = tools_process(tmp_path, tmp_path)
    taken = process.replica.url
    with socket.create_server(("127.0.0.1", int(taken.rpartition(":")[2]))):
        async with running(process) as replica:
            pass
    assert replica.url != taken
    assert replica.restarts == 0
