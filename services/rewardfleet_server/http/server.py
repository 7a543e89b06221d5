"""The HTTP server of services and gateways: uvicorn, which resets no connection when it ends."""

import asyncio
import ctypes
import signal
import socket
import struct
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, nullcontext, suppress
from types import FrameType
from typing import Any, TypeVar

import uvicorn
import uvloop
from starlette.types import ASGIApp

from rewardfleet.wire.errors import InvalidRequest
from rewardfleet_command import INTERRUPTED
from rewardfleet_server.system.listener import has_input

from .openenv import MAX_MESSAGE_BYTES, App, Message, OpenEnvSocket, Receive, Send
from .problems import problem_response

T = TypeVar("T")

#: Seconds that idle connections are kept, so that a pooled connection is rarely found closed.
_KEEP_ALIVE_SECONDS = 75
#: Connections that the kernel keeps until they are accepted: a burst must not be refused.
BACKLOG = 4096
#: The most connections: twice the requests that may wait in line. uvicorn has no limit on the time
#: and the size of headers, so it bounds what callers hold that send them slowly.
_MAX_CONNECTIONS = 20_000
#: Seconds for which a caller may read nothing of its response.
_UNREAD_SECONDS = 30
#: Seconds in which open requests end: the longest that a replica may take, and some.
_GRACE_SECONDS = 660
#: Seconds in which handshakes may be completed that have begun, and all that may be waited for.
_HANDSHAKE_SECONDS, _BACKLOG_SECONDS = 0.05, 2.0
#: Seconds in which a request that is on its way may arrive at the end of the server.
_LAST_SECONDS = 0.5
#: Seconds between two looks at the backlog and the connections.
_TURN_SECONDS = 0.01
#: `SO_ATTACH_FILTER` of Linux, which Python does not name.
_ATTACH_FILTER = 26
#: Drops segments with the flag SYN, which is in byte 13 of the header of TCP: load it, test it,
#: drop, keep. Each instruction is a code, two jumps and a number (linux/filter.h).
_NO_SYN = struct.pack(
    "=HBBIHBBIHBBIHBBI",
    *(0x30, 0, 0, 13),
    *(0x45, 0, 1, 0x02),
    *(0x06, 0, 0, 0),
    *(0x06, 0, 0, 0xFFFFFFFF),
)
#: How much of a body is read, and for how long, after a response that came before its end. A proxy
#: that sends all of the body first gets the response in this way, and so does a caller whose
#: connection ends with it: what is unread when a connection is closed resets it.
_DISCARD_SECONDS, _DISCARD_BYTES = 1, 16 * 1024 * 1024
_CLOSE = (b"connection", b"close")
#: Headers with which uvicorn may take a body for something else.
_REFUSED = {b"upgrade", b"transfer-encoding"}


