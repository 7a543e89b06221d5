"""Connections of the gateway to replicas: HTTP/1.1, one request at a time.

httpx and httpcore read a response only after they have sent the complete body, so a service's early
refusal would wait for the upload. Here, responses are parsed by httptools as they arrive.
"""

import asyncio
import ssl
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from urllib.parse import urlsplit

import httptools

Headers = Sequence[tuple[bytes, bytes]]

_CONNECT_SECONDS = 2.0
#: Idle connections are used again for so long: less than services keep them.
_IDLE_SECONDS = 60.0
_MAX_IDLE = 256
#: Reading pauses while more bytes than this of a response wait for the caller.
_MAX_BUFFERED_BYTES = 256 * 1024
_MAX_HEADER_BYTES = 64 * 1024
#: How long a replica may take to ask for the body; then it is sent anyway (RFC 9110, 10.1.1).
_CONTINUE_SECONDS = 1.0
#: How long a replica may take to read some of a body.
_WRITE_SECONDS = 30.0


class UpstreamFailed(Exception):
    """A replica's response is missing, incomplete or not valid."""


class Unreachable(UpstreamFailed):
    """A replica could not be connected to, so it got nothing."""


class Connection(asyncio.Protocol):
    """A connection to a replica.

    Attributes:
        idle_since: Time of `time.monotonic` at which its last response was complete.
        is_request_sent: Whether the request is complete.
    """

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._changed = asyncio.Event()  # something of the response arrived, or the connection died
        self._may_send_body = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._is_active = False
        self._error: Exception | None = None
        self.idle_since = 0.0
        self._reset(is_head=False)

    def _reset(self, *, is_head: bool) -> None:
        self._is_head = is_head
        self._headers: list[tuple[bytes, bytes]] = []
        self._header_bytes = 0
        self._status = 0  # 0 until the final headers have arrived
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._is_complete = False
        self._keeps_alive = False
        self.is_request_sent = False

    @property
    def is_reusable(self) -> bool:
        """Whether another request may be sent: the last one and its response are complete."""
        return (
            self._error is None
            and not self._transport.is_closing()
            and self._is_complete
            and not self._chunks  # else reading may be paused
            and self._keeps_alive
            and self.is_request_sent
        )

    def begin(self, *, is_head: bool) -> None:
        """Begin a request, which `write` sends.

        Args:
            is_head: Whether its method is HEAD, whose response has no body.
        """
        self._reset(is_head=is_head)
        self._is_active = True
        self._may_send_body.clear()

    async def body_requested(self) -> None:
        """Wait until the replica asks for the body with `100 Continue`, for a second at most."""
        try:
            async with asyncio.timeout(_CONTINUE_SECONDS):
                await self._may_send_body.wait()
        except TimeoutError:
            pass

    async def write(self, data: bytes) -> None:
        """Send a part of the request, once there is room for it.

        Raises:
            UpstreamFailed: The connection ended, or the replica does not read.
        """
        if not self._writable.is_set():
            try:
                async with asyncio.timeout(_WRITE_SECONDS):
                    await self._writable.wait()
            except TimeoutError:
                raise UpstreamFailed("it does not read the request") from None
        if self._error is not None:
            raise self._error
        self._transport.write(data)

    async def head(self, timeout_s: float) -> tuple[int, Headers]:
        """Wait for the status and the headers of the response.

        Raises:
            UpstreamFailed: The connection ended before.
            TimeoutError: They did not arrive in time.
        """
        async with asyncio.timeout(timeout_s):
            while not self._status:
                await self._change()
        return self._status, self._headers

    async def read(self, timeout_s: float) -> tuple[bytes, bool]:
        """Wait for more of the response's body; return it, and whether more follows.

        Raises:
            UpstreamFailed: The connection ended before.
            TimeoutError: Nothing arrived in time.
        """
        if not self._chunks and not self._is_complete:
            async with asyncio.timeout(timeout_s):
                while not self._chunks and not self._is_complete:
                    await self._change()
        body = b"".join(self._chunks)
        self._chunks.clear()
        if self._buffered > _MAX_BUFFERED_BYTES and not self._transport.is_closing():
            self._transport.resume_reading()
        self._buffered = 0
        return body, not self._is_complete

    async def _change(self) -> None:
        if self._error is not None:
            raise self._error
        self._changed.clear()
        await self._changed.wait()

    def end(self) -> None:
        """End the request. A connection that is not reusable is closed, and with it the request."""
        self._is_active = False
        self.idle_since = time.monotonic()
        if not self.is_reusable:
            self._transport.abort()

    def abort(self, error: Exception) -> None:
        """Close the connection; what waits for the response gets `error`."""
        if self._error is None:
            self._error = error
        self._changed.set()
        self._may_send_body.set()
        self._writable.set()
        self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # it is one
        """Store the transport."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Parse a part of the response."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.abort(UpstreamFailed(f"its response is not valid HTTP: {error}"))
        if self._buffered > _MAX_BUFFERED_BYTES and self._error is None:
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what waits for the response."""
        self.abort(UpstreamFailed(f"the connection ended: {exc or 'closed'}"))

    def pause_writing(self) -> None:
        """Make `write` wait."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let `write` go on."""
        self._writable.set()

    # httptools

    def on_message_begin(self) -> None:
        """Refuse a response that no request asked for."""
        if not self._is_active or self._is_complete:
            raise ValueError("an unrequested response")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header, or ignore a trailer."""
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > _MAX_HEADER_BYTES:
            raise ValueError("its headers are too large")
        if not self._status:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Report the head; that of an informational response only allows the body."""
        status = self._parser.get_status_code()
        if status < 200:
            self._headers = []
            self._may_send_body.set()
            return
        self._status = status
        self._is_complete = self._is_head
        self._changed.set()

    def on_body(self, body: bytes) -> None:
        """Collect a part of the body."""
        self._chunks.append(body)
        self._buffered += len(body)
        self._changed.set()

    def on_message_complete(self) -> None:
        """Report the end of the response."""
        if self._status:
            self._is_complete = True
            # The parser expects the body that the response to HEAD announces.
            self._keeps_alive = self._parser.should_keep_alive() and not self._is_head
            self._changed.set()


