"""What a manifest names exists: pods, ports, ConfigMaps, Secrets, volumes, images, files."""

import re
from collections.abc import Callable

import pytest
import yaml

from rewardfleet import __version__
from rewardfleet_server.commands.gateway import command as gateway_command
from rewardfleet_server.commands.gateway import read_services
from rewardfleet_server.registry import SERVICES

from .manifests import (
    COMPONENTS,
    GUIDE,
    OVERLAYS,
    ROOT,
    Manifest,
    Manifests,
    container_of,
    labels_of,
    name_of,
    names_of,
    pod_of,
    ports_of,
    references,
)

#: Secrets by name and key that the guide creates.
SECRETS = {
    (name, key)
    for name, literals in re.findall(r"create secret generic (\S+)((?:\\\n|[^\n])*)", GUIDE)
    for key in re.findall(r"--from-(?:literal|file)=([\w-]+)=", literals)
}


#: Where a workload names its own labels, volumes or ports, and whether what it names is right.
RULES: dict[str, Callable[[Manifests, Manifest], bool]] = {
    "selects its own pods only": lambda overlay, workload: (
        overlay.selected(workload["spec"]["selector"]["matchLabels"]) == [workload]
    ),
    "spreads its own pods": lambda _, workload: all(
        each["matchLabels"].items() <= labels_of(workload).items()
        for each in references(pod_of(workload), "labelSelector")
    ),
    "has its Service": lambda overlay, workload: (
        workload["spec"].get("serviceName", name_of(workload)) in names_of(overlay.of("Service"))
    ),
    "mounts its volumes": lambda _, workload: (
        {each["name"] for each in container_of(workload).get("volumeMounts", ())}
        == {each["name"] for each in pod_of(workload).get("volumes", ())}
        | names_of(workload["spec"].get("volumeClaimTemplates", []))
    ),
    "limits its folders": lambda _, workload: all(
        "sizeLimit" in each for each in references(pod_of(workload), "emptyDir")
    ),
    "has the ports of its probes": lambda _, workload: all(
        each["port"] in ports_of(workload) for each in references(pod_of(workload), "httpGet")
    ),
    "has an image with a fixed tag": lambda _, workload: bool(
        re.fullmatch(
            rf"rewardfleet[\w-]*:{re.escape(__version__)}|(?!rewardfleet)[^:]+:\d+\.\d+\.\d+",
            container_of(workload)["image"],
        )
    ),
    "has requests and a limit": lambda _, workload: (
        {"cpu", "memory"} <= container_of(workload)["resources"]["requests"].keys()
        and "memory" in container_of(workload)["resources"]["limits"]
    ),
    "has a read-only root and no token": lambda _, workload: (
        container_of(workload)["securityContext"]["readOnlyRootFilesystem"] is True
        and pod_of(workload)["automountServiceAccountToken"] is False
    ),
    # Variables of Services such as REWARDFLEET_PORT would be taken for settings.
    "has no links": lambda _, workload: pod_of(workload)["enableServiceLinks"] is False,
}


@pytest.mark.parametrize("rule", RULES)
def test_each_workload(overlay: Manifests, rule: str):
    assert [name_of(each) for each in overlay.workloads if not RULES[rule](overlay, each)] == []


def test_the_code_service_has_a_user_of_its_own(overlay: Manifests):
    """Without user namespaces, the limit on threads counts those of the same user in other pods."""
    users = {name_of(e): pod_of(e)["securityContext"]["runAsUser"] for e in overlay.workloads}
    assert [name for name in users if users[name] == users["code"]] == ["code"]


def test_pods_have_all_probes_which_need_no_api_key(overlay: Manifests):
    kinds = ("startup", "readiness", "liveness")
    for workload in overlay.workloads:
        probes = [container_of(workload)[f"{kind}Probe"] for kind in kinds]
        if workload in overlay.services():
            paths = [each["httpGet"]["path"] for each in probes]
            assert paths == ["/healthz", "/readyz", "/healthz"]


def test_pods_answer_every_admitted_request_before_they_are_killed(overlay: Manifests):
    settings = overlay.environment(container_of(overlay.workload("code")))
    deadline = float(settings["REWARDFLEET_DEADLINE_S"])
    shutdown = float(settings["REWARDFLEET_SHUTDOWN_TIMEOUT_S"])
    assert shutdown > deadline
    for workload in (each for each in overlay.workloads if name_of(each) != "redis"):
        is_proxy = name_of(workload) == "proxy"
        hook = container_of(workload)["lifecycle"]["preStop"]["sleep"]["seconds"]
        # The proxy looks up a name each second; its record lives up to 30 s.
        assert is_proxy or hook > 30 + 1
        needed = hook + (deadline if is_proxy else shutdown) + 10
        assert pod_of(workload)["terminationGracePeriodSeconds"] >= needed, name_of(workload)


def test_names_are_unique_and_in_the_namespace(overlay: Manifests):
    names = [(each["kind"], name_of(each)) for each in overlay.items]
    assert len(names) == len(set(names))
    for each in overlay.items:
        assert each["kind"] == "Namespace" or each["metadata"]["namespace"] == "rewardfleet"
        assert each["metadata"]["labels"]["app.kubernetes.io/part-of"] == "rewardfleet"


