"""Assembly: a service's parts become one ASGI application."""

import asyncio
import logging
import re
import resource
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Match
from starlette.types import Message, Receive, Scope, Send

from rewardfleet import __version__
from rewardfleet.wire.errors import Forbidden, RewardFleetError, Unavailable
from rewardfleet.wire.headers import PREFIX_HEADER, REQUEST_ID_HEADER, SERVICE_HEADER
from rewardfleet.wire.in_flight import InFlight
from rewardfleet_server.admission import MAX_WAITING, Admission, fitting_line
from rewardfleet_server.cache import open_cache
from rewardfleet_server.engine import Engine, RequestT, ScoreT, as_failure
from rewardfleet_server.observe.score_log import open_score_log
from rewardfleet_server.observe.telemetry import RequestContext, Telemetry, new_request_id
from rewardfleet_server.registry import SERVICES
from rewardfleet_server.settings import ServerSettings

from .allowed_hosts import AllowedHosts
from .auth import ApiKeys
from .dispatch import Dispatcher
from .log_pages import add_log_pages
from .pages import KEY_PROBLEMS, OPEN_PROBLEMS, PROBLEMS, Pages, on_failure
from .problems import no_endpoint, page_response, problem_response, wrong_method
from .routes import Routes, Service

log = logging.getLogger(__name__)

_MIB = 2**20
#: How many of the largest bodies the admitted requests may have together: of 64 MiB, one GiB.
_LARGEST_BODIES = 16
#: Open files besides the connections of requests: of jails, judges, caches and idle connections.
_OTHER_FILES = 1024
#: The share of cache hits that are computed again and compared: enough to notice a wrong key within
#: some thousand hits, and too few to take the time of a backend.
_AUDIT_RATE = 0.001
_REQUEST_ID = REQUEST_ID_HEADER.encode()
#: What `X-Forwarded-Prefix` may be: it becomes a part of the documentation page.
_PREFIX = re.compile(r"(/[a-z0-9][a-z0-9_-]{0,63}){1,4}")
#: Seconds between two probes: while all is well, and after a failure of a probe or of an item.
_PERIOD_S, _RETRY_S = 10.0, 1.0
#: Seconds for a probe: jails, judges and stores fail earlier.
_LIMIT_S = 30.0
#: Seconds for which `/readyz` waits for a probe. Those who ask wait for 2 s at least.
_WAIT_S = 0.5
#: Probes that fail in a row before the service is not ready: one may be a moment's failure.
_FAILURES = 2


def most_waiting(settings: ServerSettings, open_files: int) -> int:
    """Return how many requests may wait in line; see `fitting_line`."""
    if open_files == resource.RLIM_INFINITY:
        return MAX_WAITING
    others = settings.max_in_flight + settings.max_queue_depth + _OTHER_FILES
    return fitting_line(open_files - others, open_files)


