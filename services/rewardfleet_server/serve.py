"""Running an application until SIGTERM, and ending it well."""

import asyncio
import ctypes
import gc
import signal
import socket
import sys
from types import FrameType

import uvicorn

from .app import RewardApp
from .settings import ServerSettings

#: Idle connections are kept this long, so that a client's pooled connection seldom meets a close.
_KEEP_ALIVE_SECONDS = 75
#: After the grace time, how long cancelled requests may take to say so.
_LAST_WORDS_SECONDS = 2
#: How long a working thread may keep the interpreter from the event loop; Python's own is 5 ms.
_SWITCH_SECONDS = 0.001
#: glibc's names for "give memory back above" and "map a block of its own from", and our values.
_M_TRIM_THRESHOLD, _TRIM_BYTES = -1, 256 * 2**20
_M_MMAP_THRESHOLD, _MMAP_BYTES = -3, 32 * 2**20


class Server(uvicorn.Server):
    """uvicorn, which on the first signal drains the application before it stops listening.

    Meanwhile readiness is false and new work is refused with 503, by an answer rather than by
    a closed port. A second signal ends the process at once.
    """

    def __init__(self, app: RewardApp, settings: ServerSettings) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=settings.host,
                port=settings.port,
                http="httptools",
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

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        sys.setswitchinterval(_SWITCH_SECONDS)
        _keep_freed_memory()
        # What start-up made stays; searching it for garbage would halt the event loop for tens
        # of milliseconds at a time.
        gc.collect()
        gc.freeze()
        super().run(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Not handed on to uvicorn, which would end the process by the signal instead of with 0.
        del frame
        if self._draining is not None or not self.started:
            self.should_exit = True
            self.force_exit = sig == signal.SIGINT
            return
        loop = asyncio.get_event_loop()
        self._draining = loop.create_task(self._drain())

    async def _drain(self) -> None:
        await self._app.drain(self._grace_s)
        self.should_exit = True


def _keep_freed_memory() -> None:
    """Have glibc keep the buffers of one request for the next.

    By default it gives frames and bodies back to the system and faults them in anew, page by
    page: a quarter of the CPU of a request that carries pictures.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # else it is another C library
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
