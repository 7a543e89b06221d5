"""Running a service's application until SIGTERM."""

import asyncio
import ctypes
import gc
import logging
import os
import resource
import signal
import socket
import sys
import threading
from types import FrameType

import click

from rewardfleet import __version__

from .http.app import RewardApp
from .http.server import GracefulServer
from .observe.logs import capture_native_output, configure_logging
from .registry import SERVICES, ServiceEntry
from .settings import CacheSettings, ServerSettings, is_url, unknown_variable_warnings
from .system.listener import bind, url_of

log = logging.getLogger(__name__)

#: Seconds that cancelled requests may take to answer.
_CANCEL_GRACE_SECONDS = 2
#: Seconds after `shutdown_timeout_s` in which the process exits, whatever its threads do.
_EXIT_SECONDS = 2.5
#: Seconds for the last log line of a process whose threads do not end.
_LOG_SECONDS = 0.2
#: How long another thread may run before the event loop gets its turn; the default is 5 ms.
_SWITCH_SECONDS = 0.0002
#: New objects after which Python looks for cycles; the default is 700, and a batch has thousands.
_NEW_OBJECTS = 5_000
#: Parameters of glibc's `mallopt`, and the values that are set: freed memory above
#: `M_TRIM_THRESHOLD` is returned to the system, blocks above `M_MMAP_THRESHOLD` are mapped.
_M_TRIM_THRESHOLD, _TRIM_BYTES = -1, 256 * 2**20
_M_MMAP_THRESHOLD, _MMAP_BYTES = -3, 32 * 2**20


class Server(GracefulServer):
    """uvicorn, which on the first signal drains the application before it stops listening.

    Meanwhile `/readyz` fails and new requests get 503, rather than a closed port. A second signal
    ends the wait.
    """

    def __init__(
        self, app: RewardApp, settings: ServerSettings, listener: socket.socket | None = None
    ) -> None:
        super().__init__(app, grace_s=_CANCEL_GRACE_SECONDS)
        self._app, self._settings = app, settings
        self._listener = listener or bind(settings.host, settings.port)
        self._draining: asyncio.Task[None] | None = None
        self._exits = False
        self.failure: str | None = None  #: why the service ended without a signal, or None

    @property
    def url(self) -> str:
        """The base URL of the service."""
        return url_of(self._listener)

    @property
    def status(self) -> int:
        """The exit status of the process."""
        return 1 if self.failure is not None else super().status

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Prepare the process, and serve until a signal or a failure ends the service."""
        prepare_process()
        # Objects made at startup stay. Collecting them would pause the event loop for tens of
        # milliseconds at a time.
        gc.collect()
        gc.freeze()
        gc.set_threshold(_NEW_OBJECTS)
        gc.enable()
        super().run(sockets or [self._listener])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            announce(self._app, self._settings, self.url)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's
        """Drain the application at the first signal; cancel its requests at the second."""
        self.interrupted = sig == signal.SIGINT
        if not self._exits:
            self._exits = True
            _exit_in(self._settings.shutdown_timeout_s + _EXIT_SECONDS)
        if not self.started:
            self.should_exit = True
            return
        loop = asyncio.get_event_loop()
        if self._draining is None:
            self._draining = loop.create_task(self._drain())
        else:
            _exit_in(_EXIT_SECONDS)
            loop.call_soon_threadsafe(self._app.cancel_all)

    async def on_tick(self, counter: int) -> bool:
        """End the service if it can never score again."""
        if self.failure is None and (failure := self._app.failure()) is not None:
            log.error("the service exits: %s", failure)
            self.failure = failure
            _exit_in(_CANCEL_GRACE_SECONDS + _EXIT_SECONDS)
            # Meanwhile admitted requests are answered, and `/readyz` reports the failure.
            asyncio.get_running_loop().call_later(_CANCEL_GRACE_SECONDS, self._exit)
        return await super().on_tick(counter)

    def _exit(self) -> None:
        self._app.cancel_all()
        self.should_exit = True

    async def _drain(self) -> None:
        self._connections.is_ending = True  # proxies see it, and go elsewhere
        await self._app.drain(self._settings.shutdown_timeout_s)
        self.should_exit = True


def _exit_in(seconds: float) -> None:
    """End the process after some seconds, if it has not ended before.

    A thread that hangs, e.g. in a read from a network file system or in a model, cannot be
    stopped, and Python waits for it at its exit. Their names are then logged, and the exit
    status is 1.
    """

    def exit_now() -> None:
        names = ", ".join(each.name for each in threading.enumerate() if not each.daemon)
        message = "the process exits although threads are at work: %s"
        # In a thread, as nothing may delay the exit: not even a log that nobody reads.
        logger = threading.Thread(target=log.warning, args=(message, names), daemon=True)
        logger.start()
        logger.join(_LOG_SECONDS)
        os._exit(1)

    exiting = threading.Timer(seconds, exit_now)
    exiting.daemon = True
    exiting.start()


def announce(app: RewardApp, settings: ServerSettings, url: str) -> None:
    """Report the address of the service and its main settings; on a terminal, as a table."""
    auth = "none" if settings.allow_unauthenticated else "none (loopback only)"
    overview = {
        "service": f"{app.service.name} {__version__}",
        "address": url,
        "cache": _describe_cache(settings),
        **app.service.overview,
        "auth": f"API keys from {settings.api_key_file}" if settings.api_key_file else auth,
    }
    if sys.stderr.isatty():
        for name, value in overview.items():
            click.echo(f"{click.style(f'{name:9}', bold=True)} {value}", err=True)
    else:
        log.info("serving %s on %s", app.service.name, url, extra={"overview": overview})
    if settings.allow_unauthenticated and settings.api_key_file is None:
        log.warning("NO AUTHENTICATION: anyone who can reach %s may use this service", url)
    for warning in app.service.warnings:
        log.warning(warning)


def _describe_cache(settings: ServerSettings) -> str:
    if not isinstance(settings, CacheSettings):
        return "none"
    layers = [f"{settings.cache_mb} MiB in memory"] if settings.cache_mb else []
    if settings.cache is not None:
        layers.append("Redis" if is_url(settings.cache) else settings.cache)
    if settings.cache_signing_key_file is not None:
        layers.append("signed")
    return ", ".join(layers) or "none"


def prepare_process() -> None:
    """Adapt this process to many requests: its threads, memory and files.

    By default, glibc returns large buffers to the system, and the next request faults them in
    again, page by page: a quarter of the CPU time of a request with images.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # else it is another C library
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
    raise_descriptor_limit()


def raise_descriptor_limit() -> int:
    """Raise the limit on open files and connections, whose default is low; return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def serve(entry: ServiceEntry, settings: ServerSettings) -> int:
    """Run a service until SIGTERM; return the exit status of the process.

    The address is bound first, so that an occupied port is reported before a model is loaded.
    Raises ValueError if it cannot be bound, or if the settings do not work on this machine.
    """
    capture_native_output()
    configure_logging(settings.log_level)
    for warning in unknown_variable_warnings(each.settings.load() for each in SERVICES.values()):
        log.warning(warning)
    with bind(settings.host, settings.port) as listener:
        server = Server(entry.app(settings), settings, listener)
        server.run()
    return server.status
