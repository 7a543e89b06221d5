"""What a manifest names exists: pods, ports, ConfigMaps, Secrets, volumes, images, files."""

import re

import yaml

from rewardfleet import __version__
from rewardfleet_server.registry import SERVICES

from .manifests import (
    K8S,
    ROOT,
    Manifests,
    containers_of,
    labels_of,
    pod_of,
    ports_of,
    references,
)

GUIDE = (ROOT / "docs" / "kubernetes.md").read_text()
#: Secrets by name and key that the guide creates.
SECRETS = {
    (name, key)
    for name, literals in re.findall(r"create secret generic (\S+)((?:\\\n|[^\n])*)", GUIDE)
    for key in re.findall(r"--from-(?:literal|file)=([\w-]+)=", literals)
}


def test_names_are_unique_and_in_the_namespace(overlay: Manifests):
    names = [(each["kind"], each["metadata"]["name"]) for each in overlay.items]
    assert len(names) == len(set(names))
    for each in overlay.items:
        assert each["kind"] == "Namespace" or each["metadata"]["namespace"] == "rewardfleet"
        assert each["metadata"]["labels"]["app.kubernetes.io/part-of"] == "rewardfleet"


def test_every_service_is_deployed(overlay: Manifests):
    names = {each["metadata"]["name"] for each in overlay.workloads}
    assert names - {"vlm"} == {*SERVICES, "proxy", "redis"}
    for name in SERVICES:
        assert containers_of(overlay.workload(name))[0]["args"] == ["serve", name]


def test_a_service_selects_one_workload_and_its_port(overlay: Manifests):
    for service in overlay.of("Service"):
        name, spec = service["metadata"]["name"], service["spec"]
        (workload,) = overlay.selected(spec["selector"])
        assert workload["metadata"]["name"] == name
        ports = ports_of(workload)
        for port in spec["ports"]:
            assert ports[port["targetPort"]] == port["port"], name
        # Its DNS name has the addresses of all pods, which the Caddyfile and a StatefulSet expect.
        assert (spec.get("clusterIP") == "None") is (name != "proxy")


def test_selectors_of_workloads_select_their_own_pods_only(overlay: Manifests):
    for workload in overlay.workloads:
        assert overlay.selected(workload["spec"]["selector"]["matchLabels"]) == [workload]
        if workload["kind"] == "StatefulSet":
            overlay.get("Service", workload["spec"]["serviceName"])


def test_every_workload_with_replicas_may_lose_one_pod_at_a_time(overlay: Manifests):
    protected = set()
    for budget in overlay.of("PodDisruptionBudget"):
        (workload,) = overlay.selected(budget["spec"]["selector"]["matchLabels"])
        protected.add(workload["metadata"]["name"])
        assert budget["spec"]["maxUnavailable"] == 1  # a single replica does not block a drain
    assert protected == {each["metadata"]["name"] for each in overlay.workloads} - {"redis"}


def test_the_ingress_leads_to_the_proxy(overlay: Manifests):
    (ingress,) = overlay.of("Ingress")
    (rule,) = ingress["spec"]["rules"]
    assert [each["hosts"] for each in ingress["spec"]["tls"]] == [[rule["host"]]]
    (path,) = rule["http"]["paths"]
    target = path["backend"]["service"]
    ports = {each["name"] for each in overlay.get("Service", target["name"])["spec"]["ports"]}
    assert target["port"]["name"] in ports
    assert "annotations" not in ingress["metadata"]


