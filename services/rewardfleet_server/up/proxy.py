"""A caller's request, sent to replicas by aiohttp: bodies are passed on as they arrive."""

import asyncio
import logging
import math
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple, Self

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from yarl import URL

from rewardfleet.wire import headers as wire
from rewardfleet.wire.errors import DeadlineExceeded, Overloaded, Unavailable
from rewardfleet.wire.waiting import Waits
from rewardfleet_server.http.openenv import Message, Receive, Send

from . import timeouts
from .line import Line
from .replicas import Replica

log = logging.getLogger(__name__)

Headers = Iterable[tuple[bytes, bytes]]

#: The most bytes of a request's body that are stored, so that it can be sent again.
MAX_STORED_BYTES = 2**20
#: The most bytes that are stored for all requests; beyond it, bodies are only passed on.
MAX_TOTAL_BYTES = 256 * 2**20
#: The most bytes of a body that is read before its request waits: they are in memory anyway.
_MAX_READ_BYTES = 64 * 1024
#: The most bytes of a header of a replica, the most headers, and the most bytes of a refusal.
_MAX_HEADER_BYTES, _MAX_HEADERS, _MAX_REFUSAL_BYTES = 16 * 1024, 1024, 64 * 1024
#: Pages of services, for which nobody wants to wait.
_PAGE = re.compile(r"/(healthz?|readyz|metrics|inflight|openapi\.json|(score-log|docs|redoc).*)?")
#: Headers that concern one connection (RFC 9110, 7.6.1), and those that the gateway sets.
_OF_CONNECTION = frozenset(
    b"connection expect keep-alive proxy-connection te trailer transfer-encoding upgrade".split()
)
_FORWARDED_HOST = wire.FORWARDED_HOST_HEADER.encode()
_OWN = {wire.PREFIX_HEADER.encode(), _FORWARDED_HOST, wire.HELD_HEADER.encode(), b"host"}
_NOT_FORWARDED, _NOT_RETURNED = _OF_CONNECTION | _OWN, _OF_CONNECTION | {b"date"}


class CallerDisconnected(Exception):
    """The caller disconnected before the response was complete."""


class UpstreamFailed(Exception):
    """A replica's response is missing, incomplete or not valid."""

    def __init__(self, reason: str, *, was_reached: bool = True) -> None:
        super().__init__(reason)
        self.was_reached = was_reached  #: whether the replica may have got the request


class Refusal(NamedTuple):
    """A complete 429 or 503 of a replica, and its `Retry-After` in seconds."""

    status: int
    headers: Headers
    body: bytes
    retry_after: float


class Upstream:
    """What connects a gateway to replicas, as an asynchronous context manager.

    Requests in the lines get turns when replicas are ready again.
    """

    def __init__(self, lines: Iterable[Line]) -> None:
        self._lines = lines

    async def __aenter__(self) -> Self:
        #: The connections. It changes neither requests nor responses.
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=timeouts.IDLE_SECONDS),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=timeouts.CONNECT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("accept", "accept-encoding", "content-type", "user-agent"),
            auto_decompress=False,
            max_line_size=_MAX_HEADER_BYTES,
            max_field_size=_MAX_HEADER_BYTES,
            max_headers=_MAX_HEADERS,
        )
        self.attempts: set[Attempt] = set()  #: the requests at replicas
        self.stored_bytes = 0  #: of all requests together
        self._looking = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._looking.cancel()
        await self.session.close()

    async def _look(self) -> None:
        """Compare times, as a timer for each step of each request would cost more."""
        while True:
            await asyncio.sleep(timeouts.LOOK_SECONDS)
            now = asyncio.get_running_loop().time()
            for each in tuple(self.attempts):
                each.check(now)
            for line in self._lines:
                line.advance()


