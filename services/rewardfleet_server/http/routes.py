"""Declarations of routes and services. Nothing here depends on a web framework."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, NamedTuple, Protocol, Self, TypeVar

from prometheus_client.registry import Collector
from pydantic import (
    BaseModel,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import from_json

from rewardfleet.wire.errors import InvalidRequest, Problem
from rewardfleet.wire.score import BatchRequest, BatchResponse, Score, Status
from rewardfleet.wire.validation import format_validation_error, validate, validate_json
from rewardfleet_server.anonymous_file import AnonymousFile
from rewardfleet_server.engine import Engine, Scorer
from rewardfleet_server.telemetry import RequestContext

RequestT = TypeVar("RequestT", bound=BaseModel)
ScoreT = TypeVar("ScoreT", bound=Score)
DecodedT = TypeVar("DecodedT")


class FailureModel(Protocol):
    """A failure in the format of another project: a pydantic model."""

    @classmethod
    def from_problem(cls, problem: Problem) -> Self:
        """Return a failure in this format."""

    def model_dump_json(self) -> str:
        """Return it as JSON."""


@dataclass(frozen=True)
class Form:
    """The content of a `multipart/form-data` body: its fields as text, and its one file."""

    fields: Mapping[str, str]
    file: AnonymousFile


@dataclass(frozen=True)
class Route(Generic[DecodedT]):
    """One endpoint. Both dispatch and the OpenAPI document are made from it.

    The body is read, limited and decoded before the handler is called; the handler is cancelled
    if the caller disconnects.

    Attributes:
        path: E.g. `/score`. A part in braces, such as `{run}`, may be any text, also with slashes;
            handlers find it in `RequestContext.parameters`.
        description: One line for the documentation.
        request_model: The model of the body; None if there is none, as for `GET`.
        response_model: The model of the response.
        handler: Takes the decoded body, returns a model or the encoded response.
        decode: Decodes the body; may run in a thread. Default: validates the request model.
        decode_form: Decodes a form; None if forms are refused.
        scores: Whether it scores items; then a body that cannot be decoded is counted as one
            failed item.
        max_fields: Limit on the JSON fields of a body. An unknown field costs far more memory and
            time than its bytes.
        max_values: Limit on the JSON values of a body, by its commas.
        method: The HTTP method.
        failure_model: The model of the body of a failure; None for the `Problem` itself.
    """

    path: str
    description: str
    request_model: type[BaseModel] | None
    response_model: type[BaseModel]
    handler: Callable[[DecodedT, RequestContext], Awaitable[BaseModel | bytes]]
    decode: Callable[[bytes], DecodedT] | None = None
    decode_form: Callable[[Form], DecodedT] | None = None
    scores: bool = True
    max_fields: int = 20_000
    max_values: int = 2_000_000
    method: str = "POST"
    failure_model: type[FailureModel] | None = None


@asynccontextmanager
async def _no_lifespan() -> AsyncIterator[None]:
    yield


@dataclass(frozen=True)
class Service(Generic[RequestT, ScoreT]):
    """What a service package provides.

    Attributes:
        name: One word, e.g. `video`; the `service` label of the metrics.
        description: One sentence for the documentation.
        scorer: Scores items.
        request_type: The model of an item.
        score_type: The model of a score.
        lifespan: Entered before the service listens, left when it has drained.
        accepts_uploads: Whether `POST /score` may be a form with a file.
        routes: Returns the routes besides `/score`, or in place of `/score/batch`.
        collectors: Metrics of the service's own.
        health: Answers `GET /health`; None if there is none.
        failure: Returns why the service can never score again, or None. The process then exits,
            for its supervisor to start a new one.
        overview: What the startup table shows, e.g. `{"judge": "reference"}`.
        warnings: What is logged once the service listens.
        abstention_fails: Whether an abstention is the error `Abstained`.
    """

    name: str
    description: str
    scorer: Scorer[RequestT, ScoreT]
    request_type: type[RequestT]
    score_type: type[ScoreT]
    lifespan: Callable[[], AbstractAsyncContextManager[None]] = _no_lifespan
    accepts_uploads: bool = False
    routes: Callable[[Engine[RequestT, ScoreT]], Sequence[Route[Any]]] = lambda _: ()
    collectors: Sequence[Collector] = ()
    health: Callable[[], BaseModel] | None = None
    failure: Callable[[], str | None] = lambda: None
    overview: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    abstention_fails: bool = False


class Routes:
    """The routes of a service: its own take precedence over the common ones.

    Args:
        service: The service.
        engine: Scores its items.
    """

    def __init__(
        self, service: Service[RequestT, ScoreT], engine: Engine[RequestT, ScoreT]
    ) -> None:
        common: list[Route[Any]] = [_score_route(service, engine), _batch_route(service, engine)]
        all_routes = [*common, *service.routes(engine)]
        self._routes = {(route.method, route.path): route for route in all_routes}
        self._patterns = [
            (
                route,
                re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>.+)", re.escape(route.path)), re.DOTALL),
            )
            for route in reversed(self._routes.values())
            if "{" in route.path
        ]

    def __iter__(self) -> Iterator[Route[Any]]:
        return iter(self._routes.values())

    def find(self, method: str, path: str) -> tuple[Route[Any] | None, Mapping[str, str]]:
        """Return the route of a request, None if there is none, and the parameters of its path."""
        route = self._routes.get((method, path))
        if route is not None:
            return route, {}
        for each, pattern in self._patterns:
            if each.method == method and (found := pattern.fullmatch(path)):
                return each, found.groupdict()
        return None, {}

    def methods(self, path: str) -> list[str]:
        """Return the methods that a path takes."""
        exact = [method for method, known in self._routes if known == path]
        matching = (route for route, pattern in self._patterns if pattern.fullmatch(path))
        return exact or sorted({route.method for route in matching})


class _Upload(NamedTuple, Generic[RequestT]):
    """An item, and the file that was uploaded with it."""

    item: RequestT
    file: AnonymousFile | None


def _score_route(
    service: Service[RequestT, ScoreT], engine: Engine[RequestT, ScoreT]
) -> Route[_Upload[RequestT]]:
    request_type = service.request_type

    def decode(body: bytes) -> _Upload[RequestT]:
        return _Upload(validate_json(request_type, body), None)

    def decode_form(form: Form) -> _Upload[RequestT]:
        return _Upload(_item_of_form(request_type, form.fields), form.file)

    async def handler(upload: _Upload[RequestT], context: RequestContext) -> ScoreT:
        return await engine.score_item(upload.item, context, upload.file)

    return Route(
        "/score",
        "Score one item",
        request_type,
        service.score_type,
        handler,
        decode,
        decode_form if service.accepts_uploads else None,
    )


def _batch_route(
    service: Service[RequestT, ScoreT], engine: Engine[RequestT, ScoreT]
) -> Route[BatchRequest[Any]]:
    request_type, score_type = service.request_type, service.score_type
    lenient = BatchRequest[Annotated[request_type, _item_or_error(request_type)]]  # type: ignore[valid-type] # types made at run time
    response_model = BatchResponse[score_type]  # type: ignore[valid-type] # likewise

    async def handler(batch: BatchRequest[Any], context: RequestContext) -> BaseModel:
        scores = await engine.score_batch(batch.items, context)
        backends = {score.backend for score in scores if score.status is not Status.ERROR}
        provenance = {name: service.scorer.provenance(name) for name in sorted(backends)}
        return response_model(results=scores, provenance=provenance)

    return Route(
        "/score/batch",
        "Score several items; an item that fails does not fail the others",
        BatchRequest[request_type],  # type: ignore[valid-type] # likewise
        response_model,
        handler,
        lambda body: validate_json(lenient, body),
    )


def _item_or_error(model: type[BaseModel]) -> WrapValidator:
    """Turn an invalid item into its error, so that it does not fail its batch."""

    def validate_item(value: Any, validator: ValidatorFunctionWrapHandler) -> Any:
        try:
            return validator(value)
        except ValidationError as error:
            return InvalidRequest(format_validation_error(error, model))

    return WrapValidator(validate_item)


def _item_of_form(model: type[RequestT], fields: Mapping[str, str]) -> RequestT:
    """Validate the fields of a form: text as it is, and anything else in its JSON form."""
    given: dict[str, Any] = dict(fields)
    for name, field_info in model.model_fields.items():
        if name in given and field_info.annotation not in {str, str | None}:
            try:
                given[name] = from_json(given[name])
            except ValueError as error:
                raise InvalidRequest(f"{name}: not JSON: {error}") from None
    return validate(model, given, context={"uploaded": True})
