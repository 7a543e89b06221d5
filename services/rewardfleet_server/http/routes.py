"""Declarations of routes and services. Nothing here depends on a web framework."""

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar
from urllib.parse import quote, unquote

import msgspec
import orjson
from prometheus_client.registry import Collector
from pydantic import BaseModel, JsonValue, ValidationError
from pydantic_core import from_json

from rewardfleet.wire.chat import ChatError
from rewardfleet.wire.errors import ErrorKind, InvalidRequest, Problem, RewardFleetError
from rewardfleet.wire.frames import FRAMES_TYPE, JSON_TYPE, Frames
from rewardfleet.wire.run_state import DeletedRun
from rewardfleet.wire.score import MAX_NAME, BatchRequest, BatchResponse, Score, Status
from rewardfleet.wire.validation import validate_json
from rewardfleet.wire.waiting import without_gym_prefix
from rewardfleet_server.engine import Engine, RequestT, ScoreT
from rewardfleet_server.observe.telemetry import RequestContext
from rewardfleet_server.scorer import BulkScorer, Scorer
from rewardfleet_server.system.anonymous_file import AnonymousFile

if TYPE_CHECKING:  # not all services have it
    from rewardfleet_server.run_state import RunState

DecodedT = TypeVar("DecodedT")

FORM_TYPE = "multipart/form-data"
#: For how long scores are encoded before other requests get their turn.
_ENCODING_SECONDS = 0.001


@dataclass(frozen=True)
class Form:
    """The content of a `multipart/form-data` body: its fields as text, and its one file."""

    fields: Mapping[str, str]
    file: AnonymousFile


class AttachedFrames(NamedTuple):
    """The frames of the valid items of a body."""

    frames: list[Frames]  #: whose pixels are not known yet
    is_complete: bool  #: whether they are those of all items: none is invalid


@dataclass(frozen=True)
class Route(Generic[DecodedT]):
    """One endpoint. Both dispatch and the OpenAPI document are made from it.

    The body is read, limited and decoded before the handler is called; the handler is cancelled
    if the caller disconnects.
    """

    #: E.g. `/score`. A part in braces, such as `{run}`, may be any text, also with slashes;
    #: handlers find it in `RequestContext.parameters`.
    path: str
    description: str  #: one line for the documentation
    #: The model of the body; None if there is none, as for `GET`.
    request_model: type[BaseModel] | None
    response_model: type[BaseModel]  #: the model of the response
    #: Takes the decoded body, returns a model or the encoded response.
    handler: Callable[[DecodedT, RequestContext], Awaitable[BaseModel | bytes]]
    #: Decodes the body; may run in a thread. Default: validates the request model. Large bodies are
    #: decoded in another process, see `BodyParser.decode`.
    decode: Callable[[bytes], DecodedT] | None = None
    #: Decodes a form; None if forms are refused.
    decode_form: Callable[[Form], DecodedT] | None = None
    #: Returns the frames of a decoded body, whose pixels follow the JSON in a body of the type
    #: `FRAMES_TYPE`, and whether those are all; None if such bodies are refused.
    frames_of: Callable[[DecodedT], AttachedFrames] | None = None
    #: Whether it scores items; then a body that cannot be decoded is counted as one failed item.
    scores: bool = True
    #: Limit on the JSON fields of a body. An unknown field costs far more memory and time than its
    #: bytes.
    max_fields: int = 20_000
    #: Limit on the JSON values of a body, by its commas and opening brackets.
    max_values: int = 1_000_000
    #: Whether an invalid one of the body's `items` has an error as its result, and does not fail
    #: the others.
    items_fail_alone: bool = False
    method: str = "POST"  #: the HTTP method
    #: The model of the body of a failure; None for the `Problem` itself.
    failure_model: type[ChatError] | None = None
    #: Returns the response to a request that has waited in line in vain, if its client cannot
    #: handle a failure; None if it can.
    refuse: Callable[[DecodedT, RewardFleetError], BaseModel] | None = None

    @cached_property
    def decoder(self) -> Callable[[bytes], DecodedT]:
        """What decodes the body, if there is one."""
        model: Any = self.request_model
        return self.decode or partial(validate_json, model)

    @cached_property
    def media_types(self) -> tuple[str, ...]:
        """The media types of bodies that are accepted."""
        form = (FORM_TYPE,) if self.decode_form is not None else ()
        return (JSON_TYPE, *form, *((FRAMES_TYPE,) if self.frames_of is not None else ()))


