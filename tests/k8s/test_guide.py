"""docs/kubernetes.md is true: its kustomizations can be built, its commands name what exists."""

import re
from pathlib import Path

import pytest

from .manifests import (
    GUIDE,
    ROOT,
    Manifests,
    build_text,
    container_of,
    name_of,
    pod_of,
    quantity,
)
from .test_pod_security import violations
from .test_scaling import faults
from .test_schemas import validate

KUSTOMIZATIONS = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)


@pytest.mark.parametrize("text", KUSTOMIZATIONS, ids=range(len(KUSTOMIZATIONS)))
def test_kustomizations_are_valid(text: str, tmp_path: Path):
    manifests = build_text(text, tmp_path)
    for each in manifests.items:
        validate(each)
    assert faults(manifests) == []
    found = [fault for each in manifests.workloads for fault in violations(pod_of(each))]
    assert found == (["procMount"] if "code-userns" in text else [])
    for workload in manifests.workloads:
        replicas = manifests.environment(container_of(workload)).get("REWARDFLEET_REPLICAS")
        assert replicas in {None, str(workload["spec"].get("replicas"))}
    assert bool(manifests.of("Ingress")) is ("$patch: delete" not in text)


def _builds(word: str, folder: Path) -> list[Manifests]:
    folders = [(text, folder / str(n)) for n, text in enumerate(KUSTOMIZATIONS) if word in text]
    for _, each in folders:
        each.mkdir()
    return [build_text(text, each) for text, each in folders]


def test_a_patch_gives_the_ingress_a_class_and_the_size_of_bodies(tmp_path: Path):
    (manifests,) = _builds("ingressClassName", tmp_path)
    (ingress,) = manifests.of("Ingress")
    assert ingress["spec"]["ingressClassName"] == "nginx"
    size = ingress["metadata"]["annotations"]["nginx.ingress.kubernetes.io/proxy-body-size"]
    for workload in manifests.services():
        settings = manifests.environment(container_of(workload))
        assert f"{settings['REWARDFLEET_MAX_BODY_MB']}m" == size == "256m"


def test_a_patch_keeps_a_judge_during_an_update(tmp_path: Path):
    (manifests,) = _builds("name: vlm, count", tmp_path)
    spec = manifests.workload("vlm")["spec"]
    assert spec["replicas"] == 2
    # The default: one pod at a time, each once the one before is ready.
    assert spec.get("updateStrategy", {"type": "RollingUpdate"}) == {"type": "RollingUpdate"}
    settings = manifests.environment(container_of(manifests.workload("vlm")))
    hook = container_of(manifests.workload("vlm"))["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert f"serves for {hook} s more" in GUIDE
    assert f"for at most {settings['REWARDFLEET_SHUTDOWN_TIMEOUT_S']} s. Then" in GUIDE


def test_paths_that_are_named_exist():
    paths = set(re.findall(r"(?:rewardfleet/(?=k8s/)|\b(?=deploy/))([\w./-]*\w)", GUIDE))
    assert len(paths) > 5
    assert [each for each in paths - {"deploy/code"} if not (ROOT / each).exists()] == []


def test_commands_name_objects_that_exist(overlays: dict[str, Manifests]):
    (namespace,) = overlays["cpu"].of("Namespace")
    assert set(re.findall(r"kubectl --namespace (\S+)", GUIDE)) == {name_of(namespace)}
    named = re.findall(r"\b(deployment|service)/(\w+)", GUIDE)
    assert named
    for kind, name in named:
        overlays["cpu"].get(kind.capitalize(), name)
    (service, space, port) = re.search(r"http://(\w+)\.(\w+)\.svc:(\d+)", GUIDE).groups()
    ports = overlays["cpu"].get("Service", service)["spec"]["ports"]
    assert (space, port) == (name_of(namespace), str(ports[0]["port"]))


def test_the_requested_resources_are_those_of_the_overlay(overlays: dict[str, Manifests]):
    cores = memory = 0.0
    for workload in overlays["cpu"].workloads:
        requests = container_of(workload)["resources"]["requests"]
        count = workload["spec"].get("replicas", 2)  # the minimum of its autoscaler
        cores += count * quantity(requests["cpu"])
        memory += count * quantity(requests["memory"]) / 2**30
    assert f"{cores:g} cores and {memory:g} GiB" in GUIDE
