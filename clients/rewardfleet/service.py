"""The base of all service clients: single items, batches, and rewards."""

import asyncio
import copy
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, Literal, ParamSpec, TypeVar
from urllib.parse import quote

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json

from .http.coalesce import Coalescer
from .http.replicas import retry_wait
from .http.tracing import span
from .http.transport import MAX_BATCH_BYTES, NotEncoded, ServiceTransport
from .services import SERVICES
from .wire.errors import CALLER_ERRORS, BackendFailed, InvalidRequest, RewardFleetError, TooLarge
from .wire.policy_text import POLICY_FIELDS, UNUSABLE
from .wire.run_state import DeletedRun
from .wire.score import (
    MAX_BATCH_ITEMS,
    BatchRequest,
    BatchResponse,
    Health,
    Name,
    Request,
    Score,
    abstained,
    failed,
)
from .wire.urls import redact

if TYPE_CHECKING:
    from .score_log.of_client import ClientLog

_NAME = TypeAdapter(Name)

RequestT = TypeVar("RequestT", bound=Request)
ScoreT = TypeVar("ScoreT", bound=Score)

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
_P = ParamSpec("_P")

log = logging.getLogger(__name__)

#: "raise", or the reward that replaces a missing one.
OnFailure = Literal["raise"] | float


@dataclass(frozen=True)
class RewardPolicy:
    """The rule by which a score, or a failure, becomes a reward; the options of `RewardFleet`.

    Raises:
        ValueError: `on_failure` is neither "raise" nor a number.
    """

    on_failure: OnFailure
    binary_reward: bool
    success_threshold: float
    #: Called for each reward that `on_failure` replaces.
    on_fallback: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        if not (self.on_failure == "raise" or isinstance(self.on_failure, int | float)):
            raise ValueError(f'on_failure: give "raise" or a number, not {self.on_failure!r}')

    def reward(self, score: Score) -> float:
        """Return the reward of a score, or what `failed` says of it."""
        if score.error is not None:
            return self.failed(RewardFleetError.from_problem(score.error))
        if score.score is None:
            return self.failed(abstained(score))
        if self.binary_reward:
            return float(score.score >= self.success_threshold)
        return score.score

    async def reward_of(self, answer: Awaitable[Score]) -> float:
        """Return the reward of a score that is awaited, or what `failed` says of it."""
        try:
            score = await answer
        except RewardFleetError as error:
            return self.failed(error)
        return self.reward(score)

    def failed(self, error: RewardFleetError) -> float:
        """Return the reward that replaces a missing one, and log the failure as a warning.

        Raises:
            RewardFleetError: `error`, if it is one of `CALLER_ERRORS` or blames the URL, which the
                caller must correct; or if `on_failure` is "raise".
        """
        if isinstance(error, CALLER_ERRORS) or error.blames_url:
            raise error
        return self.fallback(error)

    def fallback(self, error: RewardFleetError) -> float:
        """Return `on_failure` in place of a reward, whatever the failure, and log it as a warning.

        Raises:
            RewardFleetError: `error`, if `on_failure` is "raise".
        """
        if self.on_failure == "raise":
            raise error
        log.warning("no reward, %s is used instead: %s", self.on_failure, error)
        self.on_fallback()
        return self.on_failure


def with_options(function: FunctionT) -> FunctionT:
    """Show the options of a function in its signature, as `help` does not know `Unpack`."""
    signature = inspect.signature(function)
    *arguments, options = signature.parameters.values()
    keyword = inspect.Parameter.KEYWORD_ONLY
    arguments += [
        inspect.Parameter(name, keyword, default=..., annotation=annotation)
        for name, annotation in options.annotation.__args__[0].__annotations__.items()
    ]
    function.__signature__ = signature.replace(parameters=arguments)  # type: ignore[attr-defined]
    return function


_ResultT = TypeVar("_ResultT")
_Method = Callable[Concatenate[Any, _P], Coroutine[Any, Any, _ResultT]]


