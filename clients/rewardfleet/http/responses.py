"""Responses: received within limits, and read as models or typed errors.

A broken or hostile service must not fill the memory of a trainer, nor answer one request with the
score of another.
"""

import email.utils
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from rewardfleet.wire.errors import (
    ERRORS,
    BackendFailed,
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    Problem,
    RewardFleetError,
    Unavailable,
)
from rewardfleet.wire.headers import GATEWAY, REQUEST_ID_HEADER, SERVICE_HEADER

ModelT = TypeVar("ModelT", bound=BaseModel)

#: Bytes of a response to one item: as many as a request may have.
_MAX_RESPONSE_BYTES = 64 * 2**20
#: Bytes that each item of a batch adds.
_MAX_ITEM_BYTES = 2 * 2**20

#: The error class of an HTTP status, for responses without a problem, e.g. those of a proxy.
ERROR_OF_STATUS = {error.status: error for error in ERRORS.values()}


@contextmanager
def map_http_errors(url: str, timeout_s: float) -> Iterator[None]:
    """Raise exceptions of httpx and of timeouts as typed errors."""
    try:
        yield
    except httpx.ConnectTimeout as error:
        raise Unavailable(f"{url} cannot be reached: connecting took too long") from error
    except (httpx.TimeoutException, TimeoutError) as error:
        raise DeadlineExceeded(f"no answer from {url} within {timeout_s:g} s") from error
    except httpx.RequestError as error:
        raise Unavailable(f"{url} cannot be reached: {type(error).__name__}: {error}") from error


def max_response_bytes(item_count: int) -> int:
    """Return the most bytes that a response to so many items may have."""
    return _MAX_RESPONSE_BYTES + _MAX_ITEM_BYTES * item_count


def new_request_id() -> str:
    """Return an id for `X-Request-Id`."""
    return secrets.token_hex(16)


async def receive(
    http: httpx.AsyncHTTPTransport,
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
        request: The request; it must not accept a `Content-Encoding`.
        max_bytes: The most bytes of the body.
        on_bytes: Called when the headers, or a part of the body, have arrived.
        needs_id: Whether a response without the request's id is a failure.

    Raises:
        BackendFailed: The response is to another request, or is larger, or compressed, so that
            its size is not known.
        httpx.RequestError: It could not be received.
    """
    response = await http.handle_async_request(request)
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
        assert isinstance(response.stream, httpx.AsyncByteStream)  # noqa: S101 - of an asynchronous transport
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


def model_of(
    response: httpx.Response, url: str, service: str, response_type: type[ModelT]
) -> ModelT:
    """Return the model of a response.

    Raises:
        RewardFleetError: The failure that the response reports, or that it is not what the service
            answers.
    """
    if reason := _wrong_url(response, url, service):
        raise InvalidRequest(reason)
    if response.status_code != 200:
        raise _error_of(response, url)
    try:
        return response_type.model_validate_json(response.content)
    except ValidationError as error:
        raise BackendFailed(
            f"the answer of {url} is not a valid {response_type.__name__}; is it a "
            f"rewardfleet service of this version? (got {response.text[:200]!r})"
        ) from error


def _wrong_url(response: httpx.Response, url: str, wanted: str) -> str | None:
    """Return why a base URL is wrong, as far as a response shows it; else None."""
    service = response.headers.get(SERVICE_HEADER, wanted)[:40]  # a proxy may drop it
    fleet_url, _, prefix = url.rpartition("/")
    is_in_fleet = prefix == wanted
    is_not_found = response.status_code == 404
    if service == GATEWAY:
        if not is_not_found:
            return None  # a failure, e.g. no replica is ready
        if is_in_fleet:
            return f"the fleet at {fleet_url} has no {wanted} service"
        return f"{url} is a fleet, not the {wanted} service; give RewardFleet({url!r})"
    if service != wanted:
        hint = f", or give {service}={fleet_url!r} if that is not a fleet"
        return (
            f"{url} is the {service} service, not the {wanted} service; "
            f"check the URL{hint if is_in_fleet else ''}"
        )
    # A gateway removes the prefix, so a service that sees it was called directly.
    saw_prefix = f"no endpoint '/{prefix}/"
    if is_in_fleet and is_not_found and saw_prefix in _error_of(response, url).detail:
        return f"{fleet_url} is the {service} service, not a fleet; give {service}={fleet_url!r}"
    return None


def _error_of(response: httpx.Response, url: str) -> RewardFleetError:
    """Return the failure that a response reports."""
    try:
        return RewardFleetError.from_problem(Problem.model_validate_json(response.content))
    except ValidationError:
        pass
    # Of other status codes, only those of a request that is refused are the same the next time.
    default = InvalidRequest if 400 <= response.status_code < 500 else BackendFailed
    error_type = ERROR_OF_STATUS.get(response.status_code, default)
    if error_type is InternalError:
        error_type = BackendFailed  # of a proxy whose replica died, as Ray Serve answers then
    is_wrong_url = issubclass(error_type, InvalidRequest | MethodNotAllowed | NotFound)
    hint = "; is this the URL of a rewardfleet service?" if is_wrong_url else ""
    error = error_type(
        f"{url} answered HTTP {response.status_code} without a rewardfleet error "
        f"(got {response.text[:200]!r}){hint}",
        retry_after=_retry_after(response.headers.get("retry-after", "")),
    )
    error.is_foreign = True
    return error


def _retry_after(header: str) -> float | None:
    """Return the seconds of a `Retry-After`, which holds seconds or a date (RFC 9110, 10.2.3)."""
    if header.isascii() and header.isdigit():
        return float(header)
    try:
        date = email.utils.parsedate_to_datetime(header)
        return max(0.0, date.timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