@dataclass(frozen=True)
class Service(Generic[RequestT, ScoreT]):
    """What a service package provides."""

    #: One word, e.g. `video`; the `service` label of the metrics.
    name: str
    scorer: Scorer[RequestT, ScoreT]  #: scores items
    request_type: type[RequestT]  #: the model of an item
    score_type: type[ScoreT]  #: the model of a score
    #: Entered before the service listens, left when it has drained.
    lifespan: Callable[[], AbstractAsyncContextManager[object]] = nullcontext
    #: The fields of an item that a file replaces, if `POST /score` is a form; empty if it may not
    #: be one.
    upload_replaces: Sequence[str] = ()
    #: Whether items have `frames`, whose pixels may follow the JSON of a body.
    takes_frames: bool = False
    #: Scores batches; None to score each item of a batch as a single one.
    bulk: BulkScorer[RequestT] | None = None
    max_batch_fields: int = 20_000  #: `Route.max_fields` of a batch
    #: Returns the routes besides `/score`, or in place of `/score/batch`.
    routes: Callable[[Engine[RequestT, ScoreT]], Sequence[Route[Any]]] = lambda _: ()
    collectors: Sequence[Collector] = ()  #: metrics of the service's own
    #: By name of a request's field: what the settings add to its JSON schema, e.g. the maximum of a
    #: limit.
    field_schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Uses what the service needs to score, at little cost; raises if that fails. See `Readiness`.
    probe: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0)
    #: Returns why the service cannot score now if it knows that without a probe, else None.
    outage: Callable[[], str | None] = lambda: None
    #: Returns what `/readyz` reports besides its status.
    ready_fields: Callable[[], Mapping[str, str]] = dict
    #: Returns the id of its store of run state, None if it has none or cannot reach it: all
    #: replicas must have the same.
    run_state: Callable[[], str | None] = lambda: None
    health: Callable[[], BaseModel] | None = None  #: answers `GET /health`; None if there is none
    #: Returns why the service can never score again, or None. The process then exits, for its
    #: supervisor to start a new one.
    failure: Callable[[], str | None] = lambda: None
    #: What the startup table shows, e.g. `{"judge": "reference"}`.
    overview: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[str] = ()  #: what is logged once the service listens
    abstention_fails: bool = False  #: whether an abstention is the error `Abstained`
    #: The share of computed scores that the score log marks for people to label.
    label_fraction: float = 0.0


class Routes:
    """The routes of a service: its own take precedence over the common ones."""

    def __init__(
        self, service: Service[RequestT, ScoreT], engine: Engine[RequestT, ScoreT]
    ) -> None:
        common: list[Route[Any]] = [_score_route(service, engine), _batch_route(service, engine)]
        all_routes = [*common, *service.routes(engine)]
        self._routes = {(route.method, route.path): route for route in all_routes}
        # The longest first: `/budgets/{run}/update` is not the budget of a run `x/update`.
        templates = sorted({path for _, path in self._routes if "{" in path}, key=len, reverse=True)
        self._patterns = [
            (path, re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>.+)", re.escape(path))))
            for path in templates
        ]

    def __iter__(self) -> Iterator[Route[Any]]:
        return iter(self._routes.values())

    def find(
        self, method: str, path: str, raw_path: bytes | None = None
    ) -> tuple[Route[Any] | None, Mapping[str, str]]:
        """Return the route of a request, None if there is none, and the parameters of its path.

        In the path as it was sent, `raw_path`, an encoded slash is not the end of a part.
        """
        path = without_gym_prefix(path)
        route = self._routes.get((method, path))
        if route is not None:
            return route, {}
        template, parameters = self._template(path, raw_path)
        return self._routes.get((method, template)), parameters

    def at(self, path: str, raw_path: bytes | None = None) -> list[Route[Any]]:
        """Return the routes at a path, one for each method; the arguments are those of `find`."""
        template, _ = self._template(path, raw_path)
        return [route for route in self if route.path in {path, template}]

    def _template(self, path: str, raw_path: bytes | None) -> tuple[str, Mapping[str, str]]:
        """Return the path of the routes that match, "" for none, and its parameters."""
        if not self._patterns:
            return "", {}
        encoded = "" if raw_path is None else raw_path.decode("ascii", "replace")
        if unquote(encoded) != path:  # a proxy in this process has removed a prefix from one
            encoded = quote(path)
        for template, pattern in self._patterns:
            if found := pattern.fullmatch(encoded):
                parameters = found.groupdict()
                return template, {name: unquote(value) for name, value in parameters.items()}
        return "", {}


class _Upload(NamedTuple, Generic[RequestT]):
    """An item, and the file that was uploaded with it."""

    item: RequestT
    file: AnonymousFile | None


def _score_route(
    service: Service[RequestT, ScoreT], engine: Engine[RequestT, ScoreT]
) -> Route[_Upload[RequestT]]:
    request_type = service.request_type

    def decode_form(form: Form) -> _Upload[RequestT]:
        return _Upload(_item_of_form(request_type, form.fields, service.upload_replaces), form.file)

    async def handler(upload: _Upload[RequestT], context: RequestContext) -> ScoreT:
        return await engine.score_item(upload.item, context, upload.file)

    return Route(
        "/score",
        "Score one item",
        request_type,
        service.score_type,
        handler,
        partial(_decode_item, request_type),
        decode_form if service.upload_replaces else None,
        (lambda upload: _frames_of([upload.item])) if service.takes_frames else None,
    )


def _frames_of(items: Sequence[Any]) -> AttachedFrames:
    valid = [item for item in items if not isinstance(item, InvalidRequest)]
    frames = [item.frames for item in valid if item.frames is not None]
    return AttachedFrames(frames, len(valid) == len(items))