class Pool:
    """Idle connections to replicas, by URL."""

    def __init__(self) -> None:
        self._idle: defaultdict[str, deque[Connection]] = defaultdict(deque)
        self._tls: ssl.SSLContext | None = None  # slow to make, and not needed for replicas

    async def acquire(self, url: str) -> Connection:
        """Return a connection that is idle, or a new one.

        Raises:
            Unreachable: The replica cannot be connected to.
        """
        idle = self._idle[url]
        now = time.monotonic()
        while idle:
            connection = idle.pop()
            if connection.is_reusable and now - connection.idle_since < _IDLE_SECONDS:
                return connection
            connection.abort(UpstreamFailed("idle"))
        parts = urlsplit(url)
        is_secure = parts.scheme == "https"
        host, port = parts.hostname or "", parts.port or (443 if is_secure else 80)
        if is_secure and self._tls is None:
            self._tls = ssl.create_default_context()
        tls = self._tls if is_secure else None
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                _, connection = await loop.create_connection(Connection, host, port, ssl=tls)
        except OSError as error:  # TimeoutError is one
            reason = error.strerror or "it took too long"
            raise Unreachable(f"it cannot be connected to: {reason}") from None
        return connection

    def release(self, url: str, connection: Connection) -> None:
        """End a connection's request, and keep it for others if it is reusable."""
        connection.end()
        if connection.is_reusable:
            idle = self._idle[url]
            idle.append(connection)
            if len(idle) > _MAX_IDLE:
                idle.popleft().abort(UpstreamFailed("idle"))

    def close(self) -> None:
        """Close the idle connections."""
        for idle in self._idle.values():
            while idle:
                idle.pop().abort(UpstreamFailed("the gateway ends"))
