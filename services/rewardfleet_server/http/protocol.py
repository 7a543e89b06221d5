"""uvicorn's HTTP protocol, with limits on the size of headers and on the time they take."""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: Seconds within which the first headers of a connection must arrive.
_HEADER_SECONDS = 75
#: Limit on the bytes of one request's headers, and the most bytes that one read returns, of which
#: the end may belong to the body.
_MAX_HEADER_BYTES, _READ_BYTES = 64 * 1024, 256 * 1024


class BoundedHttpProtocol(HttpToolsProtocol):
    """Closes connections whose headers are too large, or do not arrive in time."""

    _header_bytes = 0
    _in_headers = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # uvicorn's type
        """Start the time limit."""
        super().connection_made(transport)
        self._header_timer = self.loop.call_later(_HEADER_SECONDS, self._on_header_timeout)

    def data_received(self, data: bytes) -> None:
        """Parse the data, unless the headers have become too large."""
        if self._in_headers:
            self._header_bytes += len(data)
            if self._header_bytes > _MAX_HEADER_BYTES + _READ_BYTES:
                self.send_400_response("Headers too large.")
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        """Count the header bytes of a new request."""
        super().on_message_begin()
        self._in_headers, self._header_bytes = True, 0

    def on_headers_complete(self) -> None:
        """End the limits on headers."""
        self._in_headers = False
        self._header_timer.cancel()
        super()._unset_keepalive_if_required()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Start the time limit for the headers of the next request."""
        super()._unset_keepalive_if_required()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the time limits."""
        self._header_timer.cancel()
        super()._unset_keepalive_if_required()
        super().connection_lost(exc)

    def _unset_keepalive_if_required(self) -> None:
        """Do nothing: uvicorn ends the time limit at any byte, even of a request that stalls."""

    def _on_header_timeout(self) -> None:
        if self._in_headers and not self.transport.is_closing():
            self.transport.close()
