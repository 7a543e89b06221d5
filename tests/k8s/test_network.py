"""Who can talk to whom by the NetworkPolicies, where the cluster's network enforces them."""

import ipaddress
from typing import Any

import pytest

from .manifests import Manifest, Manifests, build_with, labels_of, ports_of

LABEL = "kubernetes.io/metadata.name"
DNS = ({LABEL: "kube-system"}, {"k8s-app": "kube-dns"})
PROMETHEUS = ({LABEL: "monitoring"}, {"app.kubernetes.io/name": "prometheus"})
COLLECTOR = ({LABEL: "observability"}, {"app": "otel-collector"})
FUSION = ({LABEL: "sandbox-fusion"}, {"app": "sandbox-fusion"})
TRAINER = ({LABEL: "training"}, {"app": "trainer"})
#: A pod as the labels of its namespace and its own, or an address outside of the cluster.
Peer = tuple[dict[str, str], dict[str, str]] | str


def pod(overlay: Manifests, name: str) -> Peer:
    return {LABEL: "rewardfleet"}, labels_of(overlay.workload(name))


def matches(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    assert selector.keys() <= {"matchLabels"}, "expressions are not used"
    return selector.get("matchLabels", {}).items() <= labels.items()


def admits(rule_peers: list[Manifest] | None, peer: Peer) -> bool:
    """Return whether `from` or `to` of a rule contains a peer."""
    return rule_peers is None or any(_is_of(each, peer) for each in rule_peers)


def _is_of(rule_peer: Manifest, peer: Peer) -> bool:
    block = rule_peer.get("ipBlock")
    if isinstance(peer, str):
        if block is None or not _is_in(peer, block["cidr"]):
            return False
        return not any(_is_in(peer, cidr) for cidr in block.get("except", ()))
    if block is not None:
        return False
    namespace, labels = peer
    selector = rule_peer.get("namespaceSelector", {"matchLabels": {LABEL: "rewardfleet"}})
    return matches(selector, namespace) and matches(rule_peer.get("podSelector", {}), labels)


def _is_in(address: str, cidr: str) -> bool:
    return ipaddress.ip_address(address) in ipaddress.ip_network(cidr)


def allows(overlay: Manifests, direction: str, own: Peer, other: Peer, port: int) -> bool:
    """Return whether the policies of a pod allow a connection in one direction.

    Args:
        direction: `Ingress` or `Egress`.
        own: The pod whose policies count; one of another namespace has none.
        other: The other end.
        port: The port of the server.
    """
    if isinstance(own, str) or own[0] != {LABEL: "rewardfleet"}:
        return True
    policies = [
        each["spec"]
        for each in overlay.of("NetworkPolicy")
        if direction in each["spec"]["policyTypes"] and matches(each["spec"]["podSelector"], own[1])
    ]
    assert policies, "nothing selects the pod, so everything is allowed"
    peers = {"Ingress": "from", "Egress": "to"}[direction]
    return any(
        admits(rule.get(peers), other) and port in [each["port"] for each in rule["ports"]]
        for policy in policies
        for rule in policy.get(direction.lower(), ())
    )


def connects(overlay: Manifests, client: Peer, server: Peer, port: int) -> bool:
    egress = allows(overlay, "Egress", client, server, port)
    return egress and allows(overlay, "Ingress", server, client, port)


def destinations(overlay: Manifests, client: Peer) -> set[str]:
    """Return what a pod can reach."""
    servers: dict[str, tuple[Peer, int]] = {
        each["metadata"]["name"]: (pod(overlay, each["metadata"]["name"]), port)
        for each in overlay.workloads
        for port in ports_of(each).values()
    }
    servers |= {
        "dns": (DNS, 53),
        "node-local dns": ("169.254.20.10", 53),
        "cloud dns": ("169.254.169.254", 53),
        "metadata": ("169.254.169.254", 80),
        "internet": ("1.1.1.1", 443),
        "private": ("10.1.2.3", 443),
        "collector": (COLLECTOR, 4318),
        "fusion": (FUSION, 8080),
        "trainer": (TRAINER, 8000),
    }
    return {
        name for name, (server, port) in servers.items() if connects(overlay, client, server, port)
    }


DNS_SERVERS = {"dns", "node-local dns", "cloud dns"}
ALWAYS = DNS_SERVERS | {"redis"}


@pytest.mark.parametrize("name", ["code", "video", "episode", "tools"])
def test_services_reach_redis_and_dns_only(overlay: Manifests, name: str):
    assert destinations(overlay, pod(overlay, name)) == ALWAYS


def test_the_judge_can_download_models(overlays: dict[str, Manifests]):
    overlay = overlays["gpu"]
    assert destinations(overlay, pod(overlay, "vlm")) == ALWAYS | {"internet"}


def test_redis_reaches_nothing(overlay: Manifests):
    assert destinations(overlay, pod(overlay, "redis")) == DNS_SERVERS


def test_the_proxy_reaches_the_services_only(overlay: Manifests):
    services = overlay.selected({"app.kubernetes.io/component": "service"})
    expected = {each["metadata"]["name"] for each in services}
    assert destinations(overlay, pod(overlay, "proxy")) == expected | DNS_SERVERS


@pytest.mark.parametrize("caller", [TRAINER, "203.0.113.9", "10.1.2.3"])
def test_callers_reach_the_proxy_only(overlay: Manifests, caller: Peer):
    assert destinations(overlay, caller) & {
        each["metadata"]["name"] for each in overlay.workloads
    } == {"proxy"}


def test_prometheus_reaches_the_services_where_it_is_used(overlays: dict[str, Manifests]):
    for name, overlay in overlays.items():
        expected = name == "keda"
        for service in ("video", "code", "episode", "tools"):
            assert connects(overlay, PROMETHEUS, pod(overlay, service), 8080) is expected


@pytest.mark.parametrize(
    ("component", "peer", "users"),
    [
        ("tracing", "collector", {"video", "code", "episode", "tools"}),
        ("sandbox-fusion", "fusion", {"code"}),
    ],
)
def test_an_endpoint_that_is_configured_is_reached(component, peer, users, tmp_path):
    """By the services that use it."""
    manifests = build_with(component, tmp_path)
    reached = {
        each["metadata"]["name"]: destinations(manifests, pod(manifests, each["metadata"]["name"]))
        for each in manifests.workloads
    }
    assert {name for name, found in reached.items() if peer in found} == users
    assert reached["code"] == ALWAYS | {peer}
