"""The Pod Security Standard `restricted` of Kubernetes 1.34.

Source: https://kubernetes.io/docs/concepts/security/pod-security-standards
"""

from collections.abc import Iterator
from typing import Any

_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim",
    "projected", "secret",
}  # fmt: skip
_SYSCTLS = {
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
}  # fmt: skip
_SELINUX = {"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
_PROFILES = {"RuntimeDefault", "Localhost"}


def violations(pod: dict[str, Any]) -> list[str]:
    """Return the fields of a pod's specification that the standard does not permit."""
    return [*_of_pod(pod), *(each for container in _containers(pod) for each in container)]


def _of_pod(pod: dict[str, Any]) -> Iterator[str]:
    yield from (name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name))
    for volume in pod.get("volumes", ()):
        if not (volume.keys() - {"name"} or {"emptyDir"}) <= _VOLUMES:
            yield f"volume {volume['name']}"
    context = pod.get("securityContext", {})
    yield from _of_context(context)
    yield from (
        f"sysctl {each['name']}"
        for each in context.get("sysctls", ())
        if each["name"] not in _SYSCTLS
    )


def _containers(pod: dict[str, Any]) -> Iterator[Iterator[str]]:
    of_pod = pod.get("securityContext", {})
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        for container in pod.get(kind, ()):
            yield _of_container(container, of_pod)


def _of_container(container: dict[str, Any], of_pod: dict[str, Any]) -> Iterator[str]:
    context = container.get("securityContext", {})
    yield from _of_context(context)
    effective = {**of_pod, **context}
    if effective.get("runAsNonRoot") is not True:
        yield "runAsNonRoot"
    if effective.get("seccompProfile", {}).get("type") not in _PROFILES:
        yield "seccompProfile"
    if context.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation"
    if context.get("privileged"):
        yield "privileged"
    if context.get("procMount", "Default") != "Default":
        yield "procMount"
    capabilities = context.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", ()):
        yield "capabilities.drop"
    if not set(capabilities.get("add", ())) <= {"NET_BIND_SERVICE"}:
        yield "capabilities.add"
    if any(port.get("hostPort") for port in container.get("ports", ())):
        yield "hostPort"
    hooks = container.get("lifecycle", {})
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        yield from _of_handler(name, container.get(name, {}))
    for name in ("preStop", "postStart"):
        yield from _of_handler(name, hooks.get(name, {}))


def _of_handler(name: str, handler: dict[str, Any]) -> Iterator[str]:
    """A probe or hook must not name another host."""
    if any(handler.get(kind, {}).get("host") for kind in ("httpGet", "tcpSocket")):
        yield f"{name}.host"


def _of_context(context: dict[str, Any]) -> Iterator[str]:
    if context.get("runAsUser") == 0:
        yield "runAsUser"
    if context.get("seccompProfile", {}).get("type", "RuntimeDefault") not in _PROFILES:
        yield "seccompProfile"
    if context.get("appArmorProfile", {}).get("type", "RuntimeDefault") not in _PROFILES:
        yield "appArmorProfile"
    selinux = context.get("seLinuxOptions", {})
    if selinux.get("type", "") not in _SELINUX or selinux.get("user") or selinux.get("role"):
        yield "seLinuxOptions"
    if context.get("windowsOptions", {}).get("hostProcess"):
        yield "windowsOptions"
