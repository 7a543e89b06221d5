"""uvicorn's HTTP protocol, with limits on what a connection may hold without progress."""

import asyncio
import threading
from typing import Any, cast

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

#: Seconds from the first byte of a request until its headers are complete.
_HEADER_SECONDS = 10
#: Limit on the bytes of a request's target, headers and trailers. What one read returns at most.
_MAX_HEADER_BYTES, _READ_BYTES = 64 * 1024, 256 * 1024
#: What one read returns at most until the headers are complete: the body of a request that waits in
#: line stays in the buffers of the kernel.
_READ_HEADER_BYTES = 2 * 1024
#: What is parsed at a time. Less costs time, and more is what trailers may have beyond the limit.
_PART_BYTES = 64 * 1024
#: What is still read of a body after the response: one that fits leaves the connection usable, and
#: a proxy that sends it first gets the response, which it would lose if the connection was closed.
_DISCARD_SECONDS, _DISCARD_BYTES = 1, 16 * 1024 * 1024
#: Headers that offer a change of protocol. A server may ignore them (RFC 9110, 7.8).
_OFFERS = frozenset({b"upgrade", b"http2-settings"})
#: Seconds for which a caller may read nothing of a response that does not fit into the buffers,
#: and for which the last bytes of a closed connection may take.
_WRITE_SECONDS = 30
#: At the end of the service: seconds for the next request of a connection, and for its first one.
_LAST_SECONDS, _ONLY_SECONDS = 0.1, 1.0


