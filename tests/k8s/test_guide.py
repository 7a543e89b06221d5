"""docs/kubernetes.md is true: its kustomizations can be built, its commands name what exists."""

import os
import re
from pathlib import Path

import pytest

from .manifests import K8S, ROOT, Manifests, build, containers_of, pod_of
from .pod_security import violations
from .test_scaling import faults
from .test_schemas import VERSIONS, validate
from .test_settings import quantity

GUIDE = (ROOT / "docs" / "kubernetes.md").read_text()
KUSTOMIZATIONS = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
CHECKOUT = "rewardfleet/k8s"


@pytest.mark.parametrize("text", KUSTOMIZATIONS, ids=range(len(KUSTOMIZATIONS)))
def test_kustomizations_are_valid(text: str, tmp_path: Path):
    assert CHECKOUT in text
    content = text.replace(CHECKOUT, os.path.relpath(K8S, tmp_path))
    (tmp_path / "kustomization.yaml").write_text(content)
    manifests = build(tmp_path)
    for each in manifests.items:
        validate(each, VERSIONS[0])
    assert faults(manifests) == []
    expected = ["procMount"] if "code-userns" in text else []
    found = [fault for each in manifests.workloads for fault in violations(pod_of(each))]
    assert found == expected
    for workload in manifests.workloads:
        for container in containers_of(workload):
            environment = manifests.environment(container)
            if "REWARDFLEET_REPLICAS" in environment:
                replicas = workload["spec"]["replicas"]
                assert environment["REWARDFLEET_REPLICAS"] == str(replicas)
    is_deleted = "$patch: delete" in text
    assert bool(manifests.of("Ingress")) is not is_deleted


def test_paths_that_are_named_exist():
    paths = set(re.findall(r"rewardfleet/(k8s/[\w./-]+)", GUIDE))
    paths |= set(re.findall(r"\bdeploy/[\w./-]*\w", GUIDE))
    assert len(paths) > 5
    for path in paths - {"deploy/code"}:
        assert (ROOT / path).exists(), path


def test_commands_name_objects_that_exist(overlays: dict[str, Manifests]):
    (namespace,) = overlays["cpu"].of("Namespace")
    assert set(re.findall(r"kubectl --namespace (\S+)", GUIDE)) == {namespace["metadata"]["name"]}
    named = re.findall(r"\b(deployment|service)/(\w+)", GUIDE)
    assert named
    for kind, name in named:
        overlays["cpu"].get(kind.capitalize(), name)
    (service, space, port) = re.search(r"http://(\w+)\.(\w+)\.svc:(\d+)", GUIDE).groups()
    ports = overlays["cpu"].get("Service", service)["spec"]["ports"]
    assert (space, port) == (namespace["metadata"]["name"], str(ports[0]["port"]))


def test_the_requested_resources_are_those_of_the_overlay(overlays: dict[str, Manifests]):
    cores = memory = 0.0
    for workload in overlays["cpu"].workloads:
        for container in containers_of(workload):
            requests = container["resources"]["requests"]
            count = workload["spec"].get("replicas", 2)  # the minimum of its autoscaler
            cores += count * quantity(requests["cpu"])
            memory += count * quantity(requests["memory"]) / 2**30
    assert f"{cores:g} cores and {memory:g} GiB" in GUIDE
