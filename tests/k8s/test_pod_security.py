"""The Pod Security Standard `restricted` of Kubernetes 1.34: a check, its own tests, all pods.

Source: https://kubernetes.io/docs/concepts/security/pod-security-standards
"""

import json
from typing import Any

import pytest

from ..conftest import DATA, table
from .manifests import OVERLAYS, Manifests, changed, name_of, pod_of

_PERMITTED = json.loads((DATA / "k8s" / "pod_security.json").read_text())
_VOLUMES, _SYSCTLS, _SELINUX = map(set, _PERMITTED.values())
_PROFILES = {"RuntimeDefault", "Localhost"}
_DEFAULT = {"type": "RuntimeDefault"}
_KINDS = ("initContainers", "containers", "ephemeralContainers")


def violations(pod: dict[str, Any]) -> list[str]:
    """Return the fields of a pod's specification that the standard does not permit."""
    context = pod.get("securityContext", {})
    found = {name: pod.get(name) for name in ("hostNetwork", "hostPID", "hostIPC")}
    for volume in pod.get("volumes", ()):
        kinds = volume.keys() - {"name"} or {"emptyDir"}
        found[f"volume {volume['name']}"] = not kinds <= _VOLUMES
    for each in context.get("sysctls", ()):
        found[f"sysctl {each['name']}"] = each["name"] not in _SYSCTLS
    containers = [each for kind in _KINDS for each in pod.get(kind, ())]
    return [
        *(name for name, is_fault in found.items() if is_fault),
        *_of_context(context),
        *(fault for each in containers for fault in _of_container(each, context)),
    ]


def _of_context(context: dict[str, Any]) -> list[str]:
    selinux = context.get("seLinuxOptions", {})
    found = {
        "runAsUser": context.get("runAsUser") == 0,
        "seccompProfile": context.get("seccompProfile", _DEFAULT).get("type") not in _PROFILES,
        "appArmorProfile": context.get("appArmorProfile", _DEFAULT).get("type") not in _PROFILES,
        "seLinuxOptions": selinux.get("type", "") not in _SELINUX
        or selinux.get("user")
        or selinux.get("role"),
        "windowsOptions": context.get("windowsOptions", {}).get("hostProcess"),
    }
    return [name for name, is_fault in found.items() if is_fault]


def _of_container(container: dict[str, Any], of_pod: dict[str, Any]) -> list[str]:
    context = container.get("securityContext", {})
    effective = {**of_pod, **context}
    capabilities = context.get("capabilities", {})
    found = {
        "runAsNonRoot": effective.get("runAsNonRoot") is not True,
        "seccompProfile": effective.get("seccompProfile", {}).get("type") not in _PROFILES,
        "allowPrivilegeEscalation": context.get("allowPrivilegeEscalation") is not False,
        "privileged": context.get("privileged"),
        "procMount": context.get("procMount", "Default") != "Default",
        "capabilities.drop": "ALL" not in capabilities.get("drop", ()),
        "capabilities.add": not set(capabilities.get("add", ())) <= {"NET_BIND_SERVICE"},
        "hostPort": any(port.get("hostPort") for port in container.get("ports", ())),
    }
    handlers = {**container, **container.get("lifecycle", {})}
    for name in ("startupProbe", "readinessProbe", "livenessProbe", "preStop", "postStart"):
        requests = [handlers.get(name, {}).get(kind, {}) for kind in ("httpGet", "tcpSocket")]
        found[f"{name}.host"] = any(each.get("host") for each in requests)
    return _of_context(context) + [name for name, is_fault in found.items() if is_fault]


OF_POD = {"runAsNonRoot": True, "seccompProfile": _DEFAULT}
OF_CONTAINER = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
POD = {"securityContext": OF_POD, "volumes": [{"name": "tmp", "emptyDir": {}}]}


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize(("path", "value", "expected"), table("pod_faults"))
def test_a_fault_is_found(kind: str, path: str, value: object, expected: list[str]):
    pod = {**POD, kind: [{"name": "one", "securityContext": OF_CONTAINER}]}
    assert violations(changed(pod, path.replace("KIND", kind), value)) == expected


@pytest.mark.parametrize("name", OVERLAYS)
def test_pods_are_restricted(overlays: dict[str, Manifests], name: str):
    """With the exception that the overlay `code-userns` is for, the /proc of the code service."""
    (namespace,) = overlays[name].of("Namespace")
    labels = namespace["metadata"]["labels"]
    found = {name_of(each): violations(pod_of(each)) for each in overlays[name].workloads}
    faulty = {workload: faults for workload, faults in found.items() if faults}
    levels = [labels[f"pod-security.kubernetes.io/{mode}"] for mode in ("enforce", "warn")]
    if name == "code-userns":  # since 1.35, `baseline` permits it in a user namespace
        assert (levels, faulty) == (["baseline", "restricted"], {"code": ["procMount"]})
        assert labels["pod-security.kubernetes.io/enforce-version"] == "v1.35"
        assert pod_of(overlays[name].workload("code"))["hostUsers"] is False
    else:
        assert (levels, faulty) == (["restricted", "restricted"], {})
