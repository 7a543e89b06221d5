"""Assembly: a slice's parts and the spine's become one ASGI application."""

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic

from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from rewardfleet import __version__
from rewardfleet.wire.errors import (
    STATUS,
    InvalidRequest,
    NotFound,
    Problem,
    RewardFleetError,
    Unavailable,
)
from rewardfleet.wire.score import MAX_BATCH_ITEMS, BatchResponse

from .admission import Admission
from .auth import Keys
from .cache import Cache, MemoryCache, RedisCache, SqliteCache
from .pipeline import Endpoint, Pipeline, RequestT, Scorer, ScoreT
from .problems import problem_response
from .settings import ServerSettings
from .telemetry import Telemetry, Visit

_MIB = 2**20
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": kind.replace("_", " ").capitalize()}
    for kind, status in STATUS.items()
}


async def _nothing() -> None:
    pass


@dataclass(frozen=True)
class WholeEndpoint:
    """A `POST` of a slice's own, which reads the body itself; up to there the journey is the same.

    Attributes:
        work: Reads the body, and returns the answer as JSON. Takes heavy work off the event loop.
    """

    path: str
    summary: str
    request_type: type[BaseModel]
    answer_type: type[BaseModel]
    work: Callable[[bytes, Visit], Coroutine[None, None, bytes]]


@dataclass(frozen=True)
class Service(Generic[RequestT, ScoreT]):
    """What a slice brings.

    Attributes:
        name: One word, e.g. `video`; the `service` label of the metrics.
        about: A sentence for the documentation page.
        aclose: Lets go of threads and engines.
        start: Makes them ready; the service listens afterwards.
        takes_uploads: Whether `POST /score` may be a form with a file.
        failure: Says why the service can never score again, or None. The process then ends, for
            its supervisor to start a new one.
        endpoints: Beside `/score`, in others' wire formats.
        whole_endpoints: Beside these, or in the place of `/score/batch`.
        metrics: Beside the spine's.
    """

    name: str
    about: str
    scorer: Scorer[RequestT, ScoreT]
    request_type: type[RequestT]
    score_type: type[ScoreT]
    aclose: Callable[[], Awaitable[None]]
    start: Callable[[], Awaitable[None]] = _nothing
    takes_uploads: bool = False
    failure: Callable[[], str | None] = lambda: None
    endpoints: Sequence[Endpoint[Any, RequestT, ScoreT]] = ()
    whole_endpoints: Sequence[WholeEndpoint] = ()
    metrics: Sequence[Collector] = ()


