"""The check of the Pod Security Standard finds every fault, and no pod of the overlays has one."""

import copy
from typing import Any

import pytest

from .manifests import Manifests, labels_of, pod_of
from .pod_security import violations

POD: dict[str, Any] = {
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    "volumes": [{"name": "tmp", "emptyDir": {}}],
    "containers": [
        {
            "name": "one",
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            },
        }
    ],
}
FAULTS = {
    "hostNetwork": ({"hostNetwork": True}, {}),
    "hostPID": ({"hostPID": True}, {}),
    "hostIPC": ({"hostIPC": True}, {}),
    "volume host": ({"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}, {}),
    "sysctl kernel.msgmax": (
        {
            "securityContext": {
                **POD["securityContext"],
                "sysctls": [{"name": "kernel.msgmax", "value": "1"}],
            }
        },
        {},
    ),
    "privileged": ({}, {"privileged": True}),
    "procMount": ({}, {"procMount": "Unmasked"}),
    "capabilities.drop": ({}, {"capabilities": {"drop": ["NET_RAW"]}}),
    "capabilities.add": ({}, {"capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}}),
    "allowPrivilegeEscalation": ({}, {"allowPrivilegeEscalation": True}),
    "runAsNonRoot": ({}, {"runAsNonRoot": False}),
    "runAsUser": ({}, {"runAsUser": 0}),
    "appArmorProfile": ({}, {"appArmorProfile": {"type": "Unconfined"}}),
    "seLinuxOptions": ({}, {"seLinuxOptions": {"type": "spc_t"}}),
    "windowsOptions": ({}, {"windowsOptions": {"hostProcess": True}}),
}


def test_a_restricted_pod_has_no_violation():
    assert violations(POD) == []


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", ["containers", "initContainers", "ephemeralContainers"])
def test_a_fault_is_found(fault: str, kind: str):
    of_pod, of_container = FAULTS[fault]
    pod = copy.deepcopy(POD)
    pod["initContainers"] = pod["ephemeralContainers"] = []
    pod = {**pod, kind: copy.deepcopy(POD["containers"]), **of_pod}
    pod[kind][0]["securityContext"] |= of_container
    assert violations(pod) == [fault]


@pytest.mark.parametrize(
    ("context", "fault"),
    [
        ({}, ["runAsNonRoot", "seccompProfile"]),
        ({"runAsNonRoot": True}, ["seccompProfile"]),
        (
            {"runAsNonRoot": True, "seccompProfile": {"type": "Unconfined"}},
            ["seccompProfile", "seccompProfile"],
        ),
    ],
)
def test_what_a_pod_does_not_say_its_containers_must(context: dict[str, Any], fault: list[str]):
    assert violations({**POD, "securityContext": context}) == fault


def test_ports_and_probes_stay_in_the_pod():
    container = {
        **POD["containers"][0],
        "ports": [{"containerPort": 1, "hostPort": 1}],
        "readinessProbe": {"httpGet": {"host": "169.254.169.254", "port": 80}},
        "lifecycle": {"preStop": {"tcpSocket": {"host": "other", "port": 80}}},
    }
    found = violations({**POD, "containers": [container]})
    assert found == ["hostPort", "readinessProbe.host", "preStop.host"]


def test_pods_are_restricted(overlay: Manifests):
    """With the exception that the overlay `code-userns` is for, the /proc of the code service."""
    namespace = overlay.of("Namespace")[0]["metadata"]["labels"]
    level = namespace["pod-security.kubernetes.io/enforce"]
    assert namespace["pod-security.kubernetes.io/warn"] == "restricted"
    found = {each["metadata"]["name"]: violations(pod_of(each)) for each in overlay.workloads}
    faulty = {name: faults for name, faults in found.items() if faults}
    if level == "restricted":
        assert faulty == {}
    else:  # since 1.35, `baseline` permits it in a user namespace
        assert (level, faulty) == ("baseline", {"code": ["procMount"]})
        assert namespace["pod-security.kubernetes.io/enforce-version"] == "v1.35"
        assert pod_of(overlay.workload("code"))["hostUsers"] is False


def test_only_one_overlay_lowers_the_standard(overlays: dict[str, Manifests]):
    levels = {
        name: each.of("Namespace")[0]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        for name, each in overlays.items()
    }
    assert {name for name, level in levels.items() if level != "restricted"} == {"code-userns"}


def test_containers_have_what_the_standard_does_not_require(overlay: Manifests):
    users: dict[int, set[str]] = {}
    for workload in overlay.workloads:
        name, pod = workload["metadata"]["name"], pod_of(workload)
        assert pod["automountServiceAccountToken"] is False, name
        # Variables of Services such as REWARDFLEET_PORT would be taken for settings.
        assert pod["enableServiceLinks"] is False, name
        users.setdefault(pod["securityContext"]["runAsUser"], set()).add(name)
        for container in pod["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True, name
            resources = container["resources"]
            assert {"cpu", "memory"} <= resources["requests"].keys(), name
            assert "memory" in resources["limits"], name
        for volume in pod.get("volumes", ()):
            assert "sizeLimit" in volume.get("emptyDir", {"sizeLimit": ""}), name
        for spread in pod.get("topologySpreadConstraints", ()):
            assert spread["labelSelector"]["matchLabels"].items() <= labels_of(workload).items()
    # Without user namespaces, the limit on threads counts those of the same user in other pods.
    assert {"code"} in users.values()
