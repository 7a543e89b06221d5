"""The async client of all services."""

import math
from collections.abc import Sequence
from types import TracebackType
from typing import Generic, Self, TypeVar, overload
from urllib.parse import urlsplit

from .code import CodeClient
from .episode import EpisodeClient
from .service import OnFailure, RewardPolicy, ServiceClient
from .tools import ToolsClient
from .transport import ServiceTransport
from .video import VideoClient

ClientT = TypeVar("ClientT", bound=ServiceClient)


class _Service(Generic[ClientT]):
    """The client of one service as an attribute of the fleet: `fleet.video`.

    Raises:
        AttributeError: The fleet has no URL for this service.
    """

    def __init__(self, client_type: type[ClientT]) -> None:
        self.client_type = client_type

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, fleet: None, owner: type) -> Self: ...
    @overload
    def __get__(self, fleet: "RewardFleet", owner: type) -> ClientT: ...
    def __get__(self, fleet: "RewardFleet | None", owner: type) -> Self | ClientT:
        if fleet is None:
            return self
        client = fleet._clients.get(self._name)  # noqa: SLF001 - an attribute of that class
        if client is None:
            raise AttributeError(f"no URL of the {self._name} service: give {self._name}=...")
        assert isinstance(client, self.client_type)  # noqa: S101 - see `RewardFleet.__init__`
        return client


class RewardFleet:
    """Async clients of the services.

    ```python
    async with RewardFleet(video="http://127.0.0.1:18080") as fleet:
        reward = await fleet.video.reward("put the bowl on the plate", frames)
    ```

    It can be pickled, and used in forked processes, threads, and several event loops. Each of
    them has its own connections.

    Args:
        timeout_s: Seconds, above 0, for a complete call: encoding, waiting, retries, the response.
        api_key: Sent as a bearer token.
        max_concurrency: The most items sent to each replica and not answered yet, 1 or more;
            further items wait in the client.
        coalesce_s: Seconds, in [0, 1], in which single calls are collected into one batch; 0 for
            none.
        on_failure: What `reward` and `rewards` do without a score: "raise", or return this number
            instead, e.g. NaN.
        binary_reward: Whether rewards of the video service are 1.0 for a score of at least
            `success_threshold`, else 0.0. If False, they are the scores. Rewards of the other
            services are always the scores.
        success_threshold: The least score of a success, in [0, 1].
        urls: The base URL of each service (`video`, `code`, `episode`, `tools`), or those of its
            replicas.

    Raises:
        ValueError: A value is out of range, or no service is given.
        TypeError: There is no such service or option.
    """

    video = _Service(VideoClient)
    code = _Service(CodeClient)
    episode = _Service(EpisodeClient)
    tools = _Service(ToolsClient)

    def __init__(
        self,
        *,
        timeout_s: float = 120.0,
        api_key: str | None = None,
        max_concurrency: int = 128,
        coalesce_s: float = 0.0,
        on_failure: OnFailure = "raise",
        binary_reward: bool = True,
        success_threshold: float = 0.5,
        **urls: str | Sequence[str] | None,
    ) -> None:
        if not 0 <= success_threshold <= 1:
            raise ValueError(f"success_threshold: give a number in [0, 1], not {success_threshold}")
        if not (timeout_s > 0 and math.isfinite(timeout_s)):
            raise ValueError(f"timeout_s: give seconds above 0, not {timeout_s}")
        if max_concurrency < 1:
            raise ValueError(f"max_concurrency: give 1 or more, not {max_concurrency}")
        if not 0 <= coalesce_s <= 1:
            raise ValueError(f"coalesce_s: give seconds in [0, 1], not {coalesce_s}")
        given = {name: url for name, url in urls.items() if url is not None}
        if unknown := given.keys() - SERVICES.keys():
            raise TypeError(f"no such service or option: {', '.join(sorted(unknown))}")
        if not given:
            raise ValueError("give the URL of a service, e.g. video=... or code=...")
        self._clients: dict[str, ServiceClient] = {}
        for name, url in given.items():
            client_type = SERVICES[name]
            is_binary = binary_reward and client_type.has_threshold
            policy = RewardPolicy(on_failure, is_binary, success_threshold)
            transport = ServiceTransport(
                name,
                _base_urls(name, url),
                api_key=_header_safe(api_key),
                timeout_s=timeout_s,
                max_concurrency=max_concurrency,
            )
            self._clients[name] = client_type(transport, policy, coalesce_s=coalesce_s)

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        for client in self._clients.values():
            await client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


#: The client class of each service, by its name.
SERVICES: dict[str, type[ServiceClient]] = {
    name: each.client_type for name, each in vars(RewardFleet).items() if isinstance(each, _Service)
}


def _header_safe(api_key: str | None) -> str | None:
    """Return a key that fits in a header, without white space around it.

    Raises:
        ValueError: It is not one line of ASCII. The message does not contain the key.
    """
    key = (api_key or "").strip()
    if not (key.isascii() and (key.isprintable() or not key)):
        raise ValueError("api_key: a key is one line of plain ASCII")
    return key or None


def _base_urls(service: str, given: str | Sequence[str]) -> list[str]:
    urls = [given] if isinstance(given, str) else list(given)
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query:
            raise ValueError(f"{service}: give a URL such as http://127.0.0.1:18080, not {url!r}")
    if not urls:
        raise ValueError(f"{service}: give one URL or more")
    return list(dict.fromkeys(url.rstrip("/") for url in urls))