class GracefulServer(uvicorn.Server):
    """uvicorn, which stops listening when no accepted connection waits.

    The kernel resets connections that wait in the backlog when a listener is closed, although
    their callers have sent a request already. Without `handles_signals`, its owner sets
    `should_exit`. Requests may take `grace_s` seconds when it ends.
    """

    def __init__(
        self, app: ASGIApp, *, handles_signals: bool = True, grace_s: int = _GRACE_SECONDS
    ) -> None:
        self._connections = OrderlyConnections(OpenEnvSocket(app))
        super().__init__(
            uvicorn.Config(
                self._connections,
                http="httptools",  # h11 takes 0.1 ms more of CPU time for each request
                limit_concurrency=_MAX_CONNECTIONS,
                ws="websockets-sansio",
                ws_max_size=MAX_MESSAGE_BYTES,
                ws_per_message_deflate=False,  # a small message could become a large one
                backlog=BACKLOG,
                log_config=None,
                access_log=False,  # telemetry.py writes one line per request
                server_header=False,
                proxy_headers=False,  # a caller could set any address in them
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=grace_s,
            )
        )
        self._handles_signals = handles_signals
        self.interrupted = False  #: whether Ctrl-C has ended it

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install the handlers, if they are wanted."""
        with super().capture_signals() if self._handles_signals else nullcontext():
            yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's
        """Answer open requests before the end; a second signal does not wait for them."""
        # uvicorn's own method would make the process end by the signal instead of with a status.
        self.interrupted = sig == signal.SIGINT
        self.force_exit, self.should_exit = self.should_exit, True

    @property
    def status(self) -> int:
        """The exit status of the process."""
        return INTERRUPTED if self.interrupted else 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, so that the next process can bind the address when this one has ended."""
        # Inherited by the connections. Without the first, those that were closed a moment ago would
        # keep the address for a minute.
        for listener in sockets or []:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            unread_ms = _UNREAD_SECONDS * 1000
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unread_ms)
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept what waits, then stop listening and end all connections."""
        for listener in sockets or []:
            refuse_new(listener)
        loop = asyncio.get_running_loop()
        started = loop.time()
        await asyncio.sleep(_HANDSHAKE_SECONDS)
        # The event loop accepts and ends connections, and does not say when.
        while has_input(*sockets or ()) and loop.time() < started + _BACKLOG_SECONDS:  # noqa: ASYNC110
            await asyncio.sleep(_TURN_SECONDS)
        self._connections.is_ending = True
        until = loop.time() + _LAST_SECONDS
        await asyncio.sleep(_TURN_SECONDS)  # the last ones get their protocols
        while self.server_state.connections and loop.time() < until:  # noqa: ASYNC110
            await asyncio.sleep(_TURN_SECONDS)
        await super().shutdown(sockets)


def run_on_fast_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as `asyncio.run` does, on the event loop of services."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def refuse_new(listener: socket.socket) -> bool:
    """Drop what opens further connections: else one could come between the last and the end.

    Its caller tries again after a second, and is refused or reaches the next process. Return
    whether that is possible: it is not elsewhere than on Linux, nor in a sandbox without filters.
    """
    program = ctypes.create_string_buffer(_NO_SYN, len(_NO_SYN))
    count = len(_NO_SYN) // struct.calcsize("=HBBI")
    filters = struct.pack("@HP", count, ctypes.addressof(program))
    try:
        listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, filters)
    except OSError:
        return False
    return True


class OrderlyConnections:
    """An application whose responses are not lost where connections end.

    It refuses requests that offer another protocol, as those of `curl --http2` do: uvicorn loses
    the body of such a request, or takes it for the next request. And those whose transfer coding
    is not `chunked`: it passes them on before it refuses them.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self.is_ending = False  #: whether each response ends its connection

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length, ends = 0, scope["http_version"] == "1.0"
        for name, value in scope["headers"]:
            if name == b"content-length":
                length = int(value)
            elif name == b"transfer-encoding" and value.lower() == b"chunked":
                length = _DISCARD_BYTES + 1  # it may be any
            elif name == b"connection":
                ends = ends or b"close" in value.lower()
            elif name in _REFUSED:
                shown = name.decode().title()
                refusal = problem_response(InvalidRequest(f"send the request without `{shown}`"))
                refusal.raw_headers.append(_CLOSE)
                await refusal(scope, receive, send)
                return
        if not length and not self.is_ending:
            await self._app(scope, receive, send)
            return
        body = _Body(receive, is_read=not length)

        async def respond(message: Message) -> None:
            # The parser passes over what is left of a small body, and reads the next request.
            ends_unread = ends or self.is_ending or length > _DISCARD_BYTES
            is_start = message["type"] == "http.response.start"
            if is_start and (self.is_ending or (ends_unread and not body.is_read)):
                message = {**message, "headers": [*message.get("headers", ()), _CLOSE]}
            elif not is_start and ends_unread and not body.is_read:
                await send({**message, "more_body": True})
                if message.get("more_body", False):
                    return
                await body.discard()
                message = {"type": "http.response.body"}
            await send(message)

        await self._app(scope, body.receive, respond)


class _Body:
    """The body of a request, of which it is known whether all was read."""

    def __init__(self, receive: Receive, *, is_read: bool) -> None:
        self._receive = receive
        self.is_read = is_read

    async def receive(self) -> Message:
        message = await self._receive()
        self.is_read = not message.get("more_body", False)
        return message

    async def discard(self) -> None:
        """Read what is left of it, as far as that is little."""
        left = _DISCARD_BYTES
        with suppress(TimeoutError):
            async with asyncio.timeout(_DISCARD_SECONDS):
                while left > 0 and not self.is_read:
                    left -= len((await self.receive()).get("body", b""))
