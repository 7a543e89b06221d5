"""Who can talk to whom by the NetworkPolicies, where the cluster's network enforces them."""

import ipaddress
import json

import pytest

from rewardfleet_server.registry import SERVICES as REGISTRY

from ..conftest import DATA
from .manifests import OVERLAYS, Manifest, Manifests, labels_of, name_of, names_of, ports_of

#: A pod as the labels of its namespace and its own, or an address outside of the cluster.
Peer = tuple[dict[str, str], dict[str, str]] | str
OWN = {"kubernetes.io/metadata.name": "rewardfleet"}
#: Peers that are not in the overlay, and the port of those that are servers.
OTHERS: dict[str, tuple[Peer, int]] = json.loads((DATA / "k8s" / "peers.json").read_text())


def matches(selector: Manifest, labels: dict[str, str]) -> bool:
    assert selector.keys() <= {"matchLabels"}, "expressions are not used"
    return selector.get("matchLabels", {}).items() <= labels.items()


def contains(rule_peer: Manifest, peer: Peer) -> bool:
    """Return whether an element of `from` or `to` of a rule contains a peer."""
    block = rule_peer.get("ipBlock")
    if block is None and not isinstance(peer, str):
        namespace = matches(rule_peer.get("namespaceSelector", {"matchLabels": OWN}), peer[0])
        return namespace and matches(rule_peer.get("podSelector", {}), peer[1])
    if block is None or not isinstance(peer, str):
        return False
    is_in, *is_excepted = (
        ipaddress.ip_address(peer) in ipaddress.ip_network(cidr)
        for cidr in (block["cidr"], *block.get("except", ()))
    )
    return is_in and not any(is_excepted)


def allows(overlay: Manifests, direction: str, own: Peer, other: Peer, port: int) -> bool:
    """Return whether the policies of a pod allow a connection in one direction.

    Args:
        direction: `Ingress` or `Egress`.
        own: The pod whose policies count; one of another namespace has none.
        other: The other end.
        port: The port of the server.
    """
    if isinstance(own, str) or own[0] != OWN:
        return True
    policies = [
        each["spec"]
        for each in overlay.of("NetworkPolicy")
        if direction in each["spec"]["policyTypes"] and matches(each["spec"]["podSelector"], own[1])
    ]
    assert policies, "nothing selects the pod, so everything is allowed"
    peers = {"Ingress": "from", "Egress": "to"}[direction]
    return any(
        (peers not in rule or any(contains(each, other) for each in rule[peers]))
        and port in [each["port"] for each in rule["ports"]]
        for policy in policies
        for rule in policy.get(direction.lower(), ())
    )


def reached(overlay: Manifests) -> dict[str, set[str]]:
    """Return what each peer can reach; of those that are not in the overlay, only what is."""
    pods = {
        name_of(each): ((OWN, labels_of(each)), port)
        for each in overlay.workloads
        for port in ports_of(each).values()
    }
    return {
        name: {
            other
            for other, (server, port) in (pods | OTHERS if name in pods else pods).items()
            if allows(overlay, "Egress", client, server, port)
            and allows(overlay, "Ingress", server, client, port)
        }
        for name, (client, _) in (pods | OTHERS).items()
    }


DNS = {"dns", "node-local dns", "cloud dns"}
SERVICES = set(REGISTRY)
#: What peers reach in addition to the rule of all overlays.
ADDITIONS = {
    "gpu": {"vlm": {"redis", "internet"} | DNS, "proxy": {"vlm"}},
    "keda": {"prometheus": SERVICES},
    "tracing": {service: {"collector"} for service in SERVICES},
    "sandbox-fusion": {"code": {"fusion"}},
}


@pytest.mark.parametrize("name", sorted({*OVERLAYS, *ADDITIONS}))
def test_each_peer_reaches_what_it_needs_only(
    overlays: dict[str, Manifests], components: dict[str, Manifests], name: str
):
    manifests = (components | overlays)[name]
    rule = {
        **dict.fromkeys(SERVICES, {"redis"} | DNS),
        "redis": DNS,
        "proxy": SERVICES | DNS,
        **{other: {"proxy"} for other in OTHERS},
    }
    additions = ADDITIONS.get(name, {})
    assert reached(manifests) == {
        peer: rule.get(peer, set()) | additions.get(peer, set())
        for peer in names_of(manifests.workloads) | OTHERS.keys()
    }
