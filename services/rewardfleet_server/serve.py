"""Running an application until SIGTERM, and ending it well."""

import asyncio
import ctypes
import gc
import logging
import os
import resource
import socket
import sys
from types import FrameType

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .app import RewardApp
from .settings import ServerSettings

log = logging.getLogger(__name__)

#: Idle connections are kept this long, so that a client's pooled connection seldom meets a close.
_KEEP_ALIVE_SECONDS = 75
#: After the grace time, how long cancelled requests may take to say so; likewise after a failure.
_LAST_WORDS_SECONDS = 2
#: Seconds in which a new connection's first headers must have come.
_HEADER_SECONDS = 75
#: Bytes of one request's headers; what came with them in one read is forgiven.
_MAX_HEADER_BYTES, _ONE_READ = 64 * 1024, 256 * 1024
#: How long a working thread may keep the interpreter from the event loop; Python's own is 5 ms.
_SWITCH_SECONDS = 0.001
#: Of threads that compute, and of an engine that computes on the CPU; the event loop has 0.
_NICE = 10
#: glibc's names for "give memory back above" and "map a block of its own from", and our values.
_M_TRIM_THRESHOLD, _TRIM_BYTES = -1, 256 * 2**20
_M_MMAP_THRESHOLD, _MMAP_BYTES = -3, 32 * 2**20


class Server(uvicorn.Server):
    """uvicorn, which on the first signal drains the application before it stops listening.

    Meanwhile readiness is false and new work is refused with 503, by an answer rather than by
    a closed port. A second signal ends the grace time.
    """

    def __init__(self, app: RewardApp, settings: ServerSettings) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=settings.host,
                port=settings.port,
                http=_BoundedHttp,
                ws="none",
                log_config=None,
                access_log=False,  # telemetry.py writes one line a request, with its times
                server_header=False,
                proxy_headers=False,  # nothing here believes a caller's word on who he is
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=_LAST_WORDS_SECONDS,
            )
        )
        self._app = app
        self._grace_s = settings.grace_s
        self._draining: asyncio.Task[None] | None = None
        self.failure: str | None = None  #: why the service ended by itself

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        sys.setswitchinterval(_SWITCH_SECONDS)
        _keep_freed_memory()
        _allow_all_descriptors()
        # What start-up made stays; searching it for garbage would halt the event loop for tens
        # of milliseconds at a time.
        gc.collect()
        gc.freeze()
        super().run(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - both alike
        # Not handed on to uvicorn, which would end the process by the signal instead of with 0.
        del frame
        if not self.started:
            self.should_exit = True
            return
        loop = asyncio.get_event_loop()
        if self._draining is None:
            self._draining = loop.create_task(self._drain())
        else:
            loop.call_soon_threadsafe(self._app.abandon)

    async def on_tick(self, counter: int) -> bool:
        if self.failure is None and (failure := self._app.failure()) is not None:
            log.error("the service ends: %s", failure)
            self.failure = failure
            # Long enough for those in flight to hear of it, and for one look at /readyz.
            asyncio.get_running_loop().call_later(_LAST_WORDS_SECONDS, self._end)
        return await super().on_tick(counter)

    def _end(self) -> None:
        self._app.abandon()
        self.should_exit = True

    async def _drain(self) -> None:
        await self._app.drain(self._grace_s)
        self.should_exit = True


class _BoundedHttp(HttpToolsProtocol):
    """uvicorn's HTTP, with a bound on the headers' size and on the time in which they come."""

    _header_bytes = 0
    _in_headers = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        self._patience = self.loop.call_later(_HEADER_SECONDS, self._lose_patience)

    def data_received(self, data: bytes) -> None:
        if self._in_headers:
            self._header_bytes += len(data)
            if self._header_bytes > _MAX_HEADER_BYTES + _ONE_READ:
                self.send_400_response("Headers too large.")
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers, self._header_bytes = True, 0

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._patience.cancel()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._patience.cancel()
        super().connection_lost(exc)

    def _lose_patience(self) -> None:
        if self._in_headers and not self.transport.is_closing():
            self.transport.close()


def yield_to_event_loop() -> None:
    """Lower this thread's priority: what computes long must not make callers wait for a word."""
    os.setpriority(os.PRIO_PROCESS, 0, _NICE)


def _allow_all_descriptors() -> None:
    """Each connection and each file takes one, and the usual limit is low."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _keep_freed_memory() -> None:
    """Have glibc keep the buffers of one request for the next.

    By default it gives frames and bodies back to the system and faults them in anew, page by
    page: a quarter of the CPU of a request that carries pictures.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # else it is another C library
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
