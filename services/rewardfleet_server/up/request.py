"""A caller's request to the gateway, as replicas get it."""

import asyncio
import math
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from rewardfleet.wire.errors import DeadlineExceeded, InvalidRequest
from rewardfleet.wire.headers import (
    FORWARDED_HOST_HEADER,
    HELD_HEADER,
    PREFIX_HEADER,
    TIMEOUT_HEADER,
)
from rewardfleet.wire.waiting import Waits

from .upstream import Connection, Headers, UpstreamFailed

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

#: The most bytes of a request's body that are stored, so that it can be sent again.
MAX_STORED_BYTES = 2**20
#: The most bytes that are stored for all requests; beyond it, bodies are only passed on.
MAX_TOTAL_BYTES = 256 * 2**20
#: Seconds without a byte of a request's body, or in which the caller reads nothing of the response.
SILENCE_SECONDS = 30.0
#: Seconds to wait for a response if the request has no `X-Request-Timeout`, and in addition to it.
DEFAULT_TIMEOUT_SECONDS, _GRACE_SECONDS = 600.0, 5.0
_PREFIX = PREFIX_HEADER.encode()
_FORWARDED_HOST = FORWARDED_HOST_HEADER.encode()
_HELD = HELD_HEADER.encode()
#: Headers that concern one connection (RFC 9110, 7.6.1), or that the gateway sets itself.
NOT_FORWARDED = frozenset(
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
        b"host",
        _PREFIX,
        _FORWARDED_HOST,
        _HELD,
    }
)


class CallerDisconnected(Exception):
    """The caller disconnected before the response was complete."""


@dataclass
class Memory:
    """The bytes that all requests together store."""

    used: int = 0


class Request:
    """A caller's request, which is sent to one replica or more.

    Args:
        scope: Of ASGI.
        receive: Of ASGI.
        service: Whose prefix the path has.
        memory: Counts what is stored of the body.
        waits: How long it may wait in line; None if it may not.

    Raises:
        InvalidRequest: Its request line or headers cannot be passed on.

    Attributes:
        waits: As above.
        started: Time of the event loop's clock at which its headers arrived.
        given_s: Seconds that the caller waits for the response; infinite if it does not say.
        timeout_s: Seconds to wait for the response.
        is_head: Whether its method is HEAD.
        is_read: Whether it only reads something.
        can_be_sent: Whether the body is still known from its start.
    """

    def __init__(
        self,
        scope: MutableMapping[str, Any],
        receive: Receive,
        service: str,
        memory: Memory,
        waits: Waits | None = None,
    ) -> None:
        headers = dict(scope["headers"])
        self.waits = waits
        self.started = asyncio.get_running_loop().time()
        self.given_s = _seconds(headers.get(TIMEOUT_HEADER.encode(), b""))
        # A service gets a little longer to report that it is too late.
        has_limit = self.given_s < math.inf
        self.timeout_s = self.given_s + _GRACE_SECONDS if has_limit else DEFAULT_TIMEOUT_SECONDS
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
        dropped = dropped_names(scope["headers"], NOT_FORWARDED)
        lines = [scope["method"].encode("ascii") + b" " + target + b" HTTP/1.1"]
        lines += [b"%b: %b" % each for each in scope["headers"] if each[0] not in dropped]
        # Replicas listen on loopback and accept its names only; the gateway has checked the given.
        host = dict(scope["headers"]).get(b"host", b"")
        lines += [b"host: localhost", b"%b: %b" % (_FORWARDED_HOST, host)]
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
        return head + b"\r\n"

    def _held(self) -> bytes:
        """Return the header with the seconds since the request arrived, if it may wait in line."""
        if self.waits is None:
            return b""
        held = asyncio.get_running_loop().time() - self.started
        return b"%b: %.3f\r\n" % (_HELD, max(held, 0.001))  # services accept no 0

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
        except (UpstreamFailed, CallerDisconnected) as reason:
            error = reason
        connection.abort(error)

    async def _send_to(self, connection: Connection) -> None:
        await connection.write(self._head + self._held() + b"\r\n")
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
            raise CallerDisconnected
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


def dropped_names(headers: Headers, always: frozenset[bytes]) -> frozenset[bytes] | set[bytes]:
    """Return the names of the headers that are not passed on: `Connection` may add some."""
    named = [value for name, value in headers if name == b"connection"]
    if not named:
        return always
    return {*always, *(each.strip().lower() for value in named for each in value.split(b","))}


def _seconds(header: bytes) -> float:
    """Return the seconds in a header; services refuse headers that are not valid."""
    try:
        seconds = float(header)
    except ValueError:
        return math.inf
    return seconds if seconds > 0 else math.inf
