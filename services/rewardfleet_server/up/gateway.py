"""The gateway: one address for all services, `/{service}/…`.

A request goes to the ready replica with the fewest requests in progress. Its body is passed on as
it arrives and is never parsed. If a replica cannot be reached, fails before it responds, or answers
429 or 503, the request is sent to another one: all requests of the services are idempotent.
Requests of clients that cannot repeat them wait in line while no replica can take them.

`GET /inflight`, and `/{service}/inflight`, are answered by all replicas together. `GET /metrics`
has what the gateway itself has answered; services count their answers.
"""

import asyncio
import json
import logging
import math
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from rewardfleet import __version__
from rewardfleet.wire.errors import (
    DeadlineExceeded,
    MethodNotAllowed,
    NotFound,
    Overloaded,
    RewardFleetError,
    Unauthorized,
    Unavailable,
)
from rewardfleet.wire.headers import (
    GATEWAY,
    REQUEST_ID_HEADER,
    SERVICE_HEADER,
)
from rewardfleet.wire.in_flight import InFlight, merged
from rewardfleet.wire.waiting import Waits, waits_at
from rewardfleet_server.http.allowed_hosts import AllowedHosts
from rewardfleet_server.observe.telemetry import new_request_id

from .line import MAX_WAITING, Line
from .metrics import METRICS_TYPE, GatewayMetrics
from .replicas import Fleet, Replica
from .request import (
    NOT_FORWARDED,
    SILENCE_SECONDS,
    CallerDisconnected,
    Memory,
    Message,
    Receive,
    Request,
    dropped_names,
)
from .upstream import Connection, Headers, Pool, Unreachable, UpstreamFailed

Send = Callable[[Message], Awaitable[None]]

log = logging.getLogger(__name__)

#: The most requests in progress, without those that may wait in line.
MAX_REQUESTS = 4096
#: The longest time that a replica gets no requests after a 429, in seconds.
MAX_COOLDOWN_SECONDS = 5.0
#: Seconds that a request waits in line if no client of its route has a shorter timeout.
_WAIT_SECONDS = 100.0
#: A request that so many replicas did not survive is not sent to a third one.
_MAX_LOST = 2
#: The most bytes of a refusal.
_MAX_REFUSAL_BYTES = 64 * 1024
#: The most bytes of a replica's samples in flight, and seconds to wait for them.
_MAX_IN_FLIGHT_BYTES, _IN_FLIGHT_SECONDS = 2 * 2**20, 2.0

#: The methods of what the gateway answers itself.
_READS = ("GET", "HEAD")
#: Why a replica does not report its samples in flight without a key.
_NO_KEY = "it requires an API key"

