"""Responses: received within limits, and read as models or typed errors.

A broken or hostile service must not fill the memory of a trainer, nor answer one request with the
score of another.
"""

import asyncio
import contextlib
import email.utils
import secrets
import socket
import ssl
import time
from typing import TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ValidationError

from rewardfleet.tls import certificate_problem
from rewardfleet.wire.errors import (
    ERROR_OF_STATUS,
    BackendFailed,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    Problem,
    RewardFleetError,
    Unauthorized,
    Unavailable,
)
from rewardfleet.wire.headers import GATEWAY, REQUEST_ID_HEADER, SERVICE_HEADER
from rewardfleet.wire.urls import redact

ModelT = TypeVar("ModelT", bound=BaseModel)

#: Statuses below 500 with which a proxy asks for another attempt.
_PASSING = {408, 425}
#: Seconds for a TLS handshake with what closed a connection of plain HTTP.
_HANDSHAKE_SECONDS = 1.0


def new_request_id() -> str:
    """Return an id for `X-Request-Id`."""
    return secrets.token_hex(16)


def check_head(
    response: httpx.Response, request: httpx.Request, max_bytes: int, *, needs_id: bool
) -> bool:
    """Return whether a response, of which the body was not read, has the id of its request.

    Raises:
        BackendFailed: It has another id, or needs one; it is compressed, or too large.
    """
    sent: str = request.headers[REQUEST_ID_HEADER]
    given: str | None = response.headers.get(REQUEST_ID_HEADER)
    if given != sent and (needs_id or given is not None):
        what = "no X-Request-Id" if given is None else f"the X-Request-Id {given[:64]!r}"
        detail = f"{request.url} answered another request: {what}, not {sent!r}"
        failure = BackendFailed(f"{detail} (HTTP {response.status_code})")
        failure.is_outage = given is None  # the answer of a proxy
        raise failure
    encoding = response.headers.get("content-encoding", "identity")
    if encoding.strip().lower() not in {"", "identity"}:
        raise BackendFailed(
            f"{request.url} answered with Content-Encoding {encoding[:40]!r}, which the "
            "client does not accept; a proxy in between must not compress responses"
        )
    length = response.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and (len(length) > 18 or int(length) > max_bytes):
        raise too_long(request, max_bytes)
    return given == sent


def too_long(request: httpx.Request, max_bytes: int) -> BackendFailed:
    """Return the failure of a response with too many bytes."""
    return BackendFailed(f"{request.url} answered with more than {max_bytes} bytes")


def model_of(
    response: httpx.Response, url: str, service: str, response_type: type[ModelT]
) -> ModelT:
    """Return the model of a response, or raise the failure that it reports or is."""
    if reason := _wrong_url(response, url, service):
        raise _of_url(InvalidRequest(reason))
    if response.status_code != 200:
        raise _error_of(response, url)
    try:
        return response_type.model_validate_json(response.content)
    except ValidationError as error:
        failure = BackendFailed(
            f"the answer of {url} is not a valid {response_type.__name__}; is it a "
            f"rewardfleet service of this version? (got {response.text[:200]!r})"
        )
        raise _of_url(failure) from error


def _of_url(error: RewardFleetError) -> RewardFleetError:
    error.blames_url = True
    return error


def _wrong_url(response: httpx.Response, url: str, wanted: str) -> str | None:
    """Return why a base URL is wrong, as far as a response shows it; else None."""
    service = response.headers.get(SERVICE_HEADER, wanted)[:40]  # a proxy may drop it
    fleet_url, _, prefix = url.rpartition("/")
    is_not_found = response.status_code == 404
    if service == GATEWAY:
        fleet_url = fleet_url if prefix == wanted else url
        return f"the fleet at {fleet_url} has no {wanted} service" if is_not_found else None
    if service != wanted:
        return f"{url} is the {service} service, not the {wanted} service; check the URL"
    if is_not_found and "no endpoint '" in (detail := _error_of(response, url).detail):
        return f"{url} is not the base URL of the {wanted} service: {detail}"
    return None


def _error_of(response: httpx.Response, url: str) -> RewardFleetError:
    with contextlib.suppress(ValidationError):
        problem = Problem.model_validate_json(response.content)
        is_key = problem.status == Unauthorized.status
        problem.detail = f"{url}: {problem.detail}" if is_key else problem.detail
        error = RewardFleetError.from_problem(problem)
        error.blames_url = is_key
        return error
    # Of other status codes, only those of a request that is refused are the same the next time.
    default = InvalidRequest if 400 <= response.status_code < 500 else BackendFailed
    error_type = ERROR_OF_STATUS.get(response.status_code, default)
    if error_type is InternalError:
        error_type = BackendFailed  # of a proxy whose replica died, as Ray Serve answers then
    is_wrong_url = issubclass(error_type, InvalidRequest | MethodNotAllowed | NotFound)
    hint = "; is this the URL of a rewardfleet service?" if is_wrong_url else ""
    if location := response.headers.get("location"):
        hint = f"; it leads to {redact(location[:200])}"
    error = error_type(
        f"{url} answered HTTP {response.status_code} without a rewardfleet error "
        f"(got {response.text[:200]!r}){hint}",
        retry_after=_retry_after(response.headers.get("retry-after", "")),
    )
    error.is_foreign = True
    error.is_outage = response.status_code >= 500 or response.status_code in _PASSING
    # Others refuse this request, e.g. its size. A proxy answers these as well during a restart.
    error.blames_url = response.status_code < 400 or response.status_code in {401, 403, 404, 405}
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


async def unreachable(url: str, error: Exception, *, has_worked: bool) -> Unavailable:
    """Return the failure of a request without an answer; no outage if it ended after sending it."""
    causes: list[BaseException] = [error]
    while cause := causes[-1].__cause__ or causes[-1].__context__:
        causes.append(cause)
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