def _decode_item(request_type: type[RequestT], body: bytes) -> _Upload[RequestT]:
    return _Upload(validate_json(request_type, body), None)


def _batch_route(
    service: Service[RequestT, ScoreT], engine: Engine[RequestT, ScoreT]
) -> Route[Sequence[Any]]:
    request_type, score_type, bulk = service.request_type, service.score_type, service.bulk

    async def handler(items: Sequence[Any], context: RequestContext) -> bytes:
        if bulk is not None:
            batch = await engine.score_in_bulk(bulk, items, context)
            if batch.causes.get(ErrorKind.UNAVAILABLE) == len(items):
                results = msgspec.json.decode(batch.content)
                _check_available([Problem(**each["error"]) for each in results])
            shared = msgspec.json.encode({bulk.backend: service.scorer.provenance(bulk.backend)})
            return b'{"results":%b,"provenance":%b}' % (batch.content, shared)
        scores = await engine.score_batch(items, context)
        _check_available([score.error for score in scores])
        backends = {score.backend for score in scores if score.status is not Status.ERROR}
        provenance = {name: service.scorer.provenance(name) for name in sorted(backends)}
        return await _encoded(scores, provenance)

    return Route(
        "/score/batch",
        "Score several items; an item that fails does not fail the others",
        _batch_type(request_type),
        BatchResponse[score_type],  # type: ignore[valid-type] # a type made at run time
        handler,
        partial(_decode_batch, request_type),
        frames_of=_frames_of if service.takes_frames else None,
        max_fields=service.max_batch_fields,
        items_fail_alone=True,
    )


def _check_available(errors: Sequence[Problem | None]) -> None:
    """Raise the failure of a batch without an item that was available: other replicas may be."""
    kinds = {each and each.kind for each in errors}
    if kinds == {ErrorKind.UNAVAILABLE} and errors[0] is not None:
        raise RewardFleetError.from_problem(errors[0])


def encode(response: BaseModel) -> bytes:
    """Encode a response; a score by orjson, in a third of the time that pydantic takes."""
    if isinstance(response, Score):
        with suppress(orjson.JSONEncodeError):  # e.g. provenance with a number of over 64 bits
            return orjson.dumps(response, default=vars)
    return response.model_dump_json().encode()


async def _encoded(scores: Sequence[Score], provenance: Mapping[str, JsonValue]) -> bytes:
    """Encode a `BatchResponse`, of which each score may have a megabyte: others get their turns."""
    parts = [b'{"results":[']
    until = time.monotonic() + _ENCODING_SECONDS
    for each in scores:
        parts += (encode(each), b",")
        if time.monotonic() > until:
            await asyncio.sleep(0)
            until = time.monotonic() + _ENCODING_SECONDS
    parts[-1] = b'],"provenance":'
    return b"".join([*parts, msgspec.json.encode(provenance), b"}"])


def _decode_batch(request_type: type[RequestT], body: bytes) -> Sequence[RequestT | InvalidRequest]:
    """Decode a batch. An invalid item is replaced by its error."""
    with suppress(ValidationError):  # most batches are valid
        return _batch_type(request_type).model_validate_json(body, strict=True).items

    def item_or_error(item: object) -> RequestT | InvalidRequest:
        try:
            return validate_json(request_type, json.dumps(item).encode())
        except InvalidRequest as error:
            return error

    return [item_or_error(each) for each in validate_json(BatchRequest[Any], body).items]


@lru_cache
def _batch_type(request_type: type[RequestT]) -> type[BatchRequest[RequestT]]:
    return BatchRequest[request_type]  # type: ignore[valid-type] # a type made at run time


def _item_of_form(
    model: type[RequestT], fields: Mapping[str, str], excluded: Collection[str]
) -> RequestT:
    """Validate the fields of a form: text as it is, and anything else in its JSON form."""
    given: dict[str, Any] = dict(fields)
    if refused := [name for name in excluded if name in given]:
        raise InvalidRequest(f"{refused[0]}: not part of a form, whose file is the input")
    for name, field_info in model.model_fields.items():
        if name in given and field_info.annotation not in {str, str | None}:
            try:
                given[name] = from_json(given[name])
            except ValueError as error:
                raise InvalidRequest(f"{name}: not JSON: {error}") from None
    return validate_json(model, json.dumps(given).encode(), context={"uploaded": True})


def run_route(engine: Engine[Any, Any], state: "RunState") -> Route[Any]:
    """Return the route that deletes what is stored of a run."""

    async def delete(_: None, context: RequestContext) -> BaseModel:
        run = run_of(context)
        async with engine.permit(context):
            return DeletedRun(run=run, was_stored=await state.delete(run))

    description = "Delete the budget, groups, statistics and temperatures of a run"
    return Route(
        "/runs/{run}", description, None, DeletedRun, delete, method="DELETE", scores=False
    )


def run_of(context: RequestContext) -> str:
    """Return the run that a path names."""
    run = context.parameters["run"]
    if len(run) > MAX_NAME:
        raise InvalidRequest(f"run: give a name of at most {MAX_NAME} characters")
    return run
