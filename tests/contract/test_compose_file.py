"""docker-compose.yml and `make down`, without an engine; tests/deploy starts the stack."""

import os
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent.parent
SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]

#: Fails to remove the network while something is attached to it, as the engine does.
DOCKER = """#!/bin/sh
echo "$*" >> "$STATE/calls"
case "$*" in
*"compose --profile"*down)
    test -e "$STATE/attached" || exit 0
    echo "error while removing network: network rewardfleet_state has active endpoints" >&2
    exit 1;;
"network ls"*) echo 0123;;
"network inspect"*0123) test -e "$STATE/attached" && echo "other ";;
"network disconnect --force 0123 other") test -e "$STATE/stuck" || rm "$STATE/attached";;
*) exit 9;;
esac
"""


def test_the_logs_of_every_container_are_limited():
    for name, service in SERVICES.items():
        options = service["logging"]["options"]
        assert options.keys() == {"max-size", "max-file"}, name
        assert service["restart"] == "unless-stopped", name


def test_what_a_health_check_can_end_has_an_init_process():
    for name, service in SERVICES.items():
        if service["image"].startswith("rewardfleet"):
            assert service["init"] is True, name


def _down(folder: Path) -> subprocess.CompletedProcess[str]:
    docker = folder / "docker"
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "STATE": str(folder)}
    return subprocess.run(
        ["make", "down"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_make_down_removes_networks_that_have_active_endpoints(tmp_path: Path):
    (tmp_path / "attached").touch()
    done = _down(tmp_path)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "attached").exists()
    assert "label=com.docker.compose.project=rewardfleet" in (tmp_path / "calls").read_text()


def test_make_down_fails_if_the_stack_cannot_be_removed(tmp_path: Path):
    for name in ("attached", "stuck"):
        (tmp_path / name).touch()
    assert _down(tmp_path).returncode != 0