class Attempt:
    """A request at a replica, which ends when something of it takes too long, and why.

    `timeout_s` are the seconds until the response begins, and for each part of it.
    """

    def __init__(self, timeout_s: float, late: str) -> None:
        self.timeout = asyncio.timeout(None)  #: what it runs in
        self.error: Exception | None = None  #: why it has ended, if the connection did not fail
        #: What the body is sent by, if there is one.
        self.transport: asyncio.WriteTransport | None = None
        self.has_sent = False  #: whether some of the body was sent
        self._timeout_s, self._late = timeout_s, late
        self._loop = asyncio.get_running_loop()
        self.restart()

    def restart(self) -> None:
        """Give the next part of the response all of the time."""
        self._until = self._loop.time() + self._timeout_s
        self.allow(math.inf)

    def allow(self, seconds: float, error: type[Exception] = Exception, reason: str = "") -> None:
        """Limit the time of the next step, and say why the request ends afterwards."""
        self._step = self._loop.time() + seconds, error, reason

    def check(self, now: float) -> None:
        """End it if it takes too long."""
        step_until, error, reason = self._step
        if now > self._until:
            self.end(DeadlineExceeded(self._late))
        elif now > step_until:
            self.end(error(reason))

    def end(self, error: Exception) -> None:
        if self.error is None:
            self.error = error
            self.timeout.reschedule(self._loop.time())


