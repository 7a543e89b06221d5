"""Responses of limited size: a broken or hostile service must not fill the memory of a trainer."""

from collections.abc import Callable

import httpx

from .wire.errors import BackendFailed

#: Bytes of a response to one item: as many as a request may have.
MAX_RESPONSE_BYTES = 64 * 2**20
#: Bytes that each item of a batch adds.
MAX_ITEM_BYTES = 2 * 2**20


def max_response_bytes(item_count: int) -> int:
    """Return the most bytes that a response to so many items may have."""
    return MAX_RESPONSE_BYTES + MAX_ITEM_BYTES * item_count


async def receive(
    http: httpx.AsyncClient,
    request: httpx.Request,
    max_bytes: int,
    on_bytes: Callable[[], None] = lambda: None,
) -> httpx.Response:
    """Send a request and return its response, completely read.

    Args:
        http: The connections.
        request: The request; it must not accept a `Content-Encoding`.
        max_bytes: The most bytes of the body.
        on_bytes: Called when the headers, or a part of the body, have arrived.

    Raises:
        BackendFailed: The response is larger, or compressed, so that its size is not known.
        httpx.RequestError: It could not be received.
    """
    response = await http.send(request, stream=True)
    try:
        on_bytes()
        encoding = response.headers.get("content-encoding", "identity")
        if encoding.strip().lower() not in {"", "identity"}:
            raise BackendFailed(
                f"{request.url} answered with Content-Encoding {encoding[:40]!r}, which the "
                "client does not accept; a proxy in between must not compress responses"
            )
        _check_size(_announced(response), max_bytes, request)
        parts: list[bytes] = []
        received = 0
        async for part in response.aiter_raw():
            on_bytes()
            received += len(part)
            _check_size(received, max_bytes, request)
            parts.append(part)
    finally:
        await response.aclose()  # closes the connection if the response is not complete
    return httpx.Response(
        response.status_code,
        headers=response.headers,
        content=b"".join(parts),
        request=request,
    )


def _announced(response: httpx.Response) -> int:
    length = response.headers.get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() and len(length) < 20 else 0


def _check_size(size: int, max_bytes: int, request: httpx.Request) -> None:
    if size > max_bytes:
        raise BackendFailed(f"{request.url} answered with more than {max_bytes} bytes")
