"""The environment of every container has settings of its service, with values that it accepts."""

import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from rewardfleet_server.flags import read_settings
from rewardfleet_server.registry import SERVICES
from rewardfleet_server.settings import ENV_PREFIX, ServerSettings

from ..server.code.test_memory import slack_bytes
from .manifests import (
    OVERLAYS,
    Manifest,
    Manifests,
    container_of,
    name_of,
    names_of,
    pod_of,
    ports_of,
    quantity,
)

#: Variables of other programs.
OTHERS = {"HOME", "HF_TOKEN", "OTEL_EXPORTER_OTLP_ENDPOINT"}
KEY_FILE = f"{ENV_PREFIX}API_KEY_FILE"


def settings_of(overlay: Manifests, workload: Manifest, keys: Path) -> ServerSettings:
    """Return the settings as the service reads them from its environment."""
    keys.write_text("key")
    environment = overlay.environment(container_of(workload)) | {KEY_FILE: str(keys)}
    given = {name: value or "redis://:p@redis:6379/0" for name, value in environment.items()}
    serve, service = container_of(workload)["args"]
    assert serve == "serve"
    settings_type = SERVICES[service].settings.load()
    known = {f"{ENV_PREFIX}{name.upper()}" for name in settings_type.model_fields}
    assert given.keys() - OTHERS <= known
    with mock.patch.dict(os.environ, given):
        return read_settings(settings_type, {})


@pytest.fixture
def settings(overlay: Manifests, tmp_path: Path) -> dict[str, Any]:
    return {
        name_of(each): settings_of(overlay, each, tmp_path / "keys") for each in overlay.services()
    }


def test_every_service_accepts_its_settings(overlay: Manifests, settings: dict[str, Any]):
    assert settings.keys() >= SERVICES.keys()
    for name, each in settings.items():
        assert {"http": each.port} == ports_of(overlay.workload(name))
        assert not each.allow_unauthenticated and not each.open_metrics


def test_the_api_keys_are_where_the_setting_says(overlay: Manifests):
    for workload in overlay.services():
        container = container_of(workload)
        path = Path(overlay.environment(container)[KEY_FILE])
        (mount,) = [m for m in container["volumeMounts"] if m["mountPath"] == str(path.parent)]
        (volume,) = [v for v in pod_of(workload)["volumes"] if v["name"] == mount["name"]]
        assert [each["path"] for each in volume["secret"]["items"]] == [path.name]


@pytest.mark.parametrize("name", ["episode", "tools"])
def test_replicas_share_run_state(overlay: Manifests, settings: dict[str, Any], name: str):
    assert settings[name].replicas == overlay.workload(name)["spec"]["replicas"] > 1
    assert settings[name].run_state


def test_the_code_service_has_what_its_programs_need(overlay: Manifests, settings: dict[str, Any]):
    code = settings["code"]
    resources = container_of(overlay.workload("code"))["resources"]
    limits = resources["limits"]
    assert code.workers == quantity(limits["cpu"])
    assert limits["memory"] == resources["requests"]["memory"]
    slack = slack_bytes(int(quantity(limits["memory"])), code.workers, code.max_memory_mb)
    assert slack >= 0.5 * 2**30


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_code_service_refuses_to_start_below_its_isolation(
    overlays: dict[str, Manifests], name: str
):
    environment = overlays[name].environment(container_of(overlays[name].workload("code")))
    expected = "bubblewrap" if name == "code-userns" else "landlock"
    assert environment[f"{ENV_PREFIX}ISOLATION"] == expected


def test_the_judge_gets_the_gpus_that_it_uses(overlays: dict[str, Manifests], tmp_path: Path):
    workload = overlays["gpu"].workload("vlm")
    settings: Any = settings_of(overlays["gpu"], workload, tmp_path / "keys")
    container = container_of(workload)
    gpus = container["resources"]["limits"]["nvidia.com/gpu"]
    assert settings.backends == ["qwen2_5_vl_vllm"]
    assert settings.judge_settings("qwen2_5_vl_vllm").gpus == gpus
    volumes = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert names_of(workload["spec"]["volumeClaimTemplates"]) == {"models"}
    assert volumes["models"] == "/models"


def test_the_ingress_takes_bodies_and_waits_as_the_services_do(
    overlay: Manifests, settings: dict[str, Any]
):
    (ingress,) = overlay.of("Ingress")
    given = ingress["metadata"]["annotations"]
    nginx = {name.removeprefix("nginx.ingress.kubernetes.io/"): given[name] for name in given}
    load_balancer = given["alb.ingress.kubernetes.io/load-balancer-attributes"].partition("=")[2]
    waits = (nginx["proxy-read-timeout"], nginx["proxy-send-timeout"], load_balancer)
    assert min(map(int, waits)) > max(each.deadline_s for each in settings.values())
    assert nginx["proxy-body-size"] == f"{max(each.max_body_mb for each in settings.values())}m"
    assert nginx["proxy-request-buffering"] == "off"  # else all of a waiting body would be read