#: The server of the gateway adds the date.
_NOT_RETURNED = (NOT_FORWARDED | {b"date"}) - {b"content-length"}


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
        hosts: The names by which callers may address it.
        max_waiting: The most requests that wait in line, or are at a replica after it.
        reports_all: Whether services without replicas are reported as well; they are if none has
            one.
    """

    def __init__(
        self,
        fleet: Fleet,
        hosts: AllowedHosts,
        *,
        max_waiting: int = MAX_WAITING,
        reports_all: bool = True,
    ) -> None:
        self._fleet = fleet
        self._reports_all = reports_all
        self._hosts = hosts
        self._max_waiting = max_waiting
        self._pool = Pool()
        self._memory = Memory()
        self._lines = {name: Line(replicas) for name, replicas in fleet.items()}
        self._metrics = GatewayMetrics()
        self._in_progress = self._patient = 0
        self._turn = 0

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._lifespan(receive, send)
            return
        try:
            await self._answer(scope, receive, send)
        except CallerDisconnected:
            pass
        except RewardFleetError as error:
            self._metrics.count(self._service_of(scope), error)
            await _send_problem(send, error, _request_id(scope))
        else:
            self._metrics.count(self._service_of(scope))

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
        self._hosts.check(scope["headers"])
        path: bytes = scope["raw_path"]
        page = {b"/": self._index, b"/healthz": self._health, b"/readyz": self._readiness}.get(path)
        if page is not None:
            _check_is_read(scope)
            await _send_json(send, 200, page(), [_request_id(scope)])
            return
        if path == b"/metrics":
            _check_is_read(scope)
            await _send_body(send, 200, self._metrics.exposition(), METRICS_TYPE)
            return
        name = self._service_of(scope)
        rest = path[1:].partition(b"/")[2]
        replicas = self._fleet.get(name)
        if path == b"/inflight" or (rest == b"inflight" and replicas is not None):
            await self._send_in_flight(scope, replicas, send)
            return
        if replicas is None:
            services = ", ".join(f"/{each}" for each in self._fleet)
            shown = path[:100].decode("ascii")
            raise NotFound(f"no service at {shown!r}; the services are at {services}")
        waits = waits_at("/" + rest.decode("ascii"))
        try:
            request = self._enter(scope, receive, name, waits)
            try:
                await self._forward(name, replicas, request, send)
            finally:
                self._leave(request)
        except RewardFleetError as error:
            if waits is None or waits.repeats_on is None or not error.retryable:
                raise
            raise waits.repeats_on(error.detail, retry_after=error.retry_after) from error

    def _service_of(self, scope: MutableMapping[str, Any]) -> str:
        """Return the service that a path names; empty if it names none."""
        name = scope["raw_path"][1:].partition(b"/")[0].decode("ascii")
        return name if name in self._fleet else ""

    def _enter(
        self, scope: MutableMapping[str, Any], receive: Receive, service: str, waits: Waits | None
    ) -> Request:
        """Count a request.

        Raises:
            Overloaded: There are too many.
            InvalidRequest: It cannot be passed on.
        """
        count = self._in_progress if waits is None else self._patient
        most = MAX_REQUESTS if waits is None else self._max_waiting
        if count >= most:
            raise Overloaded(f"the gateway has {most} requests in progress", retry_after=1)
        request = Request(scope, receive, service, self._memory, waits)
        self._in_progress += waits is None
        self._patient += waits is not None
        return request

    def _leave(self, request: Request) -> None:
        self._in_progress -= request.waits is None
        self._patient -= request.waits is not None
        request.close()

    async def _send_in_flight(
        self, scope: MutableMapping[str, Any], replicas: Sequence[Replica] | None, send: Send
    ) -> None:
        """Send the samples in flight at some replicas; None for those at all of them.

        Raises:
            MethodNotAllowed: The method is not GET.
            Unauthorized: No replica accepts the caller's key.
        """
        _check_is_read(scope)
        if replicas is None:
            replicas = [each for some in self._fleet.values() for each in some]
        key = dict(scope["headers"]).get(b"authorization", b"")
        found = await asyncio.gather(*(self._in_flight_at(each, key) for each in replicas))
        failures = {
            replica.url: answer
            for replica, answer in zip(replicas, found, strict=True)
            if isinstance(answer, str)
        }
        if failures and set(failures.values()) == {_NO_KEY}:
            raise Unauthorized(f"{_NO_KEY}: `Authorization: Bearer <key>`")
        answers = [each for each in found if isinstance(each, InFlight)]
        content = merged(answers, failures).model_dump()
        await _send_json(send, 200, content, [_request_id(scope)])

    async def _in_flight_at(self, replica: Replica, key: bytes) -> InFlight | str:
        """Return the samples in flight at a replica, or why it does not answer."""
        connection = None
        try:
            async with asyncio.timeout(_IN_FLIGHT_SECONDS):
                connection = await self._pool.acquire(replica.url)
                connection.begin(is_head=False)
                await connection.write(_in_flight_request(replica.url, key))
                connection.is_request_sent = True
                status, _ = await connection.head(_IN_FLIGHT_SECONDS)
                body = await _read_all(connection, _MAX_IN_FLIGHT_BYTES, _IN_FLIGHT_SECONDS)
        except TimeoutError:
            return f"no answer within {_IN_FLIGHT_SECONDS:g} s"
        except UpstreamFailed as error:
            return str(error)
        finally:
            if connection is not None:
                self._pool.release(replica.url, connection)
        if status == Unauthorized.status:
            return _NO_KEY
        try:
            return await asyncio.to_thread(_named_in_flight, body, replica.url)
        except ValidationError:
            return f"it answered HTTP {status}, not its samples in flight"

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
                for name, replicas in self._reported()
            },
        }

    def _reported(self) -> list[tuple[str, Sequence[Replica]]]:
        items = list(self._fleet.items())
        return [each for each in items if each[1] or self._reports_all] or items

    def _health(self) -> dict[str, Any]:
        return {"status": "ok"}

    def _readiness(self) -> dict[str, Any]:
        missing = [
            name
            for name, replicas in self._reported()
            if not any(each.is_ready for each in replicas)
        ]
        if missing:
            raise Unavailable(f"no replica is ready: {', '.join(missing)}", retry_after=1)
        return {"status": "ready"}

    async def _forward(
        self, service: str, replicas: Sequence[Replica], request: Request, send: Send
    ) -> None:
        """Send a request to one replica after another, until one answers other than 429 or 503.

        If it may wait, it does so while there is none, and then begins again.
        """
        tried: set[Replica] = set()
        refusals: list[_Refusal] = []
        lost, has_waited = 0, False
        while True:
            replica = self._choose(replicas, tried, request)
            if replica is None:
                if not await self._wait_in_line(service, request, at_front=has_waited):
                    break
                has_waited = True
                tried.clear()
                refusals.clear()
                continue
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
            if refusal.status == Overloaded.status or request.waits is not None:
                most = MAX_COOLDOWN_SECONDS if refusal.status == Overloaded.status else 1.0
                pause = min(refusal.retry_after, most)
                replica.cooling_until = time.monotonic() + pause
        if refusals and request.waits is None:
            await _send(send, min(refusals, key=lambda each: (each.status, each.retry_after)))
            return
        raise self._unavailable(service, replicas, tried)

    async def _wait_in_line(self, service: str, request: Request, *, at_front: bool) -> bool:
        """Return whether a request should be tried again, after it has waited for its turn."""
        if request.waits is None:
            return False
        seconds = min(request.waits.in_line_s or _WAIT_SECONDS, request.given_s)
        until = request.started + seconds
        return await self._lines[service].wait(until, at_front=at_front)

    def _choose(
        self, replicas: Sequence[Replica], tried: set[Replica], request: Request
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
                and (request.waits is None or Line.accepts(each))
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

    async def _attempt(self, replica: Replica, request: Request, send: Send) -> _Refusal | None:
        """Send a request to one replica and pass its response on; or return its refusal.

        Raises:
            UpstreamFailed: There is no response.
            DeadlineExceeded: The response, or the caller's body, takes too long.
            CallerDisconnected: The response is not needed any more.
        """
        replica.outstanding += 1
        connection = upload = None
        try:
            connection = await self._pool.acquire(replica.url)
            replica.connections.add(connection)
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
            self._lines[replica.service].advance()
            if connection is not None and upload is not None:
                replica.connections.discard(connection)
                upload.cancel()
                self._pool.release(replica.url, connection)


def _request_id(scope: MutableMapping[str, Any]) -> tuple[bytes, bytes]:
    """Return the header with the id of a request."""
    name = REQUEST_ID_HEADER.encode()
    given = dict(scope["headers"]).get(name, b"").decode("latin-1")
    return name, new_request_id(given).encode("ascii")


def _check_is_read(scope: MutableMapping[str, Any]) -> None:
    """Check the method of a request that the gateway answers itself.

    Raises:
        MethodNotAllowed: It is neither GET nor HEAD.
    """
    method = scope["method"]
    if method not in _READS:
        shown = scope["raw_path"][:100].decode("ascii")
        error = MethodNotAllowed(f"{shown} takes {', '.join(_READS)}, not {method[:20]}")
        error.allowed = _READS
        raise error


def _returned(headers: Headers) -> Headers:
    dropped = dropped_names(headers, _NOT_RETURNED)
    return [each for each in headers if each[0] not in dropped]


async def _read_refusal(
    connection: Connection, status: int, headers: Headers, timeout_s: float
) -> _Refusal:
    body = await _read_all(connection, _MAX_REFUSAL_BYTES, timeout_s)
    retry_after = dict(headers).get(b"retry-after", b"")
    seconds = float(retry_after) if retry_after.isdigit() else 1.0
    return _Refusal(status, headers, body, seconds)


async def _read_all(connection: Connection, max_bytes: int, timeout_s: float) -> bytes:
    body, more = b"", True
    while more:
        chunk, more = await connection.read(timeout_s)
        body += chunk
        if len(body) > max_bytes:
            raise UpstreamFailed("its answer is too long")
    return body


def _in_flight_request(url: str, key: bytes) -> bytes:
    host = urlsplit(url).netloc.encode("ascii")
    # The server's parser has refused line breaks in headers already.
    authorization = b"authorization: %b\r\n" % key if key else b""
    return b"GET /inflight HTTP/1.1\r\nhost: %b\r\n%b\r\n" % (host, authorization)


def _named_in_flight(body: bytes, url: str) -> InFlight:
    """Return a replica's answer with the URL of the replica in each sample.

    Raises:
        ValidationError: It is not such an answer.
    """
    answer = InFlight.model_validate_json(body)
    for sample in answer.samples:
        sample.replica = url
    return answer


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


async def _send_problem(
    send: Send, error: RewardFleetError, request_id: tuple[bytes, bytes]
) -> None:
    headers = [request_id]
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % math.ceil(error.retry_after)))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", ", ".join(error.allowed).encode("ascii")))
    problem = error.problem(request_id[1].decode("ascii")).model_dump()
    await _send_json(send, error.status, problem, headers, b"application/problem+json")


async def _send_json(
    send: Send,
    status: int,
    content: dict[str, Any],
    headers: Headers,
    media_type: bytes = b"application/json",
) -> None:
    await _send_body(send, status, json.dumps(content).encode(), media_type, headers)


async def _send_body(
    send: Send, status: int, body: bytes, media_type: bytes, headers: Headers = ()
) -> None:
    headers = [
        (b"content-type", media_type),
        (b"content-length", b"%d" % len(body)),
        (SERVICE_HEADER.encode(), GATEWAY.encode()),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
