"""Fetch `video_url`: over https, only from hosts of `video_url_host`, at public addresses."""

import asyncio
import contextlib
import ipaddress
import socket
import ssl
import tempfile
from collections.abc import Sequence
from urllib.parse import SplitResult, urljoin, urlsplit

import httpx

from rewardfleet.tls import certificate_problem, tls_context
from rewardfleet.wire.errors import (
    BackendFailed,
    DeadlineExceeded,
    Forbidden,
    InvalidRequest,
    NotFound,
    TooLarge,
)
from rewardfleet_server.system.anonymous_file import AnonymousFile

#: Addresses for protocols, by IANA's registries. Python counts some of them as global.
_SPECIAL = [
    *map(ipaddress.ip_network, ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "3fff::/20"))
]
#: What is allocated of IPv6. Outside of it are addresses that embed an IPv4 address, to which a
#: gateway would connect: compatible, mapped, translated (RFC 2765) and NAT64 ones.
_GLOBAL_UNICAST, _6TO4 = map(ipaddress.ip_network, ("2000::/3", "2002::/16"))

_MAX_REDIRECTS = 3
_CONCURRENT = 16
_SECONDS = 30.0  #: seconds for one video in total, redirects included


def is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Return whether an address is on the public internet and does not embed another address."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:  # as resolvers may return an IPv4 address
            return is_public(address.ipv4_mapped)
        if address not in _GLOBAL_UNICAST or address in _6TO4:
            return False
    special = any(address in network for network in _SPECIAL)
    return address.is_global and not (address.is_multicast or special)


class Fetcher:
    """Fetches videos to temporary files.

    Args:
        hosts: The exact names of the allowed hosts; if there are none, nothing is fetched.
    """

    def __init__(self, hosts: Sequence[str], *, max_bytes: int) -> None:
        self._hosts = {host.lower() for host in hosts}
        self._max_bytes = max_bytes
        self._slots = asyncio.Semaphore(_CONCURRENT)
        self._http = httpx.AsyncClient(
            verify=tls_context() if hosts else False,
            trust_env=False,
            timeout=_SECONDS,
            # No keep-alive: the address of a host is checked for every request.
            limits=httpx.Limits(max_connections=_CONCURRENT, max_keepalive_connections=0),
        )

    async def fetch(self, url: str) -> AnonymousFile:
        """Fetch one video.

        Raises:
            Forbidden: The host or its current address is not allowed.
            InvalidRequest: The URL is not an https URL.
            NotFound: The host has no such video.
            TooLarge: The video has more than `max_bytes`.
            BackendFailed: The host failed.
            DeadlineExceeded: It took longer than 30 s.
        """
        if not self._hosts:
            raise Forbidden("video_url is not enabled here (video_url_host); send the video")
        try:
            async with asyncio.timeout(_SECONDS), self._slots:
                return await self._follow_redirects(url)
        except TimeoutError:
            raise DeadlineExceeded(f"video_url was not fetched within {_SECONDS:g} s") from None
        except (httpx.HTTPError, ssl.SSLError) as error:
            reason = certificate_problem(error) or type(error).__name__
            raise BackendFailed(f"video_url cannot be fetched: {reason}") from None

    async def aclose(self) -> None:
        await self._http.aclose()

    async def _follow_redirects(self, url: str) -> AnonymousFile:
        for _ in range(_MAX_REDIRECTS + 1):
            request = await self._request(self._checked(url))
            async with contextlib.aclosing(await self._http.send(request, stream=True)) as response:
                if not response.has_redirect_location:
                    return await self._download(response)
                url = urljoin(url, response.headers["location"])
        raise BackendFailed(f"video_url is redirected more than {_MAX_REDIRECTS} times")

    def _checked(self, url: str) -> SplitResult:
        """Check a URL, whether from the caller or from a redirect."""
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError as error:
            raise InvalidRequest(f"video_url is not a URL: {error}") from None
        if parts.scheme != "https" or not host or parts.username is not None:
            raise InvalidRequest("video_url must be an https URL, without user or password")
        if host.lower() not in self._hosts:
            raise Forbidden(f"video_url: the host {host[:100]} is not allowed (video_url_host)")
        return parts

    async def _request(self, parts: SplitResult) -> httpx.Request:
        """Make a request to the checked address: a second DNS lookup might give another one."""
        host, port = parts.hostname or "", parts.port or 443
        try:
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError:
            raise BackendFailed(f"video_url: the host {host} cannot be resolved") from None
        addresses = [ipaddress.ip_address(entry[4][0]) for entry in found]
        if not addresses or not all(map(is_public, addresses)):
            raise Forbidden(f"video_url: the host {host} has an address that is not public")
        target = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}".encode()
        return self._http.build_request(
            "GET",
            httpx.URL(scheme="https", host=str(addresses[0]), port=port, raw_path=target),
            headers={"host": parts.netloc, "accept-encoding": "identity"},
            extensions={"sni_hostname": host},
        )

    async def _download(self, response: httpx.Response) -> AnonymousFile:
        if response.status_code in {404, 410}:
            raise NotFound("video_url: there is no such video")
        if response.status_code != 200:
            raise BackendFailed(f"video_url: the host answered HTTP {response.status_code}")
        with tempfile.TemporaryFile() as file:
            size = 0
            async for chunk in response.aiter_raw():
                size += len(chunk)
                if size > self._max_bytes:
                    limit = self._max_bytes / 2**20
                    raise TooLarge(f"video_url: more than the {limit:g} MiB accepted")
                await asyncio.to_thread(file.write, chunk)
            return AnonymousFile(file)
