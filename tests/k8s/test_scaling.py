"""Autoscalers: one per target, with the rules that KEDA's admission webhook enforces."""

import copy
import re
from typing import Any

import pytest

from .manifests import ROOT, Manifest, Manifests, containers_of

METRICS = (ROOT / "docs" / "reference" / "metrics.md").read_text()


def target_of(scaler: Manifest) -> tuple[str, str]:
    """Return kind and name of what an autoscaler scales."""
    target = scaler["spec"]["scaleTargetRef"]
    return target.get("kind", "Deployment"), target["name"]


def faults(manifests: Manifests) -> list[str]:
    """Return the rules of Kubernetes and KEDA that the autoscalers break."""
    found = []
    scalers = manifests.of("HorizontalPodAutoscaler", "ScaledObject")
    targets = [target_of(each) for each in scalers]
    found += [f"{each} has two autoscalers" for each in set(targets) if targets.count(each) > 1]
    for scaler, target in zip(scalers, targets, strict=True):
        if target not in {(each["kind"], each["metadata"]["name"]) for each in manifests.workloads}:
            found.append(f"{target} does not exist")
            continue
        workload = manifests.workload(target[1])
        if "replicas" in workload["spec"]:
            found.append(f"{target} has replicas, which `kubectl apply` would restore")
        found += [f"{target}: {each}" for each in _of_scaler(scaler, workload)]
    return found


def _of_scaler(scaler: Manifest, workload: Manifest) -> list[str]:
    spec = scaler["spec"]
    if scaler["kind"] == "ScaledObject":
        low, high = spec.get("minReplicaCount", 0), spec.get("maxReplicaCount", 100)
        idle = spec.get("idleReplicaCount")
        resources = [t["type"] for t in spec["triggers"] if t["type"] in {"cpu", "memory"}]
        only_resources = len(resources) == len(spec["triggers"])
    else:
        low, high, idle = spec.get("minReplicas", 1), spec["maxReplicas"], None
        resources = [m["resource"]["name"] for m in spec["metrics"] if m["type"] == "Resource"]
        only_resources = False
    found = []
    if low > high:
        found.append("the minimum is above the maximum")
    if idle is not None and idle >= low:
        found.append("the idle count is not below the minimum")
    if only_resources and low == 0:
        found.append("cpu and memory cannot scale to 0")
    found += [
        f"no requests of {name}"
        for name in resources
        for container in containers_of(workload)
        if name not in container["resources"].get("requests", {})
        and name not in container["resources"].get("limits", {})
    ]
    return found


def test_autoscalers_follow_the_rules(overlay: Manifests):
    assert faults(overlay) == []
    scalers = overlay.of("HorizontalPodAutoscaler", "ScaledObject")
    assert {target_of(each) for each in scalers} == {
        ("Deployment", "video"),
        ("Deployment", "code"),
    }
    for each in scalers:
        spec = each["spec"]
        assert spec.get("minReplicas", spec.get("minReplicaCount")) >= 2  # warm


CPU = {"type": "cpu", "metricType": "Utilization", "metadata": {"value": "70"}}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"minReplicaCount": 9}, "minimum is above"),
        ({"minReplicaCount": 0, "triggers": [CPU]}, "cannot scale to 0"),
        ({"idleReplicaCount": 2}, "idle count"),
        ({"scaleTargetRef": {"name": "nothing"}}, "does not exist"),
        ({"scaleTargetRef": {"name": "video"}}, "two autoscalers"),
        ({"scaleTargetRef": {"name": "proxy"}}, "has replicas"),
    ],
)
def test_a_fault_is_found(overlays: dict[str, Manifests], change: dict[str, Any], fault: str):
    items = copy.deepcopy(overlays["keda"].items)
    Manifests(items).get("ScaledObject", "code")["spec"] |= change
    assert [each for each in faults(Manifests(items)) if fault in each]


def test_an_autoscaler_of_each_kind_for_one_target_is_a_fault(overlays: dict[str, Manifests]):
    both = Manifests(overlays["keda"].items + overlays["cpu"].of("HorizontalPodAutoscaler"))
    assert len(faults(both)) == 2


def test_load_of_the_cpu_needs_requests(overlays: dict[str, Manifests]):
    items = copy.deepcopy(overlays["cpu"].items)
    manifests = Manifests(items)
    containers_of(manifests.workload("code"))[0]["resources"] = {}
    assert faults(manifests) == ["('Deployment', 'code'): no requests of cpu"]


def test_queries_use_metrics_that_exist(overlays: dict[str, Manifests]):
    overlay = overlays["keda"]
    (monitor,) = overlay.of("ServiceMonitor")
    selector = monitor["spec"]["selector"]["matchLabels"]
    scraped = {
        each["metadata"]["name"]
        for each in overlay.of("Service")
        if selector.items() <= each["metadata"]["labels"].items()
    }
    assert scraped == {"video", "code", "episode", "tools"}
    for scaler in overlay.of("ScaledObject"):
        (trigger,) = scaler["spec"]["triggers"]
        query = trigger["metadata"]["query"]
        metrics = re.findall(r"(rewardfleet_\w+)\{([^}]*)\}", query)
        assert len(metrics) == query.count("rewardfleet_") > 0
        for metric, labels in metrics:
            assert f"| `{metric}` | gauge |" in METRICS
            # prometheus-operator adds both labels; `service` is the name of the Service.
            expected = {"namespace": "rewardfleet", "service": scaler["metadata"]["name"]}
            assert dict(re.findall(r'(\w+)="([^"]*)"', labels)) == expected