def test_every_service_is_deployed(overlay: Manifests):
    assert names_of(overlay.workloads) - {"vlm"} == {*SERVICES, "proxy", "redis"}
    for name in SERVICES:
        assert container_of(overlay.workload(name))["args"] == ["serve", name]


def test_a_service_selects_one_workload_and_its_port(overlay: Manifests):
    for service in overlay.of("Service"):
        name, spec = name_of(service), service["spec"]
        assert overlay.selected(spec["selector"]) == [overlay.workload(name)]
        ports = ports_of(overlay.workload(name))
        assert all(ports[each["targetPort"]] == each["port"] for each in spec["ports"]), name
        # Its DNS name has the addresses of all pods, which the gateway and a StatefulSet expect.
        assert (spec.get("clusterIP") == "None") is (name != "proxy")


def test_every_workload_with_replicas_may_lose_one_pod_at_a_time(overlay: Manifests):
    budgets = [each["spec"] for each in overlay.of("PodDisruptionBudget")]
    selected = [overlay.selected(each["selector"]["matchLabels"]) for each in budgets]
    assert {name_of(each) for (each,) in selected} == names_of(overlay.workloads)
    # A single replica does not block a drain.
    assert all(each["maxUnavailable"] == 1 for each in budgets)


def test_no_secret_is_in_an_argument(overlay: Manifests):
    """`$(NAME)` in an argument is replaced by the kubelet."""
    for workload in overlay.workloads:
        container = container_of(workload)
        secrets = {each["name"] for each in container.get("env", ()) if "secretKeyRef" in str(each)}
        replaced = re.findall(r"\$\((\w+)\)", str(container.get("args")))
        assert not secrets & set(replaced), name_of(workload)


def test_the_ingress_leads_to_the_proxy(overlay: Manifests):
    (ingress,) = overlay.of("Ingress")
    (rule,) = ingress["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    target = path["backend"]["service"]
    ports = overlay.get("Service", target["name"])["spec"]["ports"]
    assert target["port"]["name"] in {each["name"] for each in ports}
    assert [each["hosts"] for each in ingress["spec"]["tls"]] == [[rule["host"]]]
    assert all(
        f"create secret tls {each['secretName']}" in GUIDE for each in ingress["spec"]["tls"]
    )


def test_the_proxy_leads_to_the_services(overlay: Manifests):
    workload = overlay.workload("proxy")
    command, *arguments = container_of(workload)["args"]
    with gateway_command.make_context(command, arguments) as context:
        given = context.params
    assert (command, given["host"], ports_of(workload)) == (
        "gateway",
        "0.0.0.0",
        {"http": given["port"]},
    )
    urls = read_services(given["services"])
    assert urls.keys() == {*SERVICES, "vlm"}
    for each in overlay.services():
        (port,) = ports_of(each).values()
        assert urls[name_of(each)] == [f"http://{name_of(each)}:{port}"]
        overlay.get("Service", name_of(each))


def test_config_maps_exist_and_are_used(overlay: Manifests):
    keys = ("configMapRef", "configMap", "configMapKeyRef")
    named = {each["name"] for each in references(overlay.workloads, *keys)}
    assert named == names_of(overlay.of("ConfigMap"))


def test_the_guide_creates_the_secrets(overlays: dict[str, Manifests]):
    items = [each for overlay in overlays.values() for each in overlay.items]
    assert "Secret" not in {each["kind"] for each in items}
    named = {
        (each["name"], each["key"]) for each in references(items, "secretKeyRef", "credentials")
    }
    volumes = references(items, "secret")
    named |= {(each["secretName"], item["key"]) for each in volumes for item in each["items"]}
    assert named == SECRETS


def test_the_seccomp_profile_is_that_of_the_guide(overlays: dict[str, Manifests]):
    context = pod_of(overlays["code-userns"].workload("code"))["securityContext"]
    path = context["seccompProfile"]["localhostProfile"]
    assert f"deploy/seccomp-code.json /var/lib/kubelet/seccomp/{path}" in GUIDE
    assert (ROOT / "deploy" / "seccomp-code.json").exists()


def test_the_alert_rules_are_those_of_the_other_deployments(overlays: dict[str, Manifests]):
    rules = yaml.safe_load((ROOT / "deploy" / "alerts.yml").read_text())
    assert rules["groups"]
    assert overlays["keda"].get("PrometheusRule", "rewardfleet")["spec"] == rules
    (endpoint,) = overlays["keda"].get("ServiceMonitor", "rewardfleet")["spec"]["endpoints"]
    jobs = {each["replacement"] for each in endpoint["relabelings"] if each["targetLabel"] == "job"}
    assert jobs == set(re.findall(r'job="(\w+)"', str(rules)))


def test_every_folder_is_described():
    folders = {*(f"overlays/{e}" for e in OVERLAYS), *(f"components/{e}" for e in COMPONENTS)}
    assert folders == set(re.findall(r"`(overlays/[\w-]+|components/[\w-]+)`", GUIDE))
