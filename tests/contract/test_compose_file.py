"""docker-compose.yml and `make down`, without an engine; tests/deploy starts the stack."""

import os
from pathlib import Path

import yaml

from ..running import output_of

ROOT = Path(__file__).parent.parent.parent
SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]

#: Removes containers, and then fails to remove their network twice, as the engine may do.
DOCKER = """#!/bin/sh
test "$*" = info && exit
test "$*" = "compose --profile * down" || exit 9
echo >> "$STATE"
test "$(wc -l < "$STATE")" -gt 2 && exit
echo "error while removing network: network rewardfleet_state has active endpoints" >&2
exit 1
"""


def test_every_container_has_limited_logs_and_an_init_process_if_a_health_check_can_end_it():
    for name, service in SERVICES.items():
        assert service["logging"]["options"].keys() == {"max-size", "max-file"}, name
        assert service["restart"] == "unless-stopped", name
        assert not service["image"].startswith("rewardfleet") or service["init"] is True, name


def test_make_down_waits_until_containers_have_left_their_networks(tmp_path: Path):
    docker = tmp_path / "docker"
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    own = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "STATE": str(tmp_path / "attempts")}
    output_of("make", "down", cwd=ROOT, env={**os.environ, **own})
    assert (tmp_path / "attempts").read_text() == "\n" * 3