def test_the_proxy_leads_to_the_services(overlay: Manifests):
    (volume,) = references(pod_of(overlay.workload("proxy")), "configMap")
    caddyfile = overlay.get("ConfigMap", volume["name"])["data"]["Caddyfile"]
    assert caddyfile.endswith((ROOT / "deploy" / "Caddyfile").read_text())
    assert set(re.findall(r"import service (\w+)", caddyfile)) == {*SERVICES, "vlm"}
    (upstream,) = re.findall(r"(?m)^\t+port (\d+)$", caddyfile)
    (listens,) = re.findall(r"(?m)^:(\d+) ", caddyfile)
    assert ports_of(overlay.workload("proxy")) == {"http": int(listens)}
    for each in overlay.selected({"app.kubernetes.io/component": "service"}):
        assert ports_of(each) == {"http": int(upstream)}
        overlay.get("Service", each["metadata"]["name"])


def test_config_maps_exist_and_are_used(overlay: Manifests):
    named = {
        each["name"]
        for workload in overlay.workloads
        for each in references(workload, "configMapRef", "configMap", "configMapKeyRef")
    }
    assert named == {each["metadata"]["name"] for each in overlay.of("ConfigMap")}


def test_the_guide_creates_the_secrets(overlays: dict[str, Manifests]):
    named, optional = set(), set()
    for each in (each for overlay in overlays.values() for each in overlay.items):
        assert each["kind"] != "Secret"
        for key in references(each, "secretKeyRef", "credentials"):
            (optional if key.get("optional") else named).add((key["name"], key["key"]))
        for volume in references(each, "secret"):
            named |= {(volume["secretName"], item["key"]) for item in volume["items"]}
    assert named | optional == SECRETS
    for ingress in overlays["cpu"].of("Ingress"):
        for tls in ingress["spec"]["tls"]:
            assert f"create secret tls {tls['secretName']}" in GUIDE


def test_volumes_are_mounted_and_probes_name_ports(overlay: Manifests):
    for workload in overlay.workloads:
        pod = pod_of(workload)
        volumes = {each["name"] for each in pod.get("volumes", ())}
        volumes |= {
            each["metadata"]["name"] for each in workload["spec"].get("volumeClaimTemplates", ())
        }
        mounts = {
            each["name"] for container in pod["containers"] for each in container["volumeMounts"]
        }
        assert mounts == volumes
        for handler in references(pod, "httpGet"):
            assert handler["port"] in ports_of(workload)


def test_pods_have_all_probes_which_need_no_api_key(overlay: Manifests):
    for workload in overlay.workloads:
        (container,) = containers_of(workload)
        probes = [container[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")]
        if labels_of(workload)["app.kubernetes.io/component"] == "service":
            paths = [each["httpGet"]["path"] for each in probes]
            assert paths == ["/healthz", "/readyz", "/healthz"]


def test_pods_answer_every_admitted_request_before_they_are_killed(overlay: Manifests):
    for workload in overlay.workloads:
        pod, name = pod_of(workload), workload["metadata"]["name"]
        (container,) = pod["containers"]
        if name == "redis":
            continue
        hook = container["lifecycle"]["preStop"]["sleep"]["seconds"]
        settings = overlay.environment(containers_of(overlay.workload("code"))[0])
        deadline = float(settings["REWARDFLEET_DEADLINE_S"])
        if name == "proxy":
            drain = deadline
        else:
            drain = float(settings["REWARDFLEET_SHUTDOWN_TIMEOUT_S"])
            # The proxy looks up a name each second; its record lives up to 30 s.
            assert hook > 30 + 1
            assert drain > deadline
        assert pod["terminationGracePeriodSeconds"] >= hook + drain + 10, name


def test_images_have_fixed_tags(overlay: Manifests):
    for workload in overlay.workloads:
        for container in containers_of(workload):
            name, _, tag = container["image"].partition(":")
            if name.startswith("rewardfleet"):
                assert tag == __version__
            else:
                assert re.fullmatch(r"\d+\.\d+\.\d+", tag), container["image"]


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
    readme_names = set(re.findall(r"`(overlays/[\w-]+|components/[\w-]+)`", GUIDE))
    folders = {
        str(each.relative_to(K8S))
        for kind in ("overlays", "components")
        for each in (K8S / kind).iterdir()
    }
    assert folders == readme_names
