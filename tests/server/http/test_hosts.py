"""The `Host` header, against DNS rebinding, over real HTTP."""

from contextlib import nullcontext
from pathlib import Path

import httpx
import pytest

from rewardfleet.wire.errors import Forbidden
from rewardfleet_server.http.allowed_hosts import AllowedHosts

from ...conftest import Serve

FOREIGN = ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "10.0.0.1", ""]
LOOPBACK = ["localhost", "LocalHost.:80", "127.0.0.1:18080", "127.0.0.2", "[::1]:80", "[::1]"]


def statuses(client: httpx.Client, hosts: list[str], path: str = "/healthz") -> set[int]:
    return {client.get(path, headers={"host": host}).status_code for host in hosts}


@pytest.mark.slow
def test_without_keys_only_loopback_names_are_accepted(serve: Serve, frames_request):
    client = serve()
    for path in ("/healthz", "/readyz", "/metrics", "/docs", "/openapi.json"):
        assert statuses(client, LOOPBACK, path) == {200}
        assert statuses(client, FOREIGN, path) == {403}
    answer = client.post("/score", json=frames_request, headers={"host": "evil.example:18080"})
    assert (answer.status_code, answer.json()["kind"]) == (403, "forbidden")
    assert "allowed_host" in answer.json()["detail"]
    assert answer.headers["x-rewardfleet-service"] == "video"


def test_given_names_are_accepted_as_well(serve: Serve):
    client = serve(allowed_host=["Rewards.example", "fleet"])
    assert statuses(client, [*LOOPBACK, "rewards.example:80", "FLEET"]) == {200}
    assert statuses(client, [*FOREIGN, "a.rewards.example"]) == {403}
    assert statuses(serve(allowed_host=["*"]), [*LOOPBACK, *FOREIGN]) == {200}


def test_with_keys_any_host_is_accepted_unless_names_are_given(serve: Serve, tmp_path: Path):
    """Probes, scrapers and ingresses use names and addresses of all kinds."""
    (tmp_path / "keys").write_text("key\n")
    assert statuses(serve(api_key_file=tmp_path / "keys"), [*LOOPBACK, *FOREIGN]) == {200}
    named = serve(api_key_file=tmp_path / "keys", allowed_host=["rewards.example"])
    assert statuses(named, [*LOOPBACK, "rewards.example"]) == {200}
    assert statuses(named, FOREIGN) == {403}


@pytest.mark.parametrize("host", ["10.0.0.1:8080", "[fd00::1]", "0.0.0.0", "a.example"])
def test_beyond_loopback_addresses_are_accepted(host: str):
    """A page cannot be served under an address that is not its own, and probes use addresses."""
    for listens_on in ("0.0.0.0", "::", "192.168.0.7", "a.example"):
        hosts = AllowedHosts([], listens_on=listens_on, has_keys=False)
        hosts.check([(b"host", b"localhost")])
        is_refused = host == "a.example" != listens_on
        with pytest.raises(Forbidden) if is_refused else nullcontext():
            hosts.check([(b"host", host.encode())])


@pytest.mark.parametrize("given", [[], [b"localhost", b"evil.example"], [b"localhost"] * 2])
def test_a_request_has_one_host(given: list[bytes]):
    hosts = AllowedHosts([], listens_on="127.0.0.1", has_keys=False)
    with pytest.raises(Forbidden):
        hosts.check([(b"host", value) for value in given])
