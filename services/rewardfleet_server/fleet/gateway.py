"""The gateway: one address for all services, `/{service}/…`.

A request goes to the ready replica with the fewest requests in progress. Its body is passed on as
it arrives and is never parsed. If a replica cannot be reached, fails before it responds, or answers
429 or 503, the request is sent to another one: all requests of the services are idempotent.
"""

import asyncio
import json
import logging
import math
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from rewardfleet import __version__
from rewardfleet.wire.errors import (
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    Overloaded,
    RewardFleetError,
    Unavailable,
)
from rewardfleet.wire.headers import (
    GATEWAY,
    PREFIX_HEADER,
    REQUEST_ID_HEADER,
    SERVICE_HEADER,
    TIMEOUT_HEADER,
)
from rewardfleet_server.telemetry import new_request_id

from .replicas import Fleet, Replica
from .upstream import Connection, Headers, Pool, Unreachable, UpstreamFailed

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

log = logging.getLogger(__name__)

#: The most requests in progress.
MAX_REQUESTS = 4096
#: The most bytes of a request's body that are stored, so that it can be sent again.
MAX_STORED_BYTES = 2**20
#: The most bytes that are stored for all requests; beyond it, bodies are only passed on.
MAX_TOTAL_BYTES = 256 * 2**20
#: The longest time that a replica gets no requests after a 429, in seconds.
MAX_COOLDOWN_SECONDS = 5.0
#: Seconds without a byte of a request's body, or in which the caller reads nothing of the response.
SILENCE_SECONDS = 30.0
#: Seconds to wait for a response if the request has no `X-Request-Timeout`; if it has, the service
#: gets a little longer than that to report that it is too late.
DEFAULT_TIMEOUT_SECONDS, _TIMEOUT_GRACE_SECONDS = 600.0, 5.0
#: A request that so many replicas did not survive is not sent to a third one.
_MAX_LOST = 2
#: The most bytes of a refusal.
_MAX_REFUSAL_BYTES = 64 * 1024

_PREFIX = PREFIX_HEADER.encode()
#: Headers that concern one connection (RFC 9110, 7.6.1), or that the gateway sets itself.
_NOT_FORWARDED = frozenset(
    {
        b"connection",
        b"content-length",
        b"expect",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        _PREFIX,
    }
)
#: The server of the gateway adds the date.
_NOT_RETURNED = (_NOT_FORWARDED | {b"date"}) - {b"content-length"}


class _CallerDisconnected(Exception):
    """The caller disconnected before the response was complete."""


@dataclass(frozen=True)
class _Refusal:
    """A complete 429 or 503 of a replica.

    Attributes:
        retry_after: Its `Retry-After` in seconds.
    """

    status: int
    headers: Headers
    body: bytes
    retry_after: float


