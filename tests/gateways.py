"""The gateway of services that run, and a stand-in with any index."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import httpx

from rewardfleet_server.http.allowed_hosts import AllowedHosts
from rewardfleet_server.testing import serving
from rewardfleet_server.up.gateway import Gateway
from rewardfleet_server.up.replicas import Replica

#: What a gateway accepts that listens on loopback without API keys.
LOOPBACK = AllowedHosts([], listens_on="127.0.0.1", has_keys=False)

Replicas = Mapping[str, Sequence[Mapping[str, Any]]]


@contextmanager
def fleet_of(**urls: str) -> Iterator[str]:
    """Serve a gateway of services with one ready replica each; yield its URL."""
    replicas = {name: [Replica(name, url.rstrip("/"), True)] for name, url in urls.items()}
    with serving(Gateway(replicas, LOOPBACK)) as url:
        yield url


def replica(url: str, **fields: Any) -> dict[str, Any]:
    """Return a replica as the index of the gateway shows it."""
    healthy = {"is_ready": True, "outstanding": 0, "restarts": 0, "last_failure": ""}
    return {"url": url, **healthy, **fields}


@contextmanager
def standin_gateway(
    replicas: Replicas, *, hidden: Replicas | None = None, has_index: bool = True
) -> Iterator[str]:
    """Serve a stand-in, which passes requests on to one replica of each service; yield its URL.

    Args:
        replicas: What its index shows.
        hidden: Where requests go instead of to the replicas in the index.
        has_index: Whether `GET /` is answered; an ingress does not.
    """
    upstream = {name: each[0]["url"] for name, each in (hidden or replicas).items() if each}
    services = {name: {"url": f"/{name}", "replicas": each} for name, each in replicas.items()}
    index = {"service": "gateway", "version": "1.2.3", "services": services}

    async def app(scope, receive, send):
        assert scope["type"] == "http"
        name, _, path = scope["path"].removeprefix("/").partition("/")
        if name in upstream:
            body = b""
            while (message := await receive()).get("more_body"):
                body += message["body"]
            body += message["body"]
            headers = [each for each in scope["headers"] if each[0] != b"host"]
            async with httpx.AsyncClient(timeout=30, trust_env=False, verify=False) as http:
                request = scope["method"], f"{upstream[name]}/{path}"
                answer = await http.request(*request, content=body, headers=headers)
            await reply(send, answer.status_code, answer.headers.raw, answer.content)
        elif not has_index:
            await reply(send, 404, [], b"404 page not found")
        elif name:
            problem = {"title": "Not found", "status": 404, "detail": f"no service {name!r}"}
            content = {**problem, "kind": "not_found", "retryable": False}
            await reply(send, 404, GATEWAY_HEADERS, json.dumps(content).encode())
        else:
            await reply(send, 200, GATEWAY_HEADERS, json.dumps(index).encode())

    with serving(app) as url:
        yield url


GATEWAY_HEADERS = [(b"x-rewardfleet-service", b"gateway")]


async def reply(send, status: int, headers, content: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