class RewardApp(FastAPI):
    """A service's ASGI application, which can also be drained."""

    admission: Admission
    abandon: Callable[[], None]
    failure: Callable[[], str | None]
    journeys: dict[str, Callable[[Request], Awaitable[Response]]]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the journeys their requests directly: FastAPI's layers cost more than a cache hit.

        The journeys do for themselves what the layers are for (parsing, problems). FastAPI
        knows them as routes too, for the documentation page.
        """
        journey = None
        if scope["type"] == "http" and scope["method"] == "POST":
            journey = self.journeys.get(scope["path"])
        if journey is None:
            await super().__call__(scope, receive, send)
        else:
            response = await journey(Request(scope, receive))
            await response(scope, receive, send)

    async def drain(self, grace_s: float) -> None:
        """Admit nobody from now on; give work in flight `grace_s` seconds, then cancel it."""
        if not await self.admission.drain(grace_s):
            self.abandon()


def create_app(service: Service[RequestT, ScoreT], settings: ServerSettings) -> RewardApp:
    """Put a service together.

    Raises:
        ValueError: The key file holds no key.
        OSError: The key file or the cache file cannot be opened.
    """
    admission = Admission(
        max_in_flight=settings.max_in_flight,
        max_waiting=settings.max_waiting,
        max_body_bytes=settings.max_bodies_mb * _MIB,
    )
    keys = Keys(settings.api_key_file)
    telemetry = Telemetry(service.name, admission, service.metrics)
    cache = _open_cache(settings)
    pipeline = Pipeline(
        scorer=service.scorer,
        request_type=service.request_type,
        score_type=service.score_type,
        keys=keys,
        admission=admission,
        cache=cache,
        telemetry=telemetry,
        deadline_s=settings.deadline_s,
        max_body_bytes=settings.max_body_mb * _MIB,
        takes_uploads=service.takes_uploads,
        audit_share=settings.cache_audit,
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            await service.start()
            yield
        finally:
            pipeline.close()
            await service.aclose()
            await cache.aclose()

    app = RewardApp(
        title=f"rewardfleet {service.name}",
        description=service.about,
        version=__version__,
        lifespan=lifespan,
        redirect_slashes=False,  # a redirect would be made of the caller's own Host header
    )
    app.admission, app.abandon, app.failure = admission, pipeline.abandon, service.failure
    _add_score_routes(app, service, pipeline)
    _add_further_routes(app, service.endpoints, pipeline)
    _add_health_routes(app, service, admission)
    _add_metrics_route(app, telemetry, None if settings.open_metrics else keys)
    app.add_exception_handler(RewardFleetError, _on_failure)
    app.add_exception_handler(HTTPException, _on_http_exception)
    return app


def _open_cache(settings: ServerSettings) -> Cache:
    memory = MemoryCache(settings.cache_mb * _MIB)
    if settings.cache_url is not None:
        return _open_redis(settings.cache_url, memory)
    if settings.cache_file is None:
        return memory
    try:
        if "cache_file" not in settings.model_fields_set:  # a default's folder may not be there
            settings.cache_file.parent.mkdir(parents=True, exist_ok=True)
        max_bytes = settings.cache_file_mb * _MIB
        return SqliteCache(settings.cache_file, max_bytes=max_bytes, memory=memory)
    except sqlite3.Error as error:
        raise ValueError(f"--cache-file {settings.cache_file}: {error}") from error


def _open_redis(url: str, memory: MemoryCache) -> Cache:
    try:
        return RedisCache(url, memory=memory)
    except ImportError:
        raise ValueError("--cache-url needs a package: pip install redis") from None
    except ValueError as error:
        raise ValueError(f"--cache-url: {error}") from error


def _add_score_routes(
    app: RewardApp, service: Service[RequestT, ScoreT], pipeline: Pipeline[RequestT, ScoreT]
) -> None:
    """Add `POST /score` and `/score/batch`; the pipeline itself reads and checks their bodies."""
    item = _whole_schema(service.request_type)
    items = {"type": "array", "items": item, "minItems": 1, "maxItems": MAX_BATCH_ITEMS}
    batch: dict[str, Any] = {
        "type": "object",
        "properties": {"items": items},
        "required": ["items"],
    }
    own = {endpoint.path: pipeline.whole(endpoint.work) for endpoint in service.whole_endpoints}
    app.journeys = {"/score": pipeline.single, "/score/batch": pipeline.batch, **own}
    app.add_api_route(
        "/score",
        pipeline.single,
        methods=["POST"],
        response_model=service.score_type,
        responses=_PROBLEMS,
        openapi_extra=_json_body(item),
        summary="Score one item",
    )
    for endpoint in service.whole_endpoints:
        app.add_api_route(
            endpoint.path,
            own[endpoint.path],
            methods=["POST"],
            response_model=endpoint.answer_type,
            responses=_PROBLEMS,
            openapi_extra=_json_body(_whole_schema(endpoint.request_type)),
            summary=endpoint.summary,
        )
    if "/score/batch" in own:
        return
    app.add_api_route(
        "/score/batch",
        pipeline.batch,
        methods=["POST"],
        response_model=BatchResponse[service.score_type],  # type: ignore[name-defined] # made at run time
        responses=_PROBLEMS,
        openapi_extra=_json_body(batch),
        summary="Score several items; one that fails does not fail the others",
    )


def _add_further_routes(
    app: RewardApp,
    endpoints: Sequence[Endpoint[Any, RequestT, ScoreT]],
    pipeline: Pipeline[RequestT, ScoreT],
) -> None:
    for endpoint in endpoints:
        app.journeys[endpoint.path] = pipeline.further(endpoint)
        app.add_api_route(
            endpoint.path,
            app.journeys[endpoint.path],
            methods=["POST"],
            response_model=endpoint.response_type,
            responses=_PROBLEMS,
            openapi_extra=_json_body(_whole_schema(endpoint.request_type)),
            summary=endpoint.about,
        )


def _whole_schema(model: type[BaseModel]) -> dict[str, Any]:
    """A model's schema without references, as OpenAPI keeps its definitions elsewhere."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})

    def inlined(node: Any) -> Any:
        if isinstance(node, list):
            return [inlined(each) for each in node]
        if not isinstance(node, dict):
            return node
        name = str(node.get("$ref", "")).removeprefix("#/$defs/")
        rest = {key: inlined(value) for key, value in node.items() if key != "$ref"}
        return {**inlined(definitions[name]), **rest} if name else rest

    whole: dict[str, Any] = inlined(schema)
    return whole


def _json_body(schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _add_health_routes(
    app: RewardApp, service: Service[RequestT, ScoreT], admission: Admission
) -> None:
    @app.get("/healthz", summary="The process is alive")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz", summary="The service can score now", responses={503: _PROBLEMS[503]})
    async def readyz() -> dict[str, str]:
        if admission.draining:
            raise Unavailable("the service is shutting down")
        if reason := service.failure():
            raise Unavailable(reason)
        return {"status": "ready", **(service.scorer.check_ready() or {})}


def _add_metrics_route(app: RewardApp, telemetry: Telemetry, keys: Keys | None) -> None:
    @app.get("/metrics", summary="Prometheus metrics", response_class=Response)
    async def metrics(request: Request) -> Response:
        if keys is not None:
            keys.check(request.headers.get("authorization"))
        return Response(telemetry.exposition(), media_type=CONTENT_TYPE_LATEST)


async def _on_failure(_: Request, error: Exception) -> Response:
    if not isinstance(error, RewardFleetError):  # what add_exception_handler's type cannot say
        raise error
    return problem_response(error)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own refusals: an unknown path, or a method that a path does not take."""
    if not isinstance(error, HTTPException):
        raise error
    path = request.url.path[:100]
    if error.status_code == 404:
        return problem_response(NotFound(f"no endpoint {path!r}; GET /docs lists them"))
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        return problem_response(InvalidRequest(f"{path} takes {allowed}, not {request.method}"))
    return problem_response(InvalidRequest(str(error.detail)))
