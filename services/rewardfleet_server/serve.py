"""Running a service's application until SIGTERM."""

import asyncio
import ctypes
import gc
import logging
import resource
import socket
import sys
from types import FrameType

import uvicorn
from rich.console import Console
from rich.table import Table
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rewardfleet import __version__

from .flags import unknown_variable_warnings
from .http.app import RewardApp
from .logs import configure_logging
from .registry import SERVICES, ServiceEntry
from .settings import ServerSettings

log = logging.getLogger(__name__)

#: Seconds that idle connections are kept, so that a pooled connection is rarely found closed.
_KEEP_ALIVE_SECONDS = 75
#: Seconds that cancelled requests may take to answer.
_CANCEL_GRACE_SECONDS = 2
#: Seconds in which a new connection's first headers must have arrived.
_HEADER_SECONDS = 75
#: Bytes of one request's headers; what arrived with them in one read is not counted.
_MAX_HEADER_BYTES, _ONE_READ = 64 * 1024, 256 * 1024
#: How long a working thread may keep the interpreter from the event loop; the default is 5 ms.
_SWITCH_SECONDS = 0.001
#: glibc's names for "give memory back above" and "map a block of its own from", and our values.
_M_TRIM_THRESHOLD, _TRIM_BYTES = -1, 256 * 2**20
_M_MMAP_THRESHOLD, _MMAP_BYTES = -3, 32 * 2**20


def bind(settings: ServerSettings) -> socket.socket:
    """Bind the service's address. Nobody can connect until the server listens.

    Raises:
        ValueError: The address cannot be bound.
    """
    host, port = settings.host, settings.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ValueError(f"--host {host}: {error.strerror}") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # From now on another process fails to bind, too, not only to listen.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError as error:
        listener.close()
        raise ValueError(
            f"--port {port}: {host} cannot be bound: {error.strerror}; choose another port, or 0 "
            "for a free one"
        ) from error
    return listener


class Server(uvicorn.Server):
    """uvicorn, which on the first signal drains the application before it stops listening.

    Meanwhile `/readyz` fails and new requests get 503, rather than a closed port. A second signal
    ends the wait.

    Args:
        app: The application.
        settings: Its settings.
        listener: The bound socket. None: bind one.

    Attributes:
        failure: Why the service ended by itself, or None.
    """

    def __init__(
        self, app: RewardApp, settings: ServerSettings, listener: socket.socket | None = None
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=_BoundedHttp,
                ws="none",
                log_config=None,
                access_log=False,  # telemetry.py writes one line per request
                server_header=False,
                proxy_headers=False,  # a caller's word on its own address is not trusted
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=_CANCEL_GRACE_SECONDS,
            )
        )
        self._app = app
        self._settings = settings
        self._listener = listener or bind(settings)
        self._draining: asyncio.Task[None] | None = None
        self.failure: str | None = None

    @property
    def url(self) -> str:
        """The base URL of the service."""
        host, port = self._listener.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        sys.setswitchinterval(_SWITCH_SECONDS)
        _keep_freed_memory()
        _raise_descriptor_limit()
        # Objects made at startup stay. Collecting them would pause the event loop for tens of
        # milliseconds at a time.
        gc.collect()
        gc.freeze()
        super().run(sockets or [self._listener])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # For the connections, whose last packets must not keep a restarted service from binding.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        await super().startup(sockets)
        if self.started:
            announce(self._app, self._settings, self.url)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - both alike
        # Not passed on to uvicorn, which would end the process by the signal instead of with 0.
        del frame
        if not self.started:
            self.should_exit = True
            return
        loop = asyncio.get_event_loop()
        if self._draining is None:
            self._draining = loop.create_task(self._drain())
        else:
            loop.call_soon_threadsafe(self._app.cancel_all)

    async def on_tick(self, counter: int) -> bool:
        if self.failure is None and (failure := self._app.failure()) is not None:
            log.error("the service exits: %s", failure)
            self.failure = failure
            # Long enough for requests in flight to be answered, and for one look at /readyz.
            asyncio.get_running_loop().call_later(_CANCEL_GRACE_SECONDS, self._exit)
        return await super().on_tick(counter)

    def _exit(self) -> None:
        self._app.cancel_all()
        self.should_exit = True

    async def _drain(self) -> None:
        await self._app.drain(self._settings.shutdown_timeout_s)
        self.should_exit = True


def announce(app: RewardApp, settings: ServerSettings, url: str) -> None:
    """Say that the service listens, and how it is set up; on a terminal, as a table."""
    overview = {
        "service": f"{app.service.name} {__version__}",
        "address": url,
        **app.service.overview,
        "cache": _describe_cache(settings),
        "auth": _describe_auth(settings),
    }
    if sys.stderr.isatty():
        table = Table(show_header=False, box=None, pad_edge=False)
        for name, value in overview.items():
            table.add_row(f"[bold]{name}[/bold]", value)
        Console(stderr=True).print(table)
    else:
        log.info("serving %s on %s", app.service.name, url, extra={"overview": overview})
    if settings.allow_unauthenticated and settings.api_key_file is None:
        log.warning("NO AUTHENTICATION: anyone who can reach %s may use this service", url)


def _describe_cache(settings: ServerSettings) -> str:
    layers = [f"{settings.cache_mb} MiB in memory"] if settings.cache_mb else []
    if settings.cache_url is not None:
        layers.append("Redis")
    elif settings.cache_file is not None:
        layers.append(str(settings.cache_file))
    return ", ".join(layers) or "none"


def _describe_auth(settings: ServerSettings) -> str:
    if settings.api_key_file is not None:
        return f"API keys from {settings.api_key_file}"
    return "none" if settings.allow_unauthenticated else "none (loopback only)"


class _BoundedHttp(HttpToolsProtocol):
    """uvicorn's HTTP, with limits on the size of headers and on the time in which they arrive."""

    _header_bytes = 0
    _in_headers = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        self._header_timer = self.loop.call_later(_HEADER_SECONDS, self._on_header_timeout)

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
        self._header_timer.cancel()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._header_timer.cancel()
        super().connection_lost(exc)

    def _on_header_timeout(self) -> None:
        if self._in_headers and not self.transport.is_closing():
            self.transport.close()


def _raise_descriptor_limit() -> None:
    """Each connection and each file takes a descriptor, and the usual limit is low."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _keep_freed_memory() -> None:
    """Have glibc keep the buffers of one request for the next.

    By default it returns frames and bodies to the system and faults them in again, page by page:
    a quarter of the CPU time of a request with images.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # else it is another C library
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)


def serve(entry: ServiceEntry, settings: ServerSettings) -> int:
    """Run a service until SIGTERM; return the exit status of the process.

    The address is bound first, so that an occupied port is reported before a model is loaded.

    Raises:
        ValueError: The address cannot be bound, or the settings do not work on this machine.
    """
    configure_logging(settings.log_level)
    for warning in unknown_variable_warnings(each.load_settings() for each in SERVICES.values()):
        log.warning(warning)
    listener = bind(settings)
    with listener:
        server = Server(entry.load_app()(settings), settings, listener)
        server.run()
    return 0 if server.failure is None else 1
