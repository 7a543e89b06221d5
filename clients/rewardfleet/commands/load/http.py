"""HTTP/1.1 by asyncio's streams.

httpx needs one to several milliseconds of a core for a request, which is more than many a request
costs the service that is measured.
"""

import asyncio
import ssl
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from rewardfleet.timeouts import timeout

_CONNECT_SECONDS = 5.0
#: Idle connections are used again for so long: less than services and proxies keep them.
_IDLE_SECONDS = 30.0
_MAX_RESPONSE_BYTES = 64 * 2**20

_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class ConnectFailed(Exception):
    """A service cannot be connected to."""


class Sender:
    """Sends requests to one service, each on a connection that has no other one."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._address = parts.hostname or "", parts.port or (443 if self._tls else 80)
        self._path = parts.path
        fields = {"Host": parts.netloc.rpartition("@")[2], **headers}
        self._fields = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self._idle: list[tuple[_Streams, float]] = []

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Send JSON; return the status and the body of the response.

        Raises:
            ConnectFailed: Nothing was sent.
            OSError, EOFError: The connection ended.
            ValueError, LookupError: The response is too large, or not valid.
        """
        reader, writer = await self._connect()
        is_reusable = False
        try:
            length = f"Content-Length: {len(body)}\r\n\r\n"
            head = f"POST {self._path}{path} HTTP/1.1\r\n{self._fields}{length}"
            writer.write(head.encode() + body)
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            pairs = (line.partition(":") for line in lines)
            fields = {name.lower(): value.strip().lower() for name, _, value in pairs}
            content = await _read_body(reader, fields)
            is_reusable = fields.get("connection") != "close"
            return int(first.split(" ")[1]), content
        except asyncio.LimitOverrunError:
            raise ValueError("its headers are too large") from None
        finally:
            if is_reusable:
                self._idle.append(((reader, writer), time.monotonic()))
            else:
                writer.transport.abort()

    async def _connect(self) -> _Streams:
        while self._idle:
            (reader, writer), since = self._idle.pop()
            is_open = not (reader.at_eof() or writer.is_closing())
            if is_open and time.monotonic() - since < _IDLE_SECONDS:
                return reader, writer
            writer.transport.abort()
        try:
            async with timeout(_CONNECT_SECONDS):
                return await asyncio.open_connection(*self._address, ssl=self._tls)
        except OSError as error:  # TimeoutError is one
            raise ConnectFailed(str(error) or "it took too long") from None

    def close(self) -> None:
        """Close the idle connections."""
        for (_, writer), _ in self._idle:
            writer.transport.abort()


async def _read_body(reader: asyncio.StreamReader, fields: Mapping[str, str]) -> bytes:
    is_chunked = fields.get("transfer-encoding") == "chunked"
    body, size = b"", -1
    while size:
        line = await reader.readline() if is_chunked else b""
        size = int(line.partition(b";")[0], 16) if is_chunked else int(fields["content-length"])
        if len(body) + size > _MAX_RESPONSE_BYTES:
            raise ValueError("its response is too large")
        body += await reader.readexactly(size)
        if not is_chunked:
            break
        await reader.readline()
    return body