def score_of(build: Callable[_P, Request], score_type: type[ScoreT]) -> _Method[_P, ScoreT]:  # noqa: ARG001 - for type checkers
    """Return a client's `score`, which takes the arguments of a builder of requests."""

    async def score(self: Any, /, *args: _P.args, **options: _P.kwargs) -> ScoreT:
        return await self._score_one(build(*args, **options))  # type: ignore[no-any-return]

    return _as_method(score, build)


def reward_of(build: Callable[_P, Request]) -> _Method[_P, float]:
    """Return a client's `reward`, which takes the arguments of a builder of requests."""

    async def reward(self: Any, /, *args: _P.args, **options: _P.kwargs) -> float:
        return await self.policy.reward_of(self.score(*args, **options))  # type: ignore[no-any-return]

    return _as_method(reward, build)


def _as_method(method: FunctionT, build: Callable[..., Any]) -> FunctionT:
    functools.update_wrapper(method, build, ("__module__",), ())
    method.__doc__ = f"""Score one item. The arguments are those of `{build.__name__}`.

    Raises:
        RewardFleetError: There is no {method.__name__}; see `rewardfleet.wire.errors`.
    """
    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    arguments = [this, *inspect.signature(build).parameters.values()]
    method.__signature__ = inspect.Signature(arguments)  # type: ignore[attr-defined]
    return method


class ServiceClient:
    """A client of one service; the options are those of `RewardFleet`."""

    #: Whether `binary_reward` and `success_threshold` apply to its scores.
    has_threshold: ClassVar[bool] = False
    #: Whether the run of an item is for the score log only, and changes no score.
    has_run_label: ClassVar[bool] = False
    request_type: type[Request]  #: the model of an item
    score_type: type[Score]  #: the model of an item's score

    def __init__(
        self,
        transport: ServiceTransport,
        policy: RewardPolicy,
        *,
        coalesce_s: float = 0.0,
        run: str | None = None,
        attempt: str | None = None,
        log: "ClientLog | None" = None,
    ) -> None:
        self._transport = transport
        self.policy = policy
        self._coalesce_s = coalesce_s
        self._run = run
        self._attempt = {} if attempt is None else {"attempt": attempt}
        self._log = log

    @property
    def timeout_s(self) -> float:
        """Seconds for a call."""
        return self._transport.timeout_s

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(redact, self._transport.urls))})"

    async def health(self) -> Health:
        """Return what the service says when it is asked, for at most 5 s, whether it can score.

        Raises:
            RewardFleetError: It cannot score now, or the request failed.
        """
        deadline = asyncio.get_running_loop().time() + min(self.timeout_s, 5.0)
        return await self._transport.call("GET", "/readyz", Health, deadline=deadline)

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        await self._transport.aclose()

    async def _requests(self, items: Iterable[Any]) -> list[Any]:
        """Return the requests of items, which may be arguments of `score` instead."""
        is_one = isinstance(items, str | Mapping | Request)
        if is_one or not isinstance(items, Iterable) or not (items := list(items)):
            raise InvalidRequest("items: give a list of 1 item or more")
        if all(isinstance(each, Request) for each in items):
            return items
        # In a thread: it encodes the frames of clips.
        return await asyncio.to_thread(lambda: [self._request(*each) for each in enumerate(items)])

    def _request(self, place: int, item: Any) -> Any:
        if isinstance(item, Request):
            return item
        if not isinstance(item, Mapping):
            accepted = "give a request, or the arguments of `score` by name"
            raise InvalidRequest(f"items.{place}: {accepted}, not {type(item).__name__}")
        try:
            return SERVICES[self._transport.service].request(**item)
        except (InvalidRequest, TypeError) as error:
            raise InvalidRequest(f"items.{place}: {error}") from None


class RunStateClient(ServiceClient):
    """A client of a service that stores the state of training runs."""

    async def delete_run(self, run: str) -> bool:
        """Delete budget, groups, statistics and temperatures of a run; return whether it had any.

        Raises:
            RewardFleetError: The request failed; see `rewardfleet.wire.errors`.
        """
        path = run_path("runs", run)
        return (await self._transport.call("DELETE", path, DeletedRun)).was_stored


