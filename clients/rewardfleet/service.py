"""The base of all service clients: single items, batches, and rewards."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from pydantic_core import from_json, to_json

from .http.coalesce import Coalescer
from .http.replicas import rest_seconds, retry_wait
from .http.tracing import span
from .http.transport import MAX_BATCH_BYTES, NotEncoded, ServiceTransport
from .wire.errors import (
    BackendFailed,
    DeadlineExceeded,
    Forbidden,
    InvalidRequest,
    MethodNotAllowed,
    RewardFleetError,
    TooLarge,
    Unauthorized,
)
from .wire.policy_text import POLICY_FIELDS, UNUSABLE
from .wire.score import (
    MAX_BATCH_ITEMS,
    BatchRequest,
    BatchResponse,
    Request,
    Score,
    Scores,
    abstained,
    failed,
)

if TYPE_CHECKING:
    from .score_log.of_client import ClientLog

RequestT = TypeVar("RequestT", bound=Request)
ScoreT = TypeVar("ScoreT", bound=Score)

log = logging.getLogger(__name__)

#: Errors that the caller must correct, which no reward replaces.
CALLER_ERRORS = InvalidRequest | Unauthorized | Forbidden | MethodNotAllowed | TooLarge

#: "raise", or the reward that replaces a missing one.
OnFailure = Literal["raise"] | float


@dataclass(frozen=True)
class RewardPolicy:
    """The rule by which a score, or a failure, becomes a reward.

    Its options are those of `RewardFleet`. An invalid request always raises.

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
        """Return the reward of a score.

        Raises:
            RewardFleetError: There is no score, and `on_failure` is "raise".
        """
        if score.error is not None:
            return self.failed(RewardFleetError.from_problem(score.error))
        if score.score is None:
            return self.failed(abstained(score))
        if self.binary_reward:
            return float(score.score >= self.success_threshold)
        return score.score

    async def reward_of(self, answer: Awaitable[Score]) -> float:
        """Return the reward of a score that is awaited, or the one that replaces it.

        Raises:
            RewardFleetError: There is no reward, and `on_failure` is "raise".
        """
        try:
            score = await answer
        except RewardFleetError as error:
            return self.failed(error)
        return self.reward(score)

    def failed(self, error: RewardFleetError) -> float:
        """Return the reward that replaces a missing one, and log the failure as a warning.

        Raises:
            RewardFleetError: `error`, if it is one of `CALLER_ERRORS`, which the caller must
                correct: its request, the URL or the key; or if `on_failure` is "raise".
        """
        if isinstance(error, CALLER_ERRORS):
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


class ServiceClient:
    """A client of one service.

    Args:
        transport: Sends its requests.
        policy: Turns scores into rewards.
        coalesce_s: Seconds in which a `BatchClient` collects single calls; 0 for none.
        run: The training run of its requests.
        log: Keeps what was scored; None if nothing does.
    """

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
        coalesce_s: float = 0.0,  # noqa: ARG002 - for subclasses
        run: str | None = None,
        log: "ClientLog | None" = None,
    ) -> None:
        self._transport = transport
        self.policy = policy
        self._run = run
        self._log = log

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        await self._transport.aclose()


