"""The journey of one request. Every service goes through it, in this order:

authenticate and admit → read and validate → look into the cache → share with an identical
request in flight → take a place at the backend → score → cache → answer.
"""

import asyncio
import logging
import random
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Generic, Protocol, TypeVar

from pydantic import (
    BaseModel,
    JsonValue,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from rewardfleet.wire.errors import (
    DeadlineExceeded,
    Forbidden,
    InternalError,
    InvalidRequest,
    RewardFleetError,
    TooLarge,
    Unavailable,
)
from rewardfleet.wire.score import BatchRequest, BatchResponse, Score, Status

from .admission import Admission
from .auth import Keys
from .cache import Cache, Flights
from .problems import explain, problem_response
from .telemetry import REQUEST_ID, Telemetry, Visit, request_id_of
from .uploads import Form, HeldFile, read_form

log = logging.getLogger(__name__)

T = TypeVar("T")
ModelT = TypeVar("ModelT", bound=BaseModel)
ForeignT = TypeVar("ForeignT", bound=BaseModel)
RequestT = TypeVar("RequestT", bound=BaseModel)
RequestT_contra = TypeVar("RequestT_contra", contravariant=True)
ScoreT = TypeVar("ScoreT", bound=Score)

#: Bodies above this size are parsed off the event loop.
_SMALL_BODY = 64 * 1024
#: Fields and commas that a body may have: an unknown field costs far more memory and time than its
#: bytes, and a value some. Pictures in base64 have neither.
_MAX_FIELDS, _MAX_COMMAS = 20_000, 2_000_000
#: The end of a field's name; within a text, a quotation mark has a backslash before it.
_FIELD = re.compile(rb'(?<!\\)"\s*:')
#: Seconds in which a body must have come, so that silence holds no place for long.
_BODY_SECONDS = 30.0

DEADLINE_HEADER = "x-request-timeout"


@dataclass(frozen=True)
class Plan(Generic[ScoreT]):
    """What is to be done for one item.

    Attributes:
        backend: The name of the backend that will judge.
        key: Names everything that the answer depends on; None where the answer is not
            deterministic, and then it is neither shared nor cached.
        compute: Does the work. Fills `timing_ms.decode` and `timing_ms.backend`, and in
            `provenance` what is the item's own.
        other_keys: Under which an answer may be known that serves this item as well.
        keep: Under which key a computed answer is kept, and for how many seconds; by default
            under `key`, for as long as there is room.
        adopt: Makes this item's answer of one that was computed for another.
        essence: In what two computations of the answer must agree.
    """

    backend: str
    key: str | None
    compute: Callable[[], Awaitable[ScoreT]]
    other_keys: tuple[str, ...] = ()
    keep: Callable[[ScoreT], tuple[str, float | None]] | None = None
    adopt: Callable[[ScoreT], ScoreT] = lambda score: score
    essence: Callable[[ScoreT], object] = lambda score: score.score


class Scorer(Protocol[RequestT_contra, ScoreT]):
    """A slice's own part of the journey."""

    async def plan(self, request: RequestT_contra, upload: HeldFile | None) -> Plan[ScoreT]:
        """Check what the request asks for, and say what would answer it. Does no heavy work.

        Args:
            request: The item.
            upload: The file that came with it, where the service takes one.
        """

    def provenance(self, backend: str) -> dict[str, JsonValue]:
        """Return what all answers of `backend` have in common."""

    def check_ready(self) -> Mapping[str, str] | None:
        """Raise `Unavailable` where the service could not score now; else what `/readyz` adds."""


@dataclass(frozen=True)
class Journey(Generic[RequestT, ScoreT]):
    """What a further endpoint may ask for, once its request is in the house and read.

    Attributes:
        score: Scores an item as `POST /score` does, cache and metrics included.
        slot: A place at the backend, for what is no score.
    """

    score: Callable[[RequestT], Awaitable[ScoreT]]
    slot: Callable[[], AbstractAsyncContextManager[None]]


@dataclass(frozen=True)
class Endpoint(Generic[ForeignT, RequestT, ScoreT]):
    """A further endpoint of a service, in a wire format that others speak already.

    Its requests are admitted, bounded, read, cancelled and refused as all others are.

    Attributes:
        path: E.g. `/submit`.
        about: A few words for the documentation page.
        answer: Answers a request.
    """

    path: str
    about: str
    request_type: type[ForeignT]
    response_type: type[BaseModel]
    answer: Callable[[ForeignT, Journey[RequestT, ScoreT]], Coroutine[None, None, BaseModel]]


class CallerGone(Exception):
    """The caller hung up before the answer was ready."""


class Pipeline(Generic[RequestT, ScoreT]):
    """The journey, for one service.

    Args:
        scorer: The slice's part.
        request_type: The model of an item.
        score_type: The model of an answer.
        deadline_s: Seconds for a whole request; a caller may ask for less by header.
        max_body_bytes: Bound on one request's body.
        takes_uploads: Whether a single request may be a form with a file.
        audit_share: Of the known answers, in [0, 1]: how many are computed anew all the same.
    """

    def __init__(
        self,
        *,
        scorer: Scorer[RequestT, ScoreT],
        request_type: type[RequestT],
        score_type: type[ScoreT],
        keys: Keys,
        admission: Admission,
        cache: Cache,
        telemetry: Telemetry,
        deadline_s: float,
        max_body_bytes: int,
        takes_uploads: bool,
        audit_share: float,
    ) -> None:
        self._scorer = scorer
        self._audit_share = audit_share
        self._takes_uploads = takes_uploads
        self._json_fields = {
            name
            for name, field in request_type.model_fields.items()
            if field.annotation not in {str, str | None}
        }
        self._request_type = request_type
        self._score_type = score_type
        self._batch_type = BatchRequest[Annotated[request_type, _item_or_reason(request_type)]]  # type: ignore[valid-type] # types made at run time
        self._batch_response = BatchResponse[score_type]  # type: ignore[valid-type] # likewise
        self._keys = keys
        self._admission = admission
        self._cache = cache
        self._flights: Flights[ScoreT] = Flights()
        self._telemetry = telemetry
        self._deadline_s = deadline_s
        self._max_body_bytes = max_body_bytes
        # One, as parsing holds the interpreter: two would only take it from the event loop.
        self._parser = ThreadPoolExecutor(1, thread_name_prefix="parse")
        self._journeys: set[asyncio.Task[Any] | None] = set()
        self._abandoned = False

    async def single(self, request: Request) -> Response:
        """Answer `POST /score`."""
        return await self._journey(request, self._answer_single)

    async def batch(self, request: Request) -> Response:
        """Answer `POST /score/batch`."""
        return await self._journey(request, self._answer_batch)

    def further(
        self, endpoint: Endpoint[ForeignT, RequestT, ScoreT]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return what answers a further endpoint."""

        async def answered(request: Request) -> Response:
            return await self._journey(request, partial(self._answer_further, endpoint))

        return answered

    def whole(
        self, work: Callable[[bytes, Visit], Coroutine[None, None, bytes]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Make an endpoint of a slice's own: `work` reads a whole body and writes the answer."""

        async def answer(
            request: Request, body: bytes | Form, visit: Visit, deadline: float
        ) -> bytes:
            assert not isinstance(body, Form)  # noqa: S101 - only `/score` takes one
            async with asyncio.timeout_at(deadline), self._admission.slot():
                content = await _unless_hung_up(request, work(body, visit))
            self._telemetry.judged_together(visit)
            return content

        async def endpoint(request: Request) -> Response:
            return await self._journey(request, answer)

        return endpoint

    def close(self) -> None:
        """End the parsing thread."""
        self._parser.shutdown(wait=False, cancel_futures=True)

    def abandon(self) -> None:
        """Give up what is in flight; its callers hear that the service is shutting down."""
        self._abandoned = True
        for journey in self._journeys:
            if journey is not None:
                journey.cancel()

    async def _journey(
        self,
        request: Request,
        answer: Callable[[Request, bytes | Form, Visit, float], Awaitable[str | bytes]],
    ) -> Response:
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers.raw
        }
        visit = Visit(request.scope["path"], request_id_of(headers.get("x-request-id")))
        REQUEST_ID.set(visit.request_id)
        journey = asyncio.current_task()
        self._journeys.add(journey)
        try:
            self._keys.check(headers.get("authorization"))
            deadline = asyncio.get_running_loop().time() + self._seconds_allowed(headers)
            is_form = self._takes_form(request, headers)
            with self._admission.admit(self._announced_bytes(headers, is_form=is_form)):
                now = asyncio.get_running_loop().time()
                async with asyncio.timeout_at(min(deadline, now + _BODY_SECONDS)):
                    stream = self._bounded(request)
                    body = (
                        await read_form(request.headers, stream)
                        if is_form
                        else b"".join([chunk async for chunk in stream])
                    )
                content = await answer(request, body, visit, deadline)
        except (CallerGone, ClientDisconnect):
            self._telemetry.answered(visit, 499, None, "the caller hung up")
            return Response(status_code=499)
        except asyncio.CancelledError:
            if not self._abandoned:
                raise
            return self._refuse(visit, Unavailable("the service is shutting down", retry_after=1))
        except Exception as error:  # noqa: BLE001 - every failure becomes a problem
            return self._refuse(visit, self._failure(error, visit))
        finally:
            self._journeys.discard(journey)
        self._telemetry.answered(visit, 200, None)
        return Response(
            content, media_type="application/json", headers={"x-request-id": visit.request_id}
        )

    async def _answer_single(
        self, request: Request, body: bytes | Form, visit: Visit, deadline: float
    ) -> str:
        backend = ""
        try:
            async with asyncio.timeout_at(deadline):
                item, upload = await self._item_of(body)
                plan = await self._scorer.plan(item, upload)
                backend = plan.backend
                score = await self._known(plan)
                if score is None or self._is_audited():
                    known = score
                    score = await _unless_hung_up(request, self._computed(plan))
                    self._audit(plan, known, score)
        except (RewardFleetError, TimeoutError):
            self._telemetry.item_failed(backend)
            raise
        score.provenance = {**self._scorer.provenance(backend), **score.provenance}
        return self._finished(score, visit).model_dump_json()

    async def _answer_batch(
        self, request: Request, body: bytes | Form, visit: Visit, deadline: float
    ) -> str:
        assert not isinstance(body, Form)  # noqa: S101 - `_takes_form` sees to it
        async with asyncio.timeout_at(deadline):
            batch = await self._parse(self._batch_type, body)
        scores = await _unless_hung_up(request, self._all_items(batch.items, visit, deadline))
        judged = {score.backend for score in scores if score.status is not Status.ERROR}
        return self._batch_response(
            results=scores,
            provenance={backend: self._scorer.provenance(backend) for backend in sorted(judged)},
        ).model_dump_json()

    async def _answer_further(
        self,
        endpoint: Endpoint[ForeignT, RequestT, ScoreT],
        request: Request,
        body: bytes | Form,
        visit: Visit,
        deadline: float,
    ) -> str:
        assert not isinstance(body, Form)  # noqa: S101 - `_takes_form` sees to it
        async with asyncio.timeout_at(deadline):
            asked = await self._parse(endpoint.request_type, body)
            journey = Journey(partial(self._scored, visit), self._admission.slot)
            answer = await _unless_hung_up(request, endpoint.answer(asked, journey))
        return answer.model_dump_json()

    async def _scored(self, visit: Visit, item: RequestT) -> ScoreT:
        backend = ""
        try:
            plan = await self._scorer.plan(item, None)
            backend = plan.backend
            score = await self._known(plan) or await self._computed(plan)
        except RewardFleetError:
            self._telemetry.item_failed(backend)
            raise
        return self._finished(score, visit)

    async def _all_items(
        self, items: Sequence[RequestT | InvalidRequest], visit: Visit, deadline: float
    ) -> list[ScoreT]:
        return await asyncio.gather(*(self._item(item, visit, deadline) for item in items))

    async def _item(self, item: RequestT | InvalidRequest, visit: Visit, deadline: float) -> ScoreT:
        """Answer one item of a batch; its failure is its own."""
        backend = ""
        try:
            if isinstance(item, InvalidRequest):
                raise item  # noqa: TRY301 - the one way in which an item fails
            async with asyncio.timeout_at(deadline):
                plan = await self._scorer.plan(item, None)
                backend = plan.backend
                score = await self._known(plan)
                if score is None or self._is_audited():
                    known = score
                    score = await self._computed(plan)
                    self._audit(plan, known, score)
        except Exception as error:  # noqa: BLE001 - every failure becomes a problem
            problem = self._failure(error, visit).problem()
            problem.request_id = visit.request_id
            score = self._score_type(
                score=None, status=Status.ERROR, backend=backend, error=problem
            )
        return self._finished(score, visit)

    async def _known(self, plan: Plan[ScoreT]) -> ScoreT | None:
        """Look into the cache; a hit takes no place at the backend."""
        if plan.key is None:
            return None
        score = None
        for key in (plan.key, *plan.other_keys):
            value = await self._cache.get(key)
            score = None if value is None else self._readable(value)
            if score is not None:
                break
        self._telemetry.cache_looked_up(hit=score is not None)
        return None if score is None else plan.adopt(score)

    def _is_audited(self) -> bool:
        """Whether this known answer is to be computed anew, to see whether both agree."""
        return self._audit_share > 0 and random.random() < self._audit_share  # noqa: S311 - no secret

    def _audit(self, plan: Plan[ScoreT], known: ScoreT | None, computed: ScoreT) -> None:
        if known is None:
            return
        agrees = plan.essence(known) == plan.essence(computed)
        self._telemetry.cache_audited(agrees=agrees)
        if not agrees:
            log.warning("a cached answer was another than a computation of it: key %s", plan.key)

    def _readable(self, value: bytes) -> ScoreT | None:
        try:
            score = self._score_type.model_validate_json(value)
        except ValidationError:
            log.warning("a cached answer cannot be read; it is computed anew")
            return None
        score.cached = True
        return score

    async def _computed(self, plan: Plan[ScoreT]) -> ScoreT:
        """Compute, or share the computation of an identical request in flight."""
        if plan.key is None:
            return await self._compute(plan)
        score = await self._flights.join(plan.key, lambda: self._compute(plan))
        timing = score.timing_ms.model_copy()
        # Each sharer has his own total.
        return plan.adopt(score.model_copy(update={"timing_ms": timing}))

    async def _compute(self, plan: Plan[ScoreT]) -> ScoreT:
        asked = time.monotonic()
        async with self._admission.slot():
            queue_ms = (time.monotonic() - asked) * 1000
            score = await plan.compute()
        score.timing_ms.queue = round(score.timing_ms.queue + queue_ms, 3)
        if plan.key is not None and score.status is Status.OK:
            kept = score.model_dump_json(exclude={"cached", "timing_ms"})
            key, ttl_s = plan.keep(score) if plan.keep else (plan.key, None)
            await self._cache.put(key, kept.encode(), ttl_s)
        return score

    def _finished(self, score: ScoreT, visit: Visit) -> ScoreT:
        score.timing_ms.total = round(visit.elapsed_ms, 3)
        self._telemetry.judged(visit, score)
        return score

    def _failure(self, error: Exception, visit: Visit) -> RewardFleetError:
        """Return what the caller is told of `error`."""
        if isinstance(error, RewardFleetError):
            return error
        if isinstance(error, TimeoutError):
            return DeadlineExceeded(
                f"not done within the request's time ({visit.elapsed_ms / 1000:.1f} s); "
                f"the service allows {self._deadline_s:g} s"
            )
        log.error("bug", exc_info=error)
        return InternalError("a bug in the service; its log has the details under this request id")

    def _refuse(self, visit: Visit, error: RewardFleetError) -> Response:
        self._telemetry.answered(visit, error.status, error.kind, error.detail)
        return problem_response(error, visit.request_id)

    def _seconds_allowed(self, headers: Mapping[str, str]) -> float:
        """The service's deadline, or the caller's where that is shorter."""
        asked = headers.get(DEADLINE_HEADER)
        if asked is None:
            return self._deadline_s
        try:
            seconds = float(asked)
        except ValueError:
            seconds = -1.0
        if not 0 < seconds < float("inf"):
            raise InvalidRequest(f"{DEADLINE_HEADER}: give seconds, above 0 (got {asked[:60]!r})")
        return min(seconds, self._deadline_s)

    def _takes_form(self, request: Request, headers: Mapping[str, str]) -> bool:
        """Whether the body is a form, which only single requests of some services may be."""
        is_form = _media_type(headers) == "multipart/form-data"
        return is_form and self._takes_uploads and request.scope["path"] == "/score"

    def _announced_bytes(self, headers: Mapping[str, str], *, is_form: bool) -> int:
        """Check what the headers say of the body; return the bytes that it may come to."""
        if not is_form and _media_type(headers) != "application/json":
            content_type = headers.get("content-type", "")[:60]
            raise InvalidRequest(f"send `Content-Type: application/json` (got {content_type!r})")
        # Web pages may post forms anywhere; their browsers say from where, programs do not.
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != headers.get("host"):
            raise Forbidden(f"web pages of {origin[:100]} may not use this service")
        encoding = headers.get("content-encoding", "identity")
        if encoding != "identity":
            raise InvalidRequest(f"Content-Encoding {encoding[:60]!r} is not accepted; send none")
        announced = int(headers.get("content-length", self._max_body_bytes))
        if announced > self._max_body_bytes:
            raise self._body_too_large()
        return announced

    async def _bounded(self, request: Request) -> AsyncGenerator[bytes, None]:
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > self._max_body_bytes:
                raise self._body_too_large()
            yield chunk

    async def _item_of(self, body: bytes | Form) -> tuple[RequestT, HeldFile | None]:
        if isinstance(body, Form):
            return self._parse_form(body.fields), body.file
        return await self._parse(self._request_type, body), None

    def _parse_form(self, fields: Mapping[str, str]) -> RequestT:
        """Read a form's fields: texts as they are, and what is no text in its JSON form."""
        given: dict[str, Any] = dict(fields)
        for name in given.keys() & self._json_fields:
            try:
                given[name] = from_json(given[name])
            except ValueError as error:
                raise InvalidRequest(f"{name}: not JSON: {error}") from None
        try:
            return self._request_type.model_validate(given, context={"uploaded": True})
        except ValidationError as error:
            raise InvalidRequest(explain(error, self._request_type)) from None

    async def _parse(self, model: type[ModelT], body: bytes) -> ModelT:
        """Read a body; a large one off the event loop.

        Raises:
            InvalidRequest: It is no JSON, or not of this form.
        """

        def parse() -> ModelT:
            refuse_flood(body, _MAX_FIELDS)
            try:
                return model.model_validate_json(body)
            except ValidationError as error:
                raise InvalidRequest(explain(error, model)) from None

        if len(body) <= _SMALL_BODY:
            return parse()
        return await asyncio.get_running_loop().run_in_executor(self._parser, parse)

    def _body_too_large(self) -> TooLarge:
        limit = self._max_body_bytes / 2**20
        return TooLarge(f"the body is larger than this service accepts ({limit:g} MiB)")


def refuse_flood(body: bytes, max_fields: int, max_commas: int = _MAX_COMMAS) -> None:
    """Refuse a body that would come to far more memory and time than its bytes.

    Raises:
        InvalidRequest: It has too many fields or values.
    """
    too_many_fields = body.count(b":") > max_fields < len(_FIELD.findall(body))
    if too_many_fields or body.count(b",") > max_commas:
        raise InvalidRequest(f"the body has too many fields or values; at most {max_fields} fields")


def _media_type(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _item_or_reason(model: type[BaseModel]) -> WrapValidator:
    """Carry a bad item on as the reason why it is bad, that it may not fail its batch."""

    def validate_item(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        try:
            return validate(value)
        except ValidationError as error:
            return InvalidRequest(explain(error, model))

    return WrapValidator(validate_item)


async def _unless_hung_up(request: Request, work: Coroutine[None, None, T]) -> T:
    """Do the work; when the caller hangs up meanwhile, cancel it.

    Raises:
        CallerGone: The caller hung up.
    """
    watching = asyncio.ensure_future(_hang_up(request))
    await asyncio.sleep(0)  # who has gone already is seen now
    if watching.done():
        work.close()
        raise CallerGone
    working = asyncio.ensure_future(work)
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise CallerGone
        return working.result()
    finally:
        working.cancel()
        watching.cancel()


async def _hang_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