def run_path(prefix: str, run: str) -> str:
    """Return the path of a run, or raise `InvalidRequest` if that is no name."""
    try:
        name = quote(_NAME.validate_python(run), safe="")
    except ValueError:
        raise InvalidRequest("run: give a name of 1 to 200 characters") from None
    if name in {".", ".."}:
        raise InvalidRequest(f"run: {name!r} cannot be part of a URL; give another name")
    return f"/{prefix}/{name}"


class BatchClient(ServiceClient, Generic[RequestT, ScoreT]):
    """A client of a service whose items are independent, so that batches may be split."""

    score_type: type[ScoreT]

    @functools.cached_property
    def _coalescer(self) -> Coalescer[RequestT, ScoreT | RewardFleetError] | None:
        if not self._coalesce_s:
            return None
        return Coalescer(self._collected, window_s=self._coalesce_s, max_items=MAX_BATCH_ITEMS)

    def _media_bytes(self, request: RequestT) -> int:  # noqa: ARG002 - for subclasses
        """Return how many bytes of base64 an item has, roughly, so that few are encoded at once."""
        return 0

    def _without_policy_text(self, request: RequestT) -> RequestT | None:
        """Return what is sent if an item is too large; None if that is not due to its policy text.

        The replacement scores as little as a text that is too long.
        """
        texts = request.model_dump(include=set(POLICY_FIELDS & request.model_fields_set))
        if all(len(text or "") <= len(UNUSABLE) for text in texts.values()):
            return None
        return request.model_copy(update={name: text and UNUSABLE for name, text in texts.items()})

    async def score_batch(self, requests: Sequence[RequestT | Mapping[str, Any]]) -> list[ScoreT]:
        """Score several items, in order. An item that fails has its own `error`.

        Many items are split over several concurrent requests. An item with a retryable error is
        sent again as a single request.

        Args:
            requests: Requests, or the arguments of `score` for each, by name.

        Raises:
            InvalidRequest: `requests` is empty, or cannot be made of these arguments.
            RewardFleetError: All requests were refused.
        """
        items = [self._labeled(request) for request in await self._requests(requests)]
        service = self._transport.service
        with span(f"{service}.score_batch", service, len(items)):
            answers = await self._send(items, self._transport.deadline())
        if self._log is not None:
            self._log.add(items, answers)
        refused = [answer for answer in answers if isinstance(answer, RewardFleetError)]
        wrong = [each for each in refused if each.blames_url]
        if wrong or len(refused) == len(answers):
            raise (wrong or refused)[0]
        return [self._scored(answer) for answer in answers]

    async def rewards(self, requests: Sequence[RequestT | Mapping[str, Any]]) -> list[float]:
        """Score several items, as `score_batch` takes them, and return their rewards, in order.

        Raises:
            RewardFleetError: There is no reward, and `on_failure` is "raise".
        """
        try:
            scores = await self.score_batch(requests)
        except RewardFleetError as error:
            return [self.policy.failed(error) for _ in requests]
        return [self.policy.reward(score) for score in scores]

    async def _score_one(self, request: RequestT, deadline: float | None = None) -> ScoreT:
        deadline = self._transport.deadline() if deadline is None else deadline
        request = self._labeled(request)
        if self._coalescer is None:
            answer = await self._post_one(request, deadline)
        else:
            answer = await self._coalescer.submit(request, deadline)
        if self._log is not None:
            self._log.add([request], [answer])
        if isinstance(answer, RewardFleetError):
            raise answer
        if answer.error is not None:
            raise RewardFleetError.from_problem(answer.error)
        return answer

    def _labeled(self, request: RequestT) -> RequestT:
        """Return a request with the run and the attempt of this client, if it has none."""
        if self._attempt and getattr(request, "attempt", "") is None:
            request = request.model_copy(update=self._attempt)
        if self._run is None or not self.has_run_label or getattr(request, "run", None):
            return request
        return request.model_copy(update={"run": self._run})

    async def _collected(
        self, requests: list[RequestT], deadline: float
    ) -> list[ScoreT | RewardFleetError]:
        """Send a batch of the coalescer; one of a single item as that."""
        if len(requests) == 1:
            return [await self._post_one(requests[0], deadline)]
        return await self._send(requests, deadline)

    async def _send(
        self, requests: list[RequestT], deadline: float
    ) -> list[ScoreT | RewardFleetError]:
        """Send a batch in parts. The items of a request that is refused have its failure."""
        parts = (self._send_part(part, deadline) for part in self._split(requests))
        return [answer for part in await asyncio.gather(*parts) for answer in part]

    def _split(self, requests: list[RequestT]) -> list[list[RequestT]]:
        """Split a batch into parts that are small enough in items and in bytes."""
        max_items = self._transport.batch_items(len(requests))
        parts: list[list[RequestT]] = []
        size = 0
        for request in requests:
            size += self._media_bytes(request)
            if not parts or len(parts[-1]) >= max_items or size > MAX_BATCH_BYTES:
                parts.append([])
                size = self._media_bytes(request)
            parts[-1].append(request)
        return parts

    async def _send_part(
        self, requests: list[RequestT], deadline: float
    ) -> list[ScoreT | RewardFleetError]:
        """Send one request for several items; return one answer per item."""
        count = len(requests)
        batch = BatchRequest[Any].model_construct(items=requests)
        response_type: Any = BatchResponse[self.score_type]  # type: ignore[name-defined]
        try:
            response: BatchResponse[ScoreT] = await self._transport.call(
                "POST", "/score/batch", response_type, batch, item_count=count, deadline=deadline
            )
            if len(response.results) != len(requests):
                raise BackendFailed(
                    f"the service sent {len(response.results)} results for {len(requests)} items"
                )
        except (TooLarge, NotEncoded):  # smaller ones, at last item by item
            middle = len(requests) // 2
            if not middle:
                return [self._scored(await self._post_one(requests[0], deadline))]
            halves = (requests[:middle], requests[middle:])
            parts = await asyncio.gather(*(self._send_part(half, deadline) for half in halves))
            return parts[0] + parts[1]
        except RewardFleetError as error:  # each caller gets its own exception object
            return [error, *(copy.copy(error) for _ in requests[1:])]
        _share_provenance(response)
        error_of = RewardFleetError.from_problem
        again = {
            place: self._retried(requests[place], error_of(score.error), deadline)
            for place, score in enumerate(response.results)
            if score.error is not None
        }
        answers: list[ScoreT | RewardFleetError] = [*response.results]
        for place, score in zip(again, await asyncio.gather(*again.values()), strict=True):
            answers[place] = score
        return answers

    async def _retried(self, request: RequestT, error: RewardFleetError, deadline: float) -> ScoreT:
        """Send an item of a batch that failed again if its error is retryable."""
        pause = retry_wait(1, error)
        if not error.retryable or asyncio.get_running_loop().time() + pause >= deadline:
            return self._scored(error)
        await asyncio.sleep(pause)
        return self._scored(await self._post_one(request, deadline))

    def _scored(self, answer: ScoreT | RewardFleetError) -> ScoreT:
        """Return an answer as a score, which has the error of a failure."""
        return failed(answer, self.score_type) if isinstance(answer, RewardFleetError) else answer

    async def _post_one(self, request: RequestT, deadline: float) -> ScoreT | RewardFleetError:
        try:
            return await self._transport.call(
                "POST", "/score", self.score_type, request, deadline=deadline
            )
        except TooLarge as error:
            smaller = self._without_policy_text(request)
            return error if smaller is None else await self._post_one(smaller, deadline)
        except RewardFleetError as error:
            return error


def _share_provenance(response: BatchResponse[ScoreT]) -> None:
    """Add the shared provenance of a batch to its items, so that they equal single answers."""
    shared = {backend: to_json(each) for backend, each in response.provenance.items()}
    for score in response.results:
        if score.backend in shared:  # each item gets a copy of its own
            score.provenance = {**from_json(shared[score.backend]), **score.provenance}
