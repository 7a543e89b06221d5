"""What `rewardfleet up` starts: defaults, a file, flags."""

import itertools
import socket
from pathlib import Path

import pytest

from rewardfleet_server.up import settings
from rewardfleet_server.up.settings import free_port, plan, read_config

from ...conftest import table

FILE = """
port = 19000
only = ["code", "tools"]
data_dir = "/data"

[code]
replicas = 2
workers = 3
packages = ["numpy", "pandas"]

[tools]
port = 19083
run_state = "redis://127.0.0.1:6379/0"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.toml"
    path.write_text(FILE)
    return path


def test_by_default_all_services_start_with_stores_on_disk():
    planned = {each.name: each for each in plan(read_config(None, {"data_dir": Path("/data")}))}
    assert list(planned) == ["video-0", "code-0", "episode-0", "tools-0", "answers-0"]
    ports = [each.settings.port for each in planned.values()]
    assert ports == [18080, 18081, 18082, 18083, 18084]
    assert planned["code-0"].settings.cache == "/data/code-cache.sqlite"
    assert planned["tools-0"].settings.run_state == "/data/run-state.sqlite"
    assert planned["episode-0"].settings.run_state == "/data/run-state.sqlite"
    assert all(each.settings.host == "127.0.0.1" for each in planned.values())


def test_flags_of_the_video_service_replace_its_settings(tmp_path: Path):
    file = tmp_path / "fleet.toml"
    file.write_text('[video]\nbackend = ["openai"]\nmax_in_flight = 3\n')
    video = {"video_root": [tmp_path], "backend": ["reference"]}
    (planned,) = plan(read_config(file, {"only": ["video"], "video": video}))
    assert planned.settings.backends == ["reference"]
    assert (planned.settings.video_root, planned.settings.max_in_flight) == ([tmp_path], 3)
    with pytest.raises(
        ValueError, match="video_root, backend of video: give it for one of the services code"
    ):
        read_config(None, {"only": ["code"], "video": video})


def test_all_services_keep_what_they_scored_in_one_log(tmp_path: Path):
    config = read_config(None, {"score_log": tmp_path / "log", "score_log_sample": 0.5})
    found = {(each.settings.score_log, each.settings.score_log_sample) for each in plan(config)}
    assert found == {(tmp_path / "log", 0.5)}


def test_the_settings_of_a_file_become_flags(file: Path):
    config = read_config(file, {})
    assert (config.port, config.data_dir) == (19000, Path("/data"))
    first, second, tools = plan(config)
    assert [first.settings.port, second.settings.port] == [18081, 18091]
    assert first.flags == [
        "--cache", "/data/code-cache.sqlite", "--workers", "3",
        "--packages", "numpy", "--packages", "pandas", "--port", "18081",
    ]  # fmt: skip
    assert tools.settings.run_state == "redis://127.0.0.1:6379/0"


def test_flags_come_before_the_file(file: Path):
    overrides = {"port": 20000, "only": ["tools"], "tools": {"replicas": 3}}
    planned = plan(read_config(file, overrides))
    assert [each.settings.port for each in planned] == [19083, 19093, 19103]
    assert planned[0].settings.replicas == 3


def test_port_0_is_a_free_port_that_no_connection_gets(tmp_path: Path):
    path = tmp_path / "fleet.toml"
    path.write_text("[tools]\nport = 0\nreplicas = 100\n")
    ports = {each.settings.port for each in plan(read_config(path, {"only": ["tools"]}))}
    assert len(ports) == 100
    first_of_connections = int(
        Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]
    )
    assert min(ports) > 1024 and max(ports) < first_of_connections


def test_free_ports_leave_out_those_in_use(monkeypatch: pytest.MonkeyPatch):
    taken = free_port()
    with socket.create_server(("127.0.0.1", taken)):
        numbers = itertools.count(taken - settings._LOWEST_PORT)  # it would be the next one
        monkeypatch.setattr(settings, "_NUMBERS", numbers)
        assert free_port() != taken


@pytest.mark.parametrize(("content", "overrides", "reason"), table("fleet_settings"))
def test_what_is_not_accepted_is_named(tmp_path: Path, content: str, overrides: dict, reason: str):
    path = tmp_path / "fleet.toml"
    path.write_text(content)
    with pytest.raises(ValueError, match=reason):
        plan(read_config(path, overrides))


def test_a_file_that_does_not_exist_is_named():
    with pytest.raises(ValueError, match="--config /none/fleet.toml"):
        read_config(Path("/none/fleet.toml"), {})