class Gateway:
    """The ASGI application of the gateway. It does not check API keys: services do.

    Args:
        fleet: The replicas of each service. Whoever owns it sets `is_ready`; the gateway unsets it
            when a replica cannot be reached.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._pool = Pool()
        self._memory = _Memory()
        self._in_progress = 0
        self._turn = 0

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._lifespan(receive, send)
            return
        try:
            await self._answer(scope, receive, send)
        except _CallerDisconnected:
            pass
        except RewardFleetError as error:
            given = dict(scope["headers"]).get(REQUEST_ID_HEADER.encode(), b"").decode("latin-1")
            await _send_problem(send, error, new_request_id(given))

    async def aclose(self) -> None:
        """Close the idle connections to replicas."""
        self._pool.close()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        path: bytes = scope["raw_path"]
        if path in {b"/", b"/healthz", b"/readyz"} and scope["method"] in {"GET", "HEAD"}:
            page = {b"/": self._index, b"/healthz": self._health, b"/readyz": self._readiness}[path]
            await _send_json(send, 200, page())
            return
        name = path[1:].partition(b"/")[0].decode("ascii")
        replicas = self._fleet.get(name)
        if replicas is None:
            services = ", ".join(f"/{each}" for each in self._fleet)
            shown = path[:100].decode("ascii")
            raise NotFound(f"no service at {shown!r}; the services are at {services}")
        if self._in_progress >= MAX_REQUESTS:
            reason = f"the gateway has {MAX_REQUESTS} requests in progress"
            raise Overloaded(reason, retry_after=1)
        request = _Request(scope, receive, name, self._memory)
        self._in_progress += 1
        try:
            await self._forward(name, replicas, request, send)
        finally:
            self._in_progress -= 1
            request.close()

    def _index(self) -> dict[str, Any]:
        return {
            "service": GATEWAY,
            "version": __version__,
            "services": {
                name: {
                    "url": f"/{name}",
                    "replicas": [
                        {
                            "url": each.url,
                            "is_ready": each.is_ready,
                            "outstanding": each.outstanding,
                            "restarts": each.restarts,
                            "last_failure": each.last_failure,
                        }
                        for each in replicas
                    ],
                }
                for name, replicas in self._fleet.items()
            },
        }

    def _health(self) -> dict[str, Any]:
        return {"status": "ok"}

    def _readiness(self) -> dict[str, Any]:
        missing = [
            name
            for name, replicas in self._fleet.items()
            if not any(each.is_ready for each in replicas)
        ]
        if missing:
            raise Unavailable(f"no replica is ready: {', '.join(missing)}", retry_after=1)
        return {"status": "ready"}

    async def _forward(
        self, service: str, replicas: Sequence[Replica], request: "_Request", send: Send
    ) -> None:
        """Send a request to one replica after another, until one answers other than 429 or 503."""
        tried: set[Replica] = set()
        refusals: list[_Refusal] = []
        lost = 0
        while replica := self._choose(replicas, tried, request):
            if not request.can_be_sent:
                # 0 s: another replica is free. A 429 would make the client pause for all.
                reason = "a replica failed, and the body is too large to be stored; send it again"
                raise Unavailable(reason, retry_after=0)
            if lost == _MAX_LOST:
                break
            tried.add(replica)
            try:
                refusal = await self._attempt(replica, request, send)
            except UpstreamFailed as error:
                lost += not isinstance(error, Unreachable)
                if replica.is_ready:  # else it is known already
                    log.warning("%s at %s failed a request: %s", service, replica.url, error)
                replica.is_ready = False
                replica.last_failure = f"a request failed: {error}"
                continue
            if refusal is None:
                return
            refusals.append(refusal)
            if refusal.status == Overloaded.status:
                pause = min(refusal.retry_after, MAX_COOLDOWN_SECONDS)
                replica.cooling_until = time.monotonic() + pause
        if refusals:
            await _send(send, min(refusals, key=lambda each: (each.status, each.retry_after)))
            return
        raise self._unavailable(service, replicas, tried)

    def _choose(
        self, replicas: Sequence[Replica], tried: set[Replica], request: "_Request"
    ) -> Replica | None:
        """Return a replica that may be sent a request; of equally busy ones, each in turn."""
        now = time.monotonic()
        self._turn += 1
        first = self._turn % len(replicas) if replicas else 0
        return min(
            (
                each
                for each in (*replicas[first:], *replicas[:first])
                # Pages and health checks are answered at capacity as well.
                if each.is_ready
                and each not in tried
                and (each.cooling_until <= now or request.is_read)
            ),
            key=lambda each: each.outstanding,
            default=None,
        )

    def _unavailable(
        self, service: str, replicas: Sequence[Replica], tried: set[Replica]
    ) -> RewardFleetError:
        """Return why no replica answered a request."""
        now = time.monotonic()
        pauses = [each.cooling_until - now for each in replicas if each.is_ready]
        if pauses and not tried and min(pauses) > 0:
            reason = f"all replicas of {service} are at capacity"
            return Overloaded(reason, retry_after=round(min(pauses), 3))
        failures = "; ".join(each.last_failure for each in tried)
        reason = f"no replica of {service} is ready{failures and ': '}{failures}"
        return Unavailable(reason, retry_after=1)

    async def _attempt(self, replica: Replica, request: "_Request", send: Send) -> _Refusal | None:
        """Send a request to one replica and pass its response on; or return its refusal.

        Raises:
            UpstreamFailed: There is no response.
            DeadlineExceeded: The response, or the caller's body, takes too long.
            _CallerDisconnected: The response is not needed any more.
        """
        replica.outstanding += 1
        connection = upload = None
        try:
            connection = await self._pool.acquire(replica.url)
            connection.begin(is_head=request.is_head)
            upload = asyncio.create_task(request.send_to(connection))
            try:
                status, headers = await connection.head(request.timeout_s)
                headers = _returned(headers)
                if status in {Overloaded.status, Unavailable.status}:
                    return await _read_refusal(connection, status, headers, request.timeout_s)
            except TimeoutError:
                raise DeadlineExceeded(
                    f"no answer of {replica.service} within {request.timeout_s:g} s"
                ) from None
            await _relay(connection, status, headers, request.timeout_s, send)
            return None
        finally:
            replica.outstanding -= 1
            if connection is not None and upload is not None:
                upload.cancel()
                self._pool.release(replica.url, connection)


@dataclass
class _Memory:
    """The bytes that all requests together store."""

    used: int = 0


class _Request:
    """A caller's request, which is sent to one replica or more.

    Attributes:
        timeout_s: Seconds to wait for the response.
        is_head: Whether its method is HEAD.
        is_read: Whether it only reads something.
        can_be_sent: Whether the body is still known from its start.
    """

    def __init__(
        self, scope: MutableMapping[str, Any], receive: Receive, service: str, memory: _Memory
    ) -> None:
        headers = dict(scope["headers"])
        self._receive = receive
        self._memory = memory
        self._is_chunked = b"transfer-encoding" in headers
        self._length = int(headers.get(b"content-length", 0))
        # A service refuses a large body before it reads it. Until it asks for the body, nothing of
        # it is sent, so that the request can go to another replica.
        self._is_large = self._is_chunked or self._length > MAX_STORED_BYTES
        self._head = self._encode_head(scope, service)
        self._stored: list[bytes] = []
        self._size = self._received = 0
        self._is_complete = False
        self.timeout_s = _timeout(headers.get(TIMEOUT_HEADER.encode(), b""))
        self.is_head = scope["method"] == "HEAD"
        self.is_read = self.is_head or scope["method"] == "GET"
        self.can_be_sent = True

    def _encode_head(self, scope: MutableMapping[str, Any], service: str) -> bytes:
        """Return request line and headers as the replica gets them.

        Raises:
            InvalidRequest: They cannot be passed on.
        """
        path = scope["raw_path"][1 + len(service) :] or b"/"
        query = scope["query_string"]
        target = path + b"?" + query if query else path
        dropped = _dropped(scope["headers"], _NOT_FORWARDED)
        lines = [scope["method"].encode("ascii") + b" " + target + b" HTTP/1.1"]
        lines += [b"%b: %b" % each for each in scope["headers"] if each[0] not in dropped]
        lines.append(b"%b: /%b" % (_PREFIX, service.encode("ascii")))
        if self._is_chunked:
            lines.append(b"transfer-encoding: chunked")
        else:
            lines.append(b"content-length: %d" % self._length)
        if self._is_large:
            lines.append(b"expect: 100-continue")
        head = b"\r\n".join(lines)
        # The server's parser has refused such requests already; here they would become two.
        breaks = len(lines) - 1
        if head.count(b"\n") != breaks or head.count(b"\r") != breaks or b" " in target:
            raise InvalidRequest("the request contains a line break")
        return head + b"\r\n\r\n"

    def close(self) -> None:
        """Give back the memory of the body."""
        self._stored.clear()
        self._memory.used -= self._size
        self._size = 0

    async def send_to(self, connection: Connection) -> None:
        """Send the request, and end the connection if the caller fails to send it or disconnects.

        It is cancelled when the response is complete, which may be before the body is.
        """
        error: Exception
        try:
            await self._send_to(connection)
        except TimeoutError:
            reason = f"no more of the body arrived within {SILENCE_SECONDS:g} s"
            error = DeadlineExceeded(reason)
        except (UpstreamFailed, _CallerDisconnected) as reason:
            error = reason
        connection.abort(error)

    async def _send_to(self, connection: Connection) -> None:
        await connection.write(self._head)
        if self._is_large:
            await connection.body_requested()
        for chunk in tuple(self._stored):
            await connection.write(self._framed(chunk))
        while not self._is_complete:
            async with asyncio.timeout(SILENCE_SECONDS):
                chunk = await self._next_chunk()
            if chunk:
                await connection.write(self._framed(chunk))
        if self._is_chunked:
            await connection.write(b"0\r\n\r\n")
        # Else the replica would take the start of the next request for the rest of this one.
        connection.is_request_sent = self._is_chunked or self._received == self._length
        while True:
            await self._next_chunk()

    async def _next_chunk(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise _CallerDisconnected
        chunk: bytes = message.get("body", b"")
        self._is_complete = not message.get("more_body", False)
        self._received += len(chunk)
        if self.can_be_sent:
            self._stored.append(chunk)
            self._size += len(chunk)
            self._memory.used += len(chunk)
            if self._size > MAX_STORED_BYTES or self._memory.used > MAX_TOTAL_BYTES:
                self.can_be_sent = False
                self.close()
        return chunk

    def _framed(self, chunk: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(chunk), chunk) if self._is_chunked and chunk else chunk


def _returned(headers: Headers) -> Headers:
    dropped = _dropped(headers, _NOT_RETURNED)
    return [each for each in headers if each[0] not in dropped]


def _dropped(headers: Headers, always: frozenset[bytes]) -> frozenset[bytes] | set[bytes]:
    """Return the names of the headers that are not passed on: `Connection` may add some."""
    named = [value for name, value in headers if name == b"connection"]
    if not named:
        return always
    return {*always, *(each.strip().lower() for value in named for each in value.split(b","))}


def _timeout(header: bytes) -> float:
    """Return the seconds to wait for a response; services refuse headers that are not valid."""
    try:
        seconds = float(header)
    except ValueError:
        return DEFAULT_TIMEOUT_SECONDS
    return seconds + _TIMEOUT_GRACE_SECONDS if 0 < seconds < math.inf else DEFAULT_TIMEOUT_SECONDS


async def _read_refusal(
    connection: Connection, status: int, headers: Headers, timeout_s: float
) -> _Refusal:
    body, more = b"", True
    while more:
        chunk, more = await connection.read(timeout_s)
        body += chunk
        if len(body) > _MAX_REFUSAL_BYTES:
            raise UpstreamFailed(f"its answer with status {status} is too long")
    retry_after = dict(headers).get(b"retry-after", b"")
    seconds = float(retry_after) if retry_after.isdigit() else 1.0
    return _Refusal(status, headers, body, seconds)


async def _relay(
    connection: Connection, status: int, headers: Headers, timeout_s: float, send: Send
) -> None:
    """Pass a response on as it arrives.

    If it stays incomplete, the server closes the caller's connection.
    """
    try:
        async with asyncio.timeout(SILENCE_SECONDS):
            await send({"type": "http.response.start", "status": status, "headers": headers})
        more = True
        while more:
            body, more = await connection.read(timeout_s)
            async with asyncio.timeout(SILENCE_SECONDS):
                await send({"type": "http.response.body", "body": body, "more_body": more})
    except (UpstreamFailed, TimeoutError, DeadlineExceeded) as error:
        log.warning("a response ended before it was complete: %s", error or "too slow")


async def _send(send: Send, answer: _Refusal) -> None:
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    await send({"type": "http.response.body", "body": answer.body})


async def _send_problem(send: Send, error: RewardFleetError, request_id: str) -> None:
    headers = [(REQUEST_ID_HEADER.encode(), request_id.encode("ascii"))]
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % math.ceil(error.retry_after)))
    problem = error.problem(request_id).model_dump()
    await _send_json(send, error.status, problem, headers, b"application/problem+json")


async def _send_json(
    send: Send,
    status: int,
    content: dict[str, Any],
    headers: Headers = (),
    media_type: bytes = b"application/json",
) -> None:
    body = json.dumps(content).encode()
    headers = [
        (b"content-type", media_type),
        (b"content-length", b"%d" % len(body)),
        (SERVICE_HEADER.encode(), GATEWAY.encode()),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
