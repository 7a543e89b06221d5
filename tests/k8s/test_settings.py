"""The environment of every container has settings of its service, with values that it accepts."""

import re
from pathlib import Path

import pytest

from rewardfleet_server.flags import read_settings
from rewardfleet_server.registry import SERVICES
from rewardfleet_server.settings import ENV_PREFIX, ServerSettings

from .manifests import Manifest, Manifests, containers_of, pod_of, ports_of

#: Variables of other programs.
OTHERS = {"HOME", "HF_TOKEN", "OTEL_EXPORTER_OTLP_ENDPOINT"}
_UNITS = {"Gi": 2**30, "Mi": 2**20, "m": 1e-3, "": 1.0}


def quantity(text: object) -> float:
    """Return a quantity of Kubernetes in bytes or cores."""
    number, unit = re.fullmatch(r"([\d.]+)(\w*)", str(text)).groups()
    return float(number) * _UNITS[unit]


def service_of(workload: Manifest) -> str:
    serve, name = containers_of(workload)[0]["args"]
    assert serve == "serve"
    return name


def services(overlay: Manifests) -> list[Manifest]:
    return overlay.selected({"app.kubernetes.io/component": "service"})


def settings_of(
    overlay: Manifests, workload: Manifest, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> ServerSettings:
    """Return the settings as the service reads them from its environment."""
    keys = folder / "keys"
    keys.write_text("key")
    for name, given in overlay.environment(containers_of(workload)[0]).items():
        value = {f"{ENV_PREFIX}API_KEY_FILE": str(keys)}.get(name, given)
        monkeypatch.setenv(name, value or "redis://:password@redis:6379/0")
    return read_settings(SERVICES[service_of(workload)].load_settings(), {})


def test_variables_are_settings_of_the_service_that_gets_them(overlay: Manifests):
    found = services(overlay)
    assert len(found) >= len(SERVICES)
    for workload in found:
        fields = SERVICES[service_of(workload)].load_settings().model_fields
        known = {f"{ENV_PREFIX}{name.upper()}" for name in fields}
        variables = overlay.environment(containers_of(workload)[0]).keys()
        assert variables - OTHERS <= known, workload["metadata"]["name"]


def test_values_are_accepted(overlay: Manifests, monkeypatch, tmp_path: Path):
    for workload in services(overlay):
        with monkeypatch.context() as patch:
            settings = settings_of(overlay, workload, patch, tmp_path)
        assert {"http": settings.port} == ports_of(workload)
        assert not settings.allow_unauthenticated and not settings.open_metrics


def test_the_api_keys_are_where_the_setting_says(overlay: Manifests):
    for workload in services(overlay):
        (container,) = containers_of(workload)
        path = Path(overlay.environment(container)[f"{ENV_PREFIX}API_KEY_FILE"])
        (mount,) = [m for m in container["volumeMounts"] if m["mountPath"] == str(path.parent)]
        (volume,) = [v for v in pod_of(workload)["volumes"] if v["name"] == mount["name"]]
        assert [each["path"] for each in volume["secret"]["items"]] == [path.name]


def test_replicas_share_run_state(overlay: Manifests, monkeypatch, tmp_path: Path):
    for name in ("episode", "tools"):
        workload = overlay.workload(name)
        with monkeypatch.context() as patch:
            settings = settings_of(overlay, workload, patch, tmp_path)
        assert settings.replicas == workload["spec"]["replicas"] > 1
        assert settings.run_state_url


def test_the_code_service_has_the_cores_and_the_memory_of_its_programs(
    overlay: Manifests, monkeypatch, tmp_path: Path
):
    workload = overlay.workload("code")
    with monkeypatch.context() as patch:
        settings = settings_of(overlay, workload, patch, tmp_path)
    limits = containers_of(workload)[0]["resources"]["limits"]
    assert settings.workers == quantity(limits["cpu"])
    # Each worker may have three more programs that sleep.
    assert 4 * settings.workers * settings.max_memory_mb * 2**20 <= quantity(limits["memory"])


def test_the_isolation_is_named_so_that_the_service_refuses_to_start_below_it(
    overlays: dict[str, Manifests],
):
    for name, overlay in overlays.items():
        environment = overlay.environment(containers_of(overlay.workload("code"))[0])
        expected = "bubblewrap" if name == "code-userns" else "landlock"
        assert environment["REWARDFLEET_ISOLATION"] == expected


def test_the_judge_gets_the_gpus_that_it_uses(overlays, monkeypatch, tmp_path: Path):
    overlay = overlays["gpu"]
    workload = overlay.workload("vlm")
    settings = settings_of(overlay, workload, monkeypatch, tmp_path)
    (container,) = containers_of(workload)
    gpus = container["resources"]["limits"]["nvidia.com/gpu"]
    assert settings.tensor_parallel_size * settings.data_parallel_size == gpus
    assert settings.backends == ["qwen2_5_vl_vllm"]
    volumes = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    claims = {each["metadata"]["name"] for each in workload["spec"]["volumeClaimTemplates"]}
    assert claims == {"models"} and volumes["models"] == "/models"
