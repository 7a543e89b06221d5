"""Responses that can be trusted: of limited size, and to the request that was sent.

A broken or hostile service must not fill the memory of a trainer, nor answer one request with the
score of another.
"""

import secrets
from collections.abc import Callable

import httpx

from .wire.errors import BackendFailed
from .wire.headers import REQUEST_ID_HEADER

#: Bytes of a response to one item: as many as a request may have.
_MAX_RESPONSE_BYTES = 64 * 2**20
#: Bytes that each item of a batch adds.
_MAX_ITEM_BYTES = 2 * 2**20


def max_response_bytes(item_count: int) -> int:
    """Return the most bytes that a response to so many items may have."""
    return _MAX_RESPONSE_BYTES + _MAX_ITEM_BYTES * item_count


def new_request_id() -> str:
    """Return an id for `X-Request-Id`."""
    return secrets.token_hex(16)


async def receive(
    http: httpx.AsyncClient,
    request: httpx.Request,
    max_bytes: int,
    on_bytes: Callable[[], None] = lambda: None,
    *,
    needs_id: bool = False,
) -> httpx.Response:
    """Send a request and return its response, completely read.

    A connection whose response has another `X-Request-Id` than the request, or none, is closed:
    what else arrives on it could be taken for the response to the next request.

    Args:
        http: The connections.
        request: The request; it must not accept a `Content-Encoding`.
        max_bytes: The most bytes of the body.
        on_bytes: Called when the headers, or a part of the body, have arrived.
        needs_id: Whether a response without the request's id is a failure.

    Raises:
        BackendFailed: The response is to another request, or is larger, or compressed, so that
            its size is not known.
        httpx.RequestError: It could not be received.
    """
    response = await http.send(request, stream=True)
    try:
        on_bytes()
        has_id = _check_id(response, request, needs_id=needs_id)
        encoding = response.headers.get("content-encoding", "identity")
        if encoding.strip().lower() not in {"", "identity"}:
            raise BackendFailed(
                f"{request.url} answered with Content-Encoding {encoding[:40]!r}, which the "
                "client does not accept; a proxy in between must not compress responses"
            )
        _check_size(_announced(response), max_bytes, request)
        parts: list[bytes] = []
        received = 0
        assert isinstance(response.stream, httpx.AsyncByteStream)  # noqa: S101 - of an AsyncClient
        async for part in response.stream:
            on_bytes()
            received += len(part)
            _check_size(received, max_bytes, request)
            parts.append(part)
        if not has_id:  # before the connection can be used again
            await response.extensions["network_stream"].aclose()
    finally:
        await response.aclose()  # closes the connection if the response is not complete
    return httpx.Response(
        response.status_code,
        headers=response.headers,
        content=b"".join(parts),
        request=request,
    )


def _check_id(response: httpx.Response, request: httpx.Request, *, needs_id: bool) -> bool:
    """Return whether a response has the id of its request.

    Raises:
        BackendFailed: It has another one, or it has none and needs one.
    """
    sent, given = (each.headers.get(REQUEST_ID_HEADER) for each in (request, response))
    if given == sent:
        return True
    if given is None and not needs_id:
        return False
    what = "no X-Request-Id" if given is None else f"the X-Request-Id {given[:64]!r}"
    raise BackendFailed(f"{request.url} answered another request: {what}, not {sent!r}")


def _announced(response: httpx.Response) -> int:
    length = response.headers.get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() and len(length) < 20 else 0


def _check_size(size: int, max_bytes: int, request: httpx.Request) -> None:
    if size > max_bytes:
        raise BackendFailed(f"{request.url} answered with more than {max_bytes} bytes")