class RequestBody(aiohttp.Payload):
    """The body of a request, which is read when a replica wants it and stored if it is small."""

    def __init__(self, receive: Receive, upstream: Upstream, *, is_complete: bool) -> None:
        super().__init__(None)
        self._receive, self._upstream = receive, upstream
        self._stored: list[bytes] = []
        self._stored_bytes, self._is_complete = 0, is_complete
        self._watching: asyncio.Task[None] | None = None
        self.attempt: Attempt | None = None  #: the current one, if any
        self.can_be_sent = True  #: whether it is still known from its start
        self.is_gone = False  #: whether its caller is known to have disconnected
        #: What it waits for in line.
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Send the body, whose length the server of the gateway has checked.

        Raises CallerDisconnected if it does not arrive, UpstreamFailed if its start is forgotten.
        """
        attempt = self.attempt
        if attempt is None or not self.can_be_sent:  # aiohttp tries some requests twice
            raise UpstreamFailed("the body cannot be sent again")
        attempt.transport = writer.transport
        unread = timeouts.SILENCE_SECONDS, UpstreamFailed, "it does not read the request"
        missing = f"no more of the body arrived within {timeouts.SILENCE_SECONDS:g} s"

        async def send(chunk: bytes) -> None:
            attempt.allow(*unread)
            attempt.has_sent = True
            await writer.write(chunk)

        for chunk in tuple(self._stored):
            await send(chunk)
        while not self._is_complete:
            attempt.allow(timeouts.SILENCE_SECONDS, DeadlineExceeded, missing)
            if chunk := await self._next():
                await send(chunk)
        attempt.allow(math.inf)
        self.watch()

    async def read(self) -> None:
        """Store what is left of it if there is room, and notice when its caller disconnects."""
        most = MAX_TOTAL_BYTES - _MAX_READ_BYTES
        while not self._is_complete and self._upstream.stored_bytes < most:
            await self._next()
        if self._is_complete:
            self.watch()

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            if self.attempt is not None:
                self.attempt.end(CallerDisconnected())
            raise CallerDisconnected
        self._is_complete = not message.get("more_body", False)
        chunk: bytes = message.get("body", b"")
        if self.can_be_sent:
            self._stored.append(chunk)
            self._stored_bytes += len(chunk)
            self._upstream.stored_bytes += len(chunk)
            is_too_large = self._stored_bytes > MAX_STORED_BYTES
            if is_too_large or self._upstream.stored_bytes > MAX_TOTAL_BYTES:
                self.can_be_sent = False
                self._forget()
        return chunk

    def decode(self, *_: object, **__: object) -> str:
        """Fail: it is not known as a whole."""
        raise TypeError

    def _forget(self) -> None:
        self._stored.clear()
        self._upstream.stored_bytes -= self._stored_bytes
        self._stored_bytes = 0

    def watch(self) -> None:
        """End the attempts of a caller that disconnects, once its body has been read."""
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.is_gone = True
        if self.attempt is not None:
            self.attempt.end(CallerDisconnected())
        if not self.turn.done():
            self.turn.set_result(None)

    def end(self) -> None:
        """Give back its memory, and stop watching its caller."""
        self._forget()
        if self._watching is not None:
            self._watching.cancel()


class ProxiedRequest:
    """A caller's request, which is sent to one replica or more. The prefix of its path is removed.

    `waits` is how long it may wait in line for capacity; None if its client repeats it.
    """

    def __init__(
        self,
        scope: Message,
        receive: Receive,
        service: str,
        upstream: Upstream,
        waits: Waits | None,
    ) -> None:
        headers = dict(scope["headers"])
        self._upstream, self.service, self.waits = upstream, service, waits
        self.is_patient = waits is not None  #: whether it waits for capacity
        self._is_moved = False  # whether it was taken away from a replica that does not answer
        self.request_id = headers.get(wire.REQUEST_ID_HEADER.encode(), b"").decode("latin-1")
        self.key = headers.get(b"authorization", b"")
        #: Time of the event loop's clock at which its headers arrived.
        self.started = asyncio.get_running_loop().time()
        #: Seconds that the caller waits for the response; infinite if it does not say.
        self.given_s = _seconds(headers.get(wire.TIMEOUT_HEADER.encode(), b""))
        self._method: str = scope["method"]
        most_s = timeouts.LINE_SECONDS if waits or self.given_s == math.inf else math.inf
        in_line_s = (waits and waits.in_line_s) or most_s
        #: Time of the event loop's clock until which it may wait in line.
        self.line_until = self.started + min(in_line_s, self.given_s)
        self.is_read = self._method in {"GET", "HEAD"}  #: whether it only reads something
        length = int(headers.get(b"content-length", 0))
        is_chunked = b"transfer-encoding" in headers
        self._has_body = is_chunked or length > 0
        self.body = RequestBody(receive, upstream, is_complete=not self._has_body)
        # A service refuses a large body before it reads it. Until it asks for the body, nothing of
        # it is sent, so that the request can go to another replica.
        self._is_large = is_chunked or length > MAX_STORED_BYTES
        #: Whether its body is read before it waits.
        self.is_small = not is_chunked and length <= _MAX_READ_BYTES
        query = scope["query_string"].decode("ascii")
        self.path = scope["raw_path"][1 + len(service) :].decode("ascii") or "/"
        self.is_page = self.is_read and _PAGE.fullmatch(self.path) is not None
        self._target = f"{self.path}?{query}" if query else self.path
        # Replicas listen on loopback and accept its names only; the gateway has checked the given.
        own = (b"host", b"localhost"), (_FORWARDED_HOST, headers.get(b"host", b""))
        self._headers = [
            (name.decode("ascii"), value.decode(errors="replace"))  # aiohttp sends UTF-8
            for name, value in (*_without(_NOT_FORWARDED, scope["headers"]), *own)
        ]
        self._headers.append((wire.PREFIX_HEADER, f"/{service}"))

    @property
    def left_s(self) -> float:
        """Seconds until the caller does not wait any more; infinite if it has not said."""
        return self.given_s - (asyncio.get_running_loop().time() - self.started)

    def _headers_now(self) -> list[tuple[str, str]]:
        """Return the headers for a service, which counts the time from now."""
        held_s = asyncio.get_running_loop().time() - self.started
        if self.waits is not None:  # services accept no 0
            return [*self._headers, (wire.HELD_HEADER, f"{max(held_s, 0.001):.3f}")]
        if held_s < timeouts.LOOK_SECONDS or self.given_s == math.inf:
            return self._headers
        # What a program may use must not depend on how long its request has waited.
        given = {wire.CALL_TIMEOUT_HEADER: f"{self.given_s:g}", **dict(self._headers)}
        return [*{**given, wire.TIMEOUT_HEADER: f"{max(self.left_s, 0.001):.3f}"}.items()]

    async def send_to(self, replica: Replica, send: Send) -> Refusal | None:
        """Send the request to a replica and pass its response on; or return its refusal.

        A response that stays incomplete ends the caller's connection. Raises UpstreamFailed for
        none, DeadlineExceeded if it or the body is late, CallerDisconnected if nobody waits.
        """
        left_s = timeouts.DEFAULT_TIMEOUT_SECONDS
        if self.given_s < math.inf:  # a service gets a little longer to report that it is too late
            left_s = max(self.left_s, 0.0) + timeouts.GRACE_SECONDS
        late = f"no answer of {replica.service} within {left_s:.3g} s"
        self.body.attempt = attempt = Attempt(left_s, late)
        self._upstream.attempts.add(attempt)

        def move(reason: str) -> None:
            self._is_moved = True
            attempt.end(UpstreamFailed(reason, was_reached=False))

        # Once: if it is why replicas freeze, it does not freeze them all.
        if not self._is_moved:
            replica.attempts.add(move)
        if not self._has_body:
            self.body.watch()
        sent_at = time.monotonic()
        has_begun = is_complete = False
        refusal = None
        try:
            async with (
                attempt.timeout,
                self._upstream.session.request(
                    self._method,
                    URL(replica.url + self._target, encoded=True),
                    headers=self._headers_now(),
                    data=self.body if self._has_body else None,
                    expect100=self._is_large,
                    allow_redirects=False,
                ) as response,
            ):
                has_failed = 500 <= response.status <= Unavailable.status
                has_failed |= wire.FAILED_ITEMS_HEADER in response.headers
                if not self.is_read and (has_failed or response.status == 200):
                    replica.note_answer(has_failed=has_failed, sent_at=sent_at)
                if response.status in {Overloaded.status, Unavailable.status}:
                    refusal = await _read_refusal(response)
                else:
                    # A small one is known as a whole before anything of it is passed on.
                    is_small = 0 < (response.content_length or 0) <= MAX_STORED_BYTES
                    body = await response.read() if is_small else b""
                    has_begun = True
                    await _relay(response, attempt, send, body)
            is_complete = True
        except (TimeoutError, aiohttp.ClientError, UpstreamFailed) as error:
            failure = attempt.error or failure_of(error)
            if isinstance(failure, UpstreamFailed) and self._has_body:
                failure.was_reached &= attempt.has_sent
            if not has_begun or isinstance(failure, CallerDisconnected):
                raise failure from None
            log.warning("a response ended before it was complete: %s", failure)
        finally:
            if not is_complete and attempt.transport is not None:
                attempt.transport.abort()  # aiohttp closes it once the replica reads the rest
            self.body.attempt = None
            self._upstream.attempts.discard(attempt)
            replica.attempts.discard(move)
        return refusal


async def read_all(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    """Return the body of a response; UpstreamFailed if it is too long."""
    body = b""
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > max_bytes:
            raise UpstreamFailed("its answer is too long")
    return body


async def _read_refusal(response: aiohttp.ClientResponse) -> Refusal:
    retry_after = response.headers.get("retry-after", "")
    seconds = float(retry_after) if retry_after.isdecimal() else 1.0
    if response.status == Unavailable.status and response.headers.get("connection") == "close":
        raise UpstreamFailed("it is shutting down", was_reached=False)
    headers, body = response.raw_headers, await read_all(response, _MAX_REFUSAL_BYTES)
    return Refusal(response.status, _without(_NOT_RETURNED, headers), body, seconds)


async def _relay(
    response: aiohttp.ClientResponse, attempt: Attempt, send: Send, body: bytes
) -> None:
    """Pass a response on; UpstreamFailed if its connection ends it, as it may be incomplete.

    Its body is known if it is small.
    """
    headers, content = _without(_NOT_RETURNED, response.raw_headers), response.content
    framing = {"content-length", "transfer-encoding"}
    has_end = content.at_eof() or any(each.lower() in framing for each in response.headers)
    unread = timeouts.SILENCE_SECONDS, UpstreamFailed, "the caller does not read it"
    attempt.allow(*unread)
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    more = True
    while more:
        attempt.restart()
        body = body if content.at_eof() else await content.readany()
        more = not content.at_eof()
        if not (more or has_end):
            raise UpstreamFailed("it has no length")
        attempt.allow(*unread)
        await send({"type": "http.response.body", "body": body, "more_body": more})


def failure_of(error: Exception) -> UpstreamFailed:
    """Return what an error says about a replica."""
    match error:
        case UpstreamFailed():
            return error
        case aiohttp.ServerTimeoutError() | aiohttp.ClientConnectorError():
            reason = getattr(error, "strerror", None) or "it took too long"
            return UpstreamFailed(f"it cannot be connected to: {reason}", was_reached=False)
        case aiohttp.ClientResponseError() | aiohttp.ClientPayloadError():
            return UpstreamFailed(f"its response is not valid HTTP: {error}")
    return UpstreamFailed(f"the connection ended: {error}")


def _without(names: frozenset[bytes], headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return headers in lower case, without some; `Connection` may name more of them."""
    lower = [(name.lower(), value) for name, value in headers]
    for name, value in lower:
        if name == b"connection":
            names |= {each.strip().lower() for each in value.split(b",")}
    return [each for each in lower if each[0] not in names]


def _seconds(header: bytes) -> float:
    """Return the seconds in a header; services refuse headers that are not valid."""
    with suppress(ValueError):
        if (seconds := float(header)) > 0:
            return seconds
    return math.inf