class BatchClient(ServiceClient, Generic[RequestT, ScoreT]):
    """A client of a service whose items are independent, so that batches may be split."""

    score_type: type[ScoreT]

    def __init__(
        self,
        transport: ServiceTransport,
        policy: RewardPolicy,
        *,
        coalesce_s: float = 0.0,
        run: str | None = None,
        log: "ClientLog | None" = None,
    ) -> None:
        super().__init__(transport, policy, run=run, log=log)
        self._coalescer: Coalescer[RequestT, ScoreT] | None = None
        if coalesce_s:
            self._coalescer = Coalescer(self._send, window_s=coalesce_s, max_items=MAX_BATCH_ITEMS)

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

    async def score_batch(self, requests: Sequence[RequestT]) -> list[ScoreT]:
        """Score several items, in order. An item that fails has its own `error`.

        Many items are split over several concurrent requests. An item with a retryable error is
        sent again as a single request.

        Raises:
            InvalidRequest: `requests` is empty.
            RewardFleetError: All requests were refused.
        """
        if not requests:
            raise InvalidRequest("items: a batch has 1 item or more")
        items = [self._labeled(request) for request in requests]
        parts = self._split(items)
        service = self._transport.service
        with span(f"{service}.score_batch", service, len(requests)):
            answers = await self._send_parts(parts, self._transport.deadline())
        if self._log is not None:
            self._log.add(items, _join(parts, answers))
        failures = [answer for answer in answers if isinstance(answer, RewardFleetError)]
        if len(failures) == len(answers):
            raise failures[0]
        return Scores(
            failed(answer, self.score_type) if isinstance(answer, RewardFleetError) else answer
            for answer in _join(parts, answers)
        )

    async def rewards(self, requests: Sequence[RequestT]) -> list[float]:
        """Score several items and return their rewards, in the same order.

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
            try:
                answer = await self._coalescer.submit(request, deadline)
            except RewardFleetError as error:
                answer = error
        if self._log is not None:
            self._log.add([request], [answer])
        if isinstance(answer, RewardFleetError):
            raise answer
        return answer

    def _labeled(self, request: RequestT) -> RequestT:
        """Return a request with the run of this client, if it has none."""
        if self._run is None or not self.has_run_label or getattr(request, "run", None):
            return request
        return request.model_copy(update={"run": self._run})

    async def _send(
        self, requests: list[RequestT], deadline: float
    ) -> list[ScoreT | RewardFleetError]:
        """Send a batch of the coalescer; if a request fails, each of its items fails."""
        if len(requests) == 1:
            return [await self._post_one(requests[0], deadline)]
        parts = self._split(requests)
        return _join(parts, await self._send_parts(parts, deadline))

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

    async def _send_parts(
        self, parts: list[list[RequestT]], deadline: float
    ) -> list[list[ScoreT | RewardFleetError] | RewardFleetError]:
        return await asyncio.gather(*(self._send_part(part, deadline) for part in parts))

    async def _send_part(
        self, requests: list[RequestT], deadline: float
    ) -> list[ScoreT | RewardFleetError] | RewardFleetError:
        """Send one request for several items; return one answer per item, or its failure."""
        batch = BatchRequest[Any].model_construct(items=requests)
        try:
            response = await self._transport.call(
                "POST",
                "/score/batch",
                BatchResponse[self.score_type],  # type: ignore[name-defined] # made at run time
                batch,
                item_count=len(requests),
                deadline=deadline,
            )
        except (TooLarge, NotEncoded):  # smaller ones, at last item by item
            middle = len(requests) // 2
            if not middle:
                return [await self._post_one(requests[0], deadline)]
            parts = [requests[:middle], requests[middle:]]
            return _join(parts, await self._send_parts(parts, deadline))
        except RewardFleetError as error:
            return error
        if len(response.results) != len(requests):
            return BackendFailed(
                f"the service sent {len(response.results)} results for {len(requests)} items"
            )
        _share_provenance(response)
        answers: list[ScoreT | RewardFleetError] = list(response.results)
        failed = [place for place, score in enumerate(response.results) if score.error is not None]
        again = (
            self._retry_item(requests[place], response.results[place], deadline) for place in failed
        )
        for place, answer in zip(failed, await asyncio.gather(*again), strict=True):
            answers[place] = answer
        return answers

    async def _retry_item(
        self, request: RequestT, score: ScoreT, deadline: float
    ) -> ScoreT | RewardFleetError:
        """Send an item of a batch that failed again if its error is retryable."""
        assert score.error is not None  # noqa: S101 - the caller has checked it
        error = RewardFleetError.from_problem(score.error)
        pause = rest_seconds(error) + retry_wait(1)
        is_late = isinstance(error, DeadlineExceeded)  # it would have the same time
        has_time = asyncio.get_running_loop().time() + pause < deadline
        if is_late or not (error.retryable and has_time):
            return error
        await asyncio.sleep(pause)
        return await self._post_one(request, deadline)

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


def _join(
    parts: list[list[RequestT]], answers: list[list[ScoreT | RewardFleetError] | RewardFleetError]
) -> list[ScoreT | RewardFleetError]:
    """Return the answers in the order of the requests; a failed part fails each of its items."""
    joined: list[ScoreT | RewardFleetError] = []
    for part, answer in zip(parts, answers, strict=True):
        if isinstance(answer, RewardFleetError):  # each caller gets its own exception object
            joined += [RewardFleetError.from_problem(answer.problem()) for _ in part]
        else:
            joined += answer
    return joined


def _share_provenance(response: BatchResponse[ScoreT]) -> None:
    """Add the shared provenance of a batch to its items, so that they equal single answers."""
    shared = {backend: to_json(each) for backend, each in response.provenance.items()}
    for score in response.results:
        if score.backend in shared:  # each item gets a copy of its own
            score.provenance = {**from_json(shared[score.backend]), **score.provenance}