class RewardApp:
    """A service's ASGI application.

    Routes are dispatched directly: the layers of a framework cost more than a cache hit. Starlette
    serves the pages, and FastAPI documents all of it. Raises ValueError if a key file has no key or
    the cache cannot be opened, OSError if a file cannot be read.
    """

    def __init__(self, service: Service[RequestT, ScoreT], settings: ServerSettings) -> None:
        self.service = service
        self.failure = service.failure
        max_body_bytes = settings.max_body_mb * _MIB
        self._admission = Admission(
            max_in_flight=settings.max_in_flight,
            max_queue_depth=settings.max_queue_depth,
            max_total_body_bytes=_LARGEST_BODIES * max_body_bytes,
            max_waiting=most_waiting(settings, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
        )
        self._score_log = open_score_log(service.name, settings, service.label_fraction)
        #: Its metrics.
        self.telemetry = Telemetry(
            service.name,
            self._admission,
            [each for each in (*service.collectors, self._score_log) if each is not None],
            deadline_s=settings.deadline_s,
            log_sample_rate=settings.log_sample_rate,
            ready=lambda: not self._unready(),
        )
        self._cache = open_cache(settings, self.telemetry.damaged_entries().inc)
        engine = Engine(
            service.scorer,
            service.score_type,
            cache=self._cache,
            admission=self._admission,
            telemetry=self.telemetry,
            audit_rate=_AUDIT_RATE,
            score_log=self._score_log,
            abstention_fails=service.abstention_fails,
        )
        self._readiness = Readiness(service.probe, engine)
        self.routes = Routes(service, engine)  #: the routes that are dispatched
        self._keys = ApiKeys(settings.api_key_file)
        self._dispatcher = Dispatcher(
            self._keys, self._admission, max_body_bytes, self.telemetry, service.run_state
        )
        self.cancel_all = self._dispatcher.cancel_all
        has_keys = settings.api_key_file is not None
        self._hosts = AllowedHosts(
            settings.allowed_host, listens_on=settings.host, has_keys=has_keys
        )
        self._name = (SERVICE_HEADER.encode(), service.name.encode())
        pages = Pages(service, self.routes)
        self.openapi = pages.openapi
        self._add_pages(pages, ApiKeys(None) if settings.open_metrics else self._keys)
        add_log_pages(pages, settings, self._keys)
        failures = dict.fromkeys((RewardFleetError, HTTPException), on_failure)
        self._pages = Starlette(
            routes=pages.routes, lifespan=self._lifespan, exception_handlers=failures
        )
        self._pages.router.redirect_slashes = False  # it would use the caller's own Host header

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        try:
            async with self.service.lifespan(), aclosing(self._readiness):
                yield
        finally:
            await self._cache.aclose()
            await self._dispatcher.aclose()
            if self._score_log is not None:
                await asyncio.to_thread(self._score_log.close)

    def _add_pages(self, pages: Pages, metrics_keys: ApiKeys) -> None:
        """Add the routes that only read."""
        get, service = pages.get, self.service

        @get("/", summary="Which service this is", responses=OPEN_PROBLEMS)
        async def index() -> dict[str, str]:
            return {
                "service": service.name,
                "version": __version__,
                "description": SERVICES[service.name].description,
                "documentation": "/docs",
            }

        @get("/healthz", summary="The process is alive", responses=OPEN_PROBLEMS)
        async def healthz() -> dict[str, str]:
            return {"status": "ok"}

        unready = {**OPEN_PROBLEMS, 503: PROBLEMS[503]}

        @get("/readyz", summary="The service can score now", responses=unready)
        async def readyz() -> dict[str, str]:
            await self._readiness.check()
            if reason := self._unready():
                raise Unavailable(reason, retry_after=1)
            store = {} if (store_id := service.run_state()) is None else {"run_state": store_id}
            return {"status": "ready", **store, **service.ready_fields()}

        if (loaded := service.health) is not None:

            @get("/health", summary="What is loaded", responses=OPEN_PROBLEMS)
            async def health() -> Any:
                return loaded()

        @get(
            "/metrics",
            summary="Prometheus metrics",
            response_class=PlainTextResponse,
            responses=KEY_PROBLEMS,
        )
        async def metrics(request: Request) -> Response:
            metrics_keys.check(request.headers.get("authorization"))
            await self._readiness.check(wait_s=0)  # the next ones say what it shows
            return page_response(self.telemetry.exposition())

        @get("/inflight", summary="The samples in flight, the oldest first", responses=KEY_PROBLEMS)
        async def in_flight(request: Request) -> InFlight:
            # Also with `open_metrics`: request ids are not for everybody.
            self._keys.check(request.headers.get("authorization"))
            return self._dispatcher.in_flight()

    def _unready(self) -> str | None:
        """Return why the service cannot score now, or None."""
        if self._admission.draining:
            return "the service is shutting down"
        return self.service.failure() or self.service.outage() or self._readiness.failure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_page(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = dict(scope["headers"]).get(_REQUEST_ID, b"").decode("latin-1")
                header = (_REQUEST_ID, new_request_id(given).encode())
                message["headers"] = [*message["headers"], header, self._name]
            await send(message)

        if scope["type"] != "http":
            await self._pages(scope, receive, send)
            return
        try:
            self._hosts.check(scope["headers"])
        except Forbidden as error:
            await problem_response(error)(scope, receive, send_page)
            return
        method = "GET" if scope["method"] == "HEAD" else scope["method"]  # uvicorn sends no body
        route, parameters = self.routes.find(method, scope["path"], scope.get("raw_path"))
        request = Request(scope, receive)
        if route is not None:
            response = await self._dispatcher.handle(route, request, parameters)
        elif others := self.routes.at(scope["path"], scope.get("raw_path")):
            allowed = [each.method for each in others]
            refusal = wrong_method(scope["path"], scope["method"], allowed)
            response = self._dispatcher.refuse(request, refusal, others[0].failure_model)
        elif method != "GET":
            response = self._dispatcher.refuse(request, self._no_route(scope))
        else:
            # The path below which a proxy serves this service, for the links of the pages.
            prefix = request.headers.get(PREFIX_HEADER, "")
            prefix = prefix if _PREFIX.fullmatch(prefix) else ""
            path = prefix + scope["path"]  # by ASGI's specification, it includes the root path
            page = {**scope, "method": method, "root_path": prefix, "path": path}
            await self._pages(page, receive, send_page)
            return
        response.raw_headers.append(self._name)
        await response(scope, receive, send)

    def _no_route(self, scope: Scope) -> RewardFleetError:
        """Return why a request that is not for a page's GET is refused."""
        as_get = {**scope, "method": "GET", "root_path": ""}
        if any(page.matches(as_get)[0] is not Match.NONE for page in self._pages.routes):
            return wrong_method(scope["path"], scope["method"], ["GET"])
        return no_endpoint(scope["path"])

    @property
    def items(self) -> int:
        """The items at the backend, and those that wait for it; each request in line is one."""
        admission = self._admission
        return admission.in_flight + admission.queue_depth + admission.waiting

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests; cancel those that are not finished after `timeout_s` seconds."""
        if not await self._admission.drain(timeout_s):
            self.cancel_all()


class Readiness:
    """Probes what a service needs, when it is asked: in the background, one at a time.

    An item that the engine has scored since shows that all works, as a probe does. So a busy
    service is ready, however long its probe waits.
    """

    def __init__(self, probe: Callable[[], Awaitable[None]], engine: Engine[Any, Any]) -> None:
        self.failure: str | None = None  #: why the service cannot score now, or None
        self._probe, self._engine = probe, engine
        self._running: asyncio.Task[None] | None = None
        self._ended_at = -_PERIOD_S
        self._failures = _FAILURES - 1  # until it has worked for the first time, one is enough
        self._computed = self._failed = 0  # the counts of the engine at the last probe

    async def check(self, wait_s: float = _WAIT_S) -> None:
        """Begin a probe if it is time, and wait a little for it; `failure` is then as it shows."""
        has_failed = self._failures or self._engine.failed > self._failed
        due_at = self._ended_at + (_RETRY_S if has_failed else _PERIOD_S)
        if self._running is None and time.monotonic() >= due_at:
            self._running = asyncio.create_task(self._run())
        if self._running is not None:
            await asyncio.wait({self._running}, timeout=wait_s)

    async def aclose(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})

    async def _run(self) -> None:
        reason, computed, self._failed = None, self._engine.computed, self._engine.failed
        try:
            if computed == self._computed:
                async with asyncio.timeout(_LIMIT_S):
                    await self._probe()
        except TimeoutError:
            reason = f"a probe did not end within {_LIMIT_S:g} s"
        except Exception as error:  # noqa: BLE001 - every failure gets a type
            reason = as_failure(error, RequestContext(), overdue=False).detail
        self._computed = self._engine.computed
        if self._computed > computed:  # meanwhile
            reason = None
        self._failures = self._failures + 1 if reason else 0
        if reason is None or self._failures >= _FAILURES:
            if self.failure != reason:
                log.warning("the service is %s", f"not ready: {reason}" if reason else "ready")
            self.failure = reason
        self._ended_at, self._running = time.monotonic(), None
