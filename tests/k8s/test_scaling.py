"""Autoscalers: one per target, with the rules that KEDA's admission webhook enforces."""

import re

import pytest

from rewardfleet_server.registry import SERVICES

from ..conftest import table
from .manifests import ROOT, Manifest, Manifests, changed, container_of, name_of, names_of

METRICS = (ROOT / "docs" / "reference" / "metrics.md").read_text()
KINDS = ("HorizontalPodAutoscaler", "ScaledObject")


def target_of(scaler: Manifest) -> tuple[str, str]:
    target = scaler["spec"]["scaleTargetRef"]
    return target.get("kind", "Deployment"), target["name"]


def faults(manifests: Manifests) -> list[str]:
    """Return the rules of Kubernetes and KEDA that the autoscalers break."""
    scalers = manifests.of(*KINDS)
    targets = [target_of(each) for each in scalers]
    found = [f"{each} has two autoscalers" for each in set(targets) if targets.count(each) > 1]
    workloads = {(each["kind"], name_of(each)): each for each in manifests.workloads}
    for scaler, target in zip(scalers, targets, strict=True):
        broken = _of_scaler(scaler, workloads[target]) if target in workloads else ["no target"]
        found += [f"{target}: {each}" for each in broken]
    return found


def _of_scaler(scaler: Manifest, workload: Manifest) -> list[str]:
    spec = scaler["spec"]
    low, high = spec.get("minReplicas", 1), spec.get("maxReplicas")
    types = [each["resource"]["name"] for each in spec.get("metrics", ()) if "resource" in each]
    if scaler["kind"] == "ScaledObject":
        low, high = spec.get("minReplicaCount", 0), spec.get("maxReplicaCount", 100)
        types = [each["type"] for each in spec["triggers"]]
    resources = container_of(workload)["resources"]
    given = resources.get("requests", {}).keys() | resources.get("limits", {}).keys()
    only_resources = scaler["kind"] == "ScaledObject" and set(types) <= {"cpu", "memory"}
    rules = {
        "replicas, which `kubectl apply` would restore": "replicas" in workload["spec"],
        "the minimum is above the maximum": low > high,
        "the idle count is not below the minimum": spec.get("idleReplicaCount", -1) >= low,
        "cpu and memory cannot scale to 0": only_resources and low == 0,
        "no requests of cpu": "cpu" in types and "cpu" not in given,
        "no requests of memory": "memory" in types and "memory" not in given,
    }
    return [rule for rule, is_broken in rules.items() if is_broken]


def test_autoscalers_follow_the_rules(overlay: Manifests):
    assert faults(overlay) == []
    scalers = overlay.of(*KINDS)
    assert {target_of(each) for each in scalers} == {
        ("Deployment", "video"),
        ("Deployment", "code"),
    }
    for spec in (each["spec"] for each in scalers):
        assert spec.get("minReplicas", spec.get("minReplicaCount")) >= 2  # warm


@pytest.mark.parametrize(("changes", "fault"), table("scaler_faults"))
def test_a_fault_is_found(overlays: dict[str, Manifests], changes: dict[str, object], fault: str):
    code = overlays["keda"].get("ScaledObject", "code")
    other = changed(code, "spec", code["spec"] | changes)
    items = [other if each is code else each for each in overlays["keda"].items]
    assert [each for each in faults(Manifests(items)) if fault in each]


def test_an_autoscaler_of_each_kind_for_one_target_is_a_fault(overlays: dict[str, Manifests]):
    both = Manifests(overlays["keda"].items + overlays["cpu"].of(*KINDS))
    assert len(faults(both)) == 2


def test_load_of_the_cpu_needs_requests(overlays: dict[str, Manifests]):
    path = "spec.template.spec.containers.0.resources"
    items = overlays["cpu"].of(*KINDS) + [changed(e, path, {}) for e in overlays["cpu"].workloads]
    assert "('Deployment', 'code'): no requests of cpu" in faults(Manifests(items))


def test_queries_use_metrics_that_exist(overlays: dict[str, Manifests]):
    overlay = overlays["keda"]
    (monitor,) = overlay.of("ServiceMonitor")
    (rule,) = monitor["spec"]["selector"]["matchExpressions"]
    assert rule["operator"] == "In"
    services = overlay.of("Service")
    scraped = [
        each for each in services if each["metadata"]["labels"].get(rule["key"]) in rule["values"]
    ]
    assert names_of(scraped) == {*SERVICES, "proxy"}
    for scaler in overlay.of("ScaledObject"):
        (trigger,) = scaler["spec"]["triggers"]
        query = trigger["metadata"]["query"]
        metrics = re.findall(r"(rewardfleet_\w+)\{([^}]*)\}", query)
        assert len(metrics) == query.count("rewardfleet_") > 0
        for metric, labels in metrics:
            assert f"| `{metric}` | gauge |" in METRICS
            # prometheus-operator adds both labels; `service` is the name of the Service.
            expected = {"namespace": "rewardfleet", "service": name_of(scaler)}
            assert dict(re.findall(r'(\w+)="([^"]*)"', labels)) == expected
