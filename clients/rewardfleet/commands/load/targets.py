"""Which services are below a URL."""

import asyncio
from collections.abc import Iterable

import httpx
from pydantic import BaseModel, ValidationError

from rewardfleet.client import SERVICES
from rewardfleet.commands.status import base_url, named_url
from rewardfleet.wire.headers import GATEWAY
from rewardfleet_server.settings import redact

_TIMEOUT_SECONDS = 5.0


class _Index(BaseModel):
    """The answer to `GET /` of a service or a gateway."""

    service: str
    services: dict[str, object] = {}


async def find_services(url: str | None, named: Iterable[str], api_key: str) -> dict[str, str]:
    """Return the base URLs of services by name.

    Args:
        url: That of a fleet (a gateway or an ingress), or of a single service.
        named: Single services as `NAME=URL`, which replace those below `url`.
        api_key: Sent as a bearer token; empty for none.

    Raises:
        ValueError: A URL is not valid, or no service answers there.
    """
    found = {} if url is None else await _below(base_url(url), api_key)
    return {**found, **dict(named_url(each) for each in named)}


async def _below(url: str, api_key: str) -> dict[str, str]:
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    async with httpx.AsyncClient(
        headers=headers, timeout=_TIMEOUT_SECONDS, trust_env=False
    ) as http:
        try:
            answer = await http.get(f"{url}/")
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise ValueError(f"{redact(url)} cannot be reached: {reason}") from None
        index = _parse(answer)
        if index is not None and index.service == GATEWAY:
            return {name: f"{url}/{name}" for name in SERVICES if name in index.services}
        if index is not None and index.service in SERVICES:
            return {index.service: url}
        below = await asyncio.gather(
            *(http.get(f"{url}/{name}/") for name in SERVICES), return_exceptions=True
        )
    answers = zip(SERVICES, below, strict=True)
    found = {
        name: f"{url}/{name}"
        for name, each in answers
        if isinstance(each, httpx.Response) and (own := _parse(each)) and own.service == name
    }
    if not found:
        raise ValueError(
            f"{redact(url)} is neither a fleet nor a service of rewardfleet "
            f"(HTTP {answer.status_code})"
        )
    return found


def _parse(answer: httpx.Response) -> _Index | None:
    try:
        return _Index.model_validate_json(answer.content)
    except ValidationError:
        return None
