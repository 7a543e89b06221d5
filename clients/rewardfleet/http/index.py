"""What is at a URL: a service, a gateway, or services below an ingress."""

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

import httpx
from pydantic import BaseModel, JsonValue, RootModel, ValidationError

from rewardfleet.services import SERVICES
from rewardfleet.tls import certificate_problem, tls_context
from rewardfleet.wire.errors import InvalidRequest, Problem
from rewardfleet.wire.headers import GATEWAY, bearer
from rewardfleet.wire.urls import is_base_url, redact

ModelT = TypeVar("ModelT", bound=BaseModel)
Transport = httpx.AsyncBaseTransport | None

#: The most bytes of an answer, e.g. of the metrics of a service.
_MAX_BYTES = 8 * 2**20
#: Seconds that a request may take; a gateway asks its replicas meanwhile.
_TIMEOUT_SECONDS = 5.0


class IndexedReplica(BaseModel):
    """A replica in the index of a gateway."""

    url: str
    is_ready: bool = False
    outstanding: int = 0
    restarts: int = 0
    last_failure: str | None = None


class IndexedService(BaseModel):
    """A service in the index of a gateway."""

    replicas: list[IndexedReplica] = []


class Index(BaseModel):
    """The answer to `GET /` of a service or a gateway."""

    service: str
    version: str = ""
    services: dict[str, IndexedService] = {}


class Reply(NamedTuple):
    """What a URL answered."""

    status: int  #: 0 if there is no answer
    content: bytes
    reason: str  #: why there is no answer, or why it is not the expected one

    def parse(self, model: type[ModelT]) -> ModelT | None:
        """Return it as a model, or None if it is something else."""
        try:
            return model.model_validate_json(self.content)
        except ValidationError:
            return None

    def details(self) -> dict[str, JsonValue]:
        """Return the fields of `/readyz` or `/health` besides `status`."""
        found = self.parse(RootModel[dict[str, JsonValue]]) if self.status == 200 else None
        fields = found.root if found else {}
        return {name: value for name, value in fields.items() if name != "status"}


class Found(NamedTuple):
    """What is at a URL."""

    page: Index | None  #: its index; None if it is not that of a service or a gateway
    services: dict[str, str]  #: the base URLs of services by name
    reason: str = ""  #: why there are none


async def find_services(http: httpx.AsyncClient, url: str) -> Found:
    """Return which services are at a base URL, or below it."""
    reply = await get(http, f"{url}/")
    index = reply.parse(Index)
    if index is not None and index.service == GATEWAY:
        return Found(index, {name: f"{url}/{name}" for name in index.services})
    if index is not None:
        return Found(index, {index.service: url})
    below = await asyncio.gather(*(get(http, f"{url}/{name}/") for name in SERVICES))
    if not any(each.parse(Index) for each in below):
        return Found(None, {}, reply.reason)
    named = zip(SERVICES, below, strict=True)
    return Found(None, {name: f"{url}/{name}" for name, each in named if each.status != 404})


async def locate(
    service: str, url: str, headers: Mapping[str, str], via: Transport = None
) -> str | None:
    """Return the base URL of a service; None if it is not there.

    Args:
        url: Its URL, that of its fleet, or, if it runs alone, the one it would have in a fleet.

    Raises:
        InvalidRequest: It is above the given URL, which has parts that do not belong there.
    """
    scheme, _, rest = url.partition("://")
    parts = rest.split("/")
    async with http_client(via=via) as http:
        http.headers.update(headers)
        for end in range(len(parts), 0, -1):
            found = await find_services(http, f"{scheme}://{'/'.join(parts[:end])}")
            if (at := found.services.get(service)) is not None:
                if url in {at, at.removesuffix(f"/{service}"), f"{at}/{service}"}:
                    return at
                error = InvalidRequest(
                    f"{redact(url)} is not the {service} service, which is at {redact(at)}"
                )
                error.blames_url = True
                raise error
    return None


async def services_at(url: str, api_key: str = "", *, sought: str = "service") -> dict[str, str]:
    """Return the base URLs of the known services at one, by name, or raise `ValueError`."""
    async with http_client(api_key) as http:
        found = await find_services(http, url)
    known = {name: each for name, each in found.services.items() if name in SERVICES}
    if not known:
        raise ValueError(f"there is no {sought} at {redact(url)}: {found.reason}")
    return known


async def find_service(service: str, urls: Sequence[str], api_key: str) -> list[str]:
    """Return the base URLs of a service, given its own ones or those of fleets.

    Raises:
        ValueError: None of them has it.
        InvalidRequest: See `locate`.
    """
    given = [base_url(url) for url in urls]
    found = [await locate(service, url, bearer(api_key)) for url in given]
    if not any(found):
        services = await services_at(given[0], api_key, sought=f"service {service}")
        raise ValueError(
            f"{redact(given[0])} is the {' and '.join(services)} service, not the {service} "
            "service; check the URL"
        )
    return [at or url for at, url in zip(found, given, strict=True)]  # it may answer later


async def get(http: httpx.AsyncClient, url: str, seconds: float | None = None) -> Reply:
    """Return what a URL answers in time."""
    seconds = seconds or _TIMEOUT_SECONDS
    try:
        async with asyncio.timeout(seconds):
            at = httpx.URL(url)  # httpx logs it
            auth = httpx.BasicAuth(at.username, at.password) if at.userinfo else None
            async with http.stream("GET", at.copy_with(userinfo=b""), auth=auth) as response:
                content = b""
                async for part in response.aiter_raw(2**16):
                    content += part
                    if len(content) > _MAX_BYTES:
                        return Reply(0, b"", f"an answer of more than {_MAX_BYTES} bytes")
    except TimeoutError:
        return Reply(0, b"", f"no answer within {seconds:g} s")
    except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError) as error:
        reason = certificate_problem(error) or str(error) or type(error).__name__
        return Reply(0, b"", printable(reason))
    reason = f"HTTP {response.status_code}, not an answer of rewardfleet"
    reply = Reply(response.status_code, content, reason)
    problem = reply.parse(Problem)
    return reply if problem is None else reply._replace(reason=printable(problem.detail))


def http_client(api_key: str = "", via: Transport = None) -> httpx.AsyncClient:
    """Return a client for `get`, which sends the API key if it is not empty."""
    return httpx.AsyncClient(
        headers={"accept-encoding": "identity", **bearer(api_key)},
        timeout=None,  # noqa: S113 - `get` limits complete requests
        transport=via,
        verify=tls_context(),
        trust_env=False,
    )


def base_url(url: str) -> str:
    """Return a base URL without a slash at its end, or raise `ValueError` if it is no HTTP URL."""
    if not is_base_url(url):
        raise ValueError(f"give a URL such as http://127.0.0.1:18000, not {redact(url)!r}")
    return url.rstrip("/")


def printable(text: str, limit: int = 200) -> str:
    """Return a text that a service sent, on one line and without control characters."""
    return "".join(each if each.isprintable() else " " for each in text[:limit])