class BoundedHttpProtocol(HttpToolsProtocol):
    """Closes connections that make no progress, and ignores offers of HTTP/2.

    Connections make no progress if their headers are too large or do not arrive in time, if they
    continue to send a body after the response to it, or if the caller does not read the response.

    The parser ends a request that offers another protocol (`Upgrade: h2c`) at its headers, and
    uvicorn drops its body. Such a request is parsed again without the offer.
    """

    _unparsed_bytes = 0  # since the start of a request, its headers, or the last part of its body
    _header_bytes = 0  # of the target, and of the headers and trailers that are complete
    _is_refused = False
    _is_upgraded = False
    _is_ending = False
    _ends_with_body = False  # after the last response, when the body of its request was read
    _discarded_bytes = 0
    _in_headers = True
    reads_body = False  # whether the headers of a request are complete, and its body is not
    _header_timer: asyncio.TimerHandle | None = None
    _discard_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _end_timer: asyncio.TimerHandle | None = None
    _running: RequestResponseCycle | None = None  # `cycle` is the one that was read last

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # uvicorn's type
        """Start the time limit for the first byte, that of idle connections."""
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def data_received(self, data: memoryview) -> None:  # type: ignore[override] # from `HttpProtocol`
        """Parse the data, and refuse it if there is too much that is not the body of a request."""
        if self._discard_timer is not None:
            self._discarded_bytes += len(data)
            if self._discarded_bytes > _DISCARD_BYTES:
                self._close()
                return
        # In parts: what follows the last byte of a body in a part is not counted.
        for start in range(0, len(data), _PART_BYTES):
            if self._is_refused or self._is_upgraded:
                return
            self._receive(data[start : start + _PART_BYTES])

    def _receive(self, data: memoryview) -> None:
        self._unparsed_bytes += len(data)
        had_headers = self.reads_body
        try:
            self._parse(data)
            is_valid = True
        except httptools.HttpParserError:
            is_valid = False
        # The first are incomplete: also lengths and trailers of a chunked body without chunks.
        if max(self._unparsed_bytes, self._header_bytes) > _MAX_HEADER_BYTES:
            self._refuse(431, f"Headers of more than {_MAX_HEADER_BYTES} bytes.")
        elif not is_valid:
            self._refuse(400, "Invalid HTTP request received.")
        elif self._in_headers and self._header_timer is None:  # of most, all arrive at once
            self._start_header_timer()
        elif self.reads_body and not had_headers:
            self.flow.pause_reading()  # until the application asks for the body

    def _parse(self, data: bytes | memoryview) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._should_upgrade():  # to a WebSocket
                self.reads_body, self._is_upgraded = False, True
                self.handle_websocket_upgrade()
                return
            if not self._has_ignored_offer():  # CONNECT
                raise httptools.HttpParserInvalidMethodError from None
            head = self._head_without_offer()
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as in uvicorn
            self._parse(head + data[upgrade.args[0] :])

    def _has_ignored_offer(self) -> bool:
        is_ignored = self.parser.should_upgrade() and not self._should_upgrade()
        return is_ignored and self.parser.get_method() != b"CONNECT"

    def _head_without_offer(self) -> bytes:
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (method, self.url, version)]
        for name, value in self.headers:
            if name == b"connection":
                tokens = [each.strip() for each in value.split(b",")]
                others = [each for each in tokens if each.lower() not in _OFFERS]
                lines.append(b"connection: " + b", ".join(others))
            elif name not in _OFFERS:
                lines.append(name + b": " + value)
        return b"\r\n".join([*lines, b"", b""])

    def on_message_begin(self) -> None:
        """Start the limit on the bytes of a request's headers."""
        super().on_message_begin()
        self._in_headers, self._unparsed_bytes, self._header_bytes = True, 0, 0

    def on_url(self, url: bytes) -> None:
        """Add a part of the target."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; trailers after a chunked body are dropped."""
        self._count(len(name) + len(value) + len(": \r\n"))
        if self._in_headers:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """End the limits on headers, and refuse a body whose length cannot be known.

        The parser refuses it only afterwards, when the request has been passed on already.

        Raises:
            ValueError: It has a transfer coding other than `chunked`. uvicorn answers with 400.
        """
        if self._has_ignored_offer():
            return
        for name, value in self.headers:
            if name == b"transfer-encoding" and value.lower() != b"chunked":
                raise ValueError("unsupported transfer coding")
        self._in_headers, self.reads_body, self._unparsed_bytes = False, True, 0
        self._cancel(self._header_timer)
        self._header_timer = None
        super()._unset_keepalive_if_required()
        super().on_headers_complete()
        if self.cycle is not None:  # else it becomes a WebSocket
            self.cycle.transport = cast("asyncio.Transport", _LateClose(self))
            if self._is_ending:
                self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Add a part of the body."""
        self._unparsed_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that the body is complete; if the response was earlier, the next may follow."""
        if self._has_ignored_offer():
            return
        self.reads_body, self._unparsed_bytes = False, 0
        self._cancel(self._discard_timer)
        self._discard_timer = None
        super().on_message_complete()
        if self._ends_with_body:
            self._is_refused = True  # what follows
            self._close()

    def on_response_complete(self) -> None:
        """Start the time limit for the headers of the next request, or for the rest of this one."""
        super()._unset_keepalive_if_required()
        if self._running is not None:
            self._running.body = bytearray()  # uvicorn keeps it until the next request
        super().on_response_complete()
        if self.pipeline:  # uvicorn would read more requests with each response
            self.flow.pause_reading()
        if self.transport.is_closing():  # by uvicorn: the caller keeps no connections
            self._close()
        elif self._in_headers:  # of the next request, of which nothing was read meanwhile
            self._start_header_timer()
        elif self.reads_body and self.cycle.response_complete:
            self._discarded_bytes = 0
            self._discard_timer = self.loop.call_later(_DISCARD_SECONDS, self._close)

    def end_response(self) -> None:
        """Close the connection after its last response, once the body of the request was read.

        What is unread when a connection is closed resets it, and the caller loses the response.
        """
        if self.reads_body and self._running is self.cycle:
            self._ends_with_body = True  # or when the time to discard it is over
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        """Start the time limit for a caller to read its response."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(_WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """End it."""
        if not self.transport.is_closing():
            self._cancel(self._write_timer)
        super().resume_writing()

    def shutdown(self) -> None:
        """Close the connection with its next response, or after some time without a request.

        A request may be on its way, and the caller would not learn whether it was received.
        """
        self._is_ending = True
        if self._is_idle():
            seconds = _LAST_SECONDS if self.cycle is not None else _ONLY_SECONDS
            self._end_timer = self.loop.call_later(seconds, self._end)
        else:
            self.cycle.keep_alive = False

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _end(self) -> None:
        if self._is_idle():
            self._close()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the time limits."""
        timers = (self._header_timer, self._discard_timer, self._write_timer, self._end_timer)
        for timer in timers:
            self._cancel(timer)
        super()._unset_keepalive_if_required()
        super().connection_lost(exc)
        self.pipeline.clear()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > _MAX_HEADER_BYTES:
            raise ValueError("headers too large")  # which ends the parser

    def _refuse(self, status: int, message: str) -> None:
        """Answer what is no request, and close the connection.

        What still arrives is dropped for some time: the caller would lose the answer otherwise.
        """
        self.logger.warning("%s", message)
        self._is_refused = True
        self._cancel(self._header_timer)
        running = self._running
        if running is not None and not running.response_complete:
            if running.response_started or not (running is self.cycle and self.reads_body):
                running.keep_alive = False  # the response to an earlier request comes first
                self.pipeline.clear()
                return
            running.disconnected = True
            running.message_event.set()
        content = [STATUS_LINE[status], b"content-type: text/plain; charset=utf-8\r\n"]
        content.append(b"content-length: %d\r\nconnection: close\r\n\r\n" % len(message))
        self.transport.write(b"".join([*content, message.encode("ascii")]))
        self.transport.write_eof()
        self.flow.resume_reading()
        self._discarded_bytes = 0
        self._discard_timer = self.loop.call_later(_DISCARD_SECONDS, self._close)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection."""
        self._close()

    def _unset_keepalive_if_required(self) -> None:
        """Do nothing: uvicorn ends the time limit at any byte, even of a request that stalls."""

    def _start_header_timer(self) -> None:
        self._cancel(self._header_timer)
        self._header_timer = self.loop.call_later(_HEADER_SECONDS, self._on_header_timeout)

    def _on_header_timeout(self) -> None:
        if self._is_idle():  # else they wait for the response
            self._close()

    def _close(self) -> None:
        """Close the connection, also if its caller does not read the end of a response."""
        self._cancel(self._write_timer)
        self._write_timer = self.loop.call_later(_WRITE_SECONDS, self.transport.abort)
        self.transport.close()

    @staticmethod
    def _cancel(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()


class _LateClose:
    """What uvicorn takes for the transport of a response: closing it is up to the protocol."""

    def __init__(self, http: BoundedHttpProtocol) -> None:
        self.write, self.is_closing = http.transport.write, http.transport.is_closing
        self.close = http.end_response


class _Buffer(threading.local):
    """Where all connections of an event loop are read to: it is emptied at once."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_READ_BYTES))


#: What asyncio calls besides the methods of `HttpProtocol`.
_PASSED_ON = (
    "connection_made", "eof_received", "pause_writing", "resume_writing", "connection_lost",
)  # fmt: skip


class HttpProtocol(asyncio.BufferedProtocol):
    """A `BoundedHttpProtocol` that gets little more than the headers until they are complete."""

    _buffer = _Buffer()

    def __init__(self, **arguments: Any) -> None:
        self._http = BoundedHttpProtocol(**arguments)
        for event in _PASSED_ON:
            setattr(self, event, getattr(self._http, event))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - of the interface
        """Return where the next bytes are read to."""
        return self._buffer.view[: _READ_BYTES if self._http.reads_body else _READ_HEADER_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """Parse the bytes that were read. The parser copies what it passes on."""
        self._http.data_received(self._buffer.view[:nbytes])
