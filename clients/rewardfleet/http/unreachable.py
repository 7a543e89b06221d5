"""Why there is no answer from a URL, and whether that is due to the URL."""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx

from rewardfleet.tls import certificate_problem
from rewardfleet.wire.errors import Unavailable

#: Seconds for a TLS handshake with what closed a connection of plain HTTP.
_HANDSHAKE_SECONDS = 1.0


async def unreachable(url: str, error: Exception, *, has_worked: bool) -> Unavailable:
    """Return the failure of a request without an answer.

    It is no outage if the connection ended after it was sent.
    """
    causes = [*_causes(error)]
    of_tls = next((each for each in causes if isinstance(each, ssl.SSLError)), None)
    of_name = next((each for each in causes if isinstance(each, socket.gaierror)), None)
    is_cut = isinstance(error, httpx.RemoteProtocolError | httpx.ReadError)
    hint, scheme_end = "", url.index("://")
    if problem := certificate_problem(error):
        hint = f"; {problem}"
    elif type(of_tls) is ssl.SSLError:  # not one of a connection that ends during the handshake
        hint = f"; if it speaks plain HTTP, give http{url[scheme_end:]}"
    elif is_cut and url.lower().startswith("http:") and not has_worked and await _speaks_tls(url):
        hint = f"; it speaks TLS: give https{url[scheme_end:]}"
    failure = Unavailable(f"{url} cannot be reached: {type(error).__name__}: {error}{hint}")
    # A name server that does not answer now is no reason to doubt the name.
    is_unknown = of_name is not None and of_name.errno != socket.EAI_AGAIN
    failure.blames_url = bool(hint) or is_unknown
    failure.is_outage = not is_cut
    return failure


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


async def _speaks_tls(url: str) -> bool:
    parts = urlsplit(url)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent
    try:
        async with asyncio.timeout(_HANDSHAKE_SECONDS):
            opening = asyncio.open_connection(parts.hostname, parts.port or 80, ssl=context)
            _, writer = await opening
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    return True
