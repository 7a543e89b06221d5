"""The async client: typed calls in, typed answers or typed errors out."""

import asyncio
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self, TypedDict, TypeVar, Unpack
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, JsonValue, ValidationError

from .clips import ClipLike, first_finding, video_request
from .wire.errors import (
    ERRORS,
    STATUS,
    BackendFailed,
    DeadlineExceeded,
    InvalidRequest,
    Problem,
    RewardFleetError,
    Unavailable,
)
from .wire.score import BatchRequest, BatchResponse, Score
from .wire.video import VideoHealth, VideoRequest, VideoScore

log = logging.getLogger(__name__)

ModelT = TypeVar("ModelT", bound=BaseModel)

#: HTTP status back to the error's class, for answers that carry no problem (a proxy's, say).
ERROR_OF_STATUS = {STATUS[kind]: error for kind, error in ERRORS.items()}

#: How much longer than the service the client waits, for the way there and back.
_TRANSPORT_SECONDS = 5.0

OnFailure = Literal["raise"] | float


class Abstained(RewardFleetError):
    """The judge answered, without a usable verdict; `score` has its words."""

    def __init__(self, score: Score) -> None:
        said = getattr(score, "model_output", "")
        super().__init__(f"judge {score.backend} abstained: {said[:200]}")
        self.score = score


class VideoOptions(TypedDict, total=False):
    """What `video_request` takes beside task and clip."""

    fps: float | None
    nframes: int
    max_pixels: int
    backend: str | None
    backend_kwargs: dict[str, JsonValue] | None


@dataclass(frozen=True)
class RewardRule:
    """How a score becomes a reward, and what a failure becomes."""

    on_failure: OnFailure
    binary_reward: bool
    success_threshold: float

    def reward(self, score: Score) -> float:
        if score.error is not None:
            return self.failed(ERRORS[score.error.kind].of(score.error))
        if score.score is None:
            return self.failed(Abstained(score))
        if self.binary_reward:
            return float(score.score >= self.success_threshold)
        return score.score

    def failed(self, error: RewardFleetError) -> float:
        if self.on_failure == "raise":
            raise error
        log.warning("no reward, %s is used instead: %s", self.on_failure, error)
        return self.on_failure


class RewardFleet:
    """The services of a fleet.

    ```python
    async with RewardFleet(video="http://127.0.0.1:18080") as fleet:
        reward = await fleet.video.reward("put the bowl on the plate", frames)
    ```

    Args:
        video: Base URL of the video service.
        api_key: Sent as bearer key.
        timeout_s: Seconds for a call, waiting at the service included.
        max_concurrency: Calls under way at once; more wait here, in order.
        on_failure: What a failed or abstained judgment gives as reward: "raise" raises it, a
            number (`math.nan`, say) is returned instead, with a warning in the log.
        binary_reward: Rewards are 1.0 for scores of at least `success_threshold`, else 0.0.
            With False, rewards are the scores themselves.
        success_threshold: In [0, 1].
    """

    def __init__(
        self,
        *,
        video: str,
        api_key: str | None = None,
        timeout_s: float = 120.0,
        max_concurrency: int = 64,
        on_failure: OnFailure = "raise",
        binary_reward: bool = True,
        success_threshold: float = 0.5,
    ) -> None:
        if not (on_failure == "raise" or isinstance(on_failure, int | float)):
            raise ValueError(f'on_failure: give "raise" or a number, not {on_failure!r}')
        if not 0 <= success_threshold <= 1:
            raise ValueError(f"success_threshold: give a number in [0, 1], not {success_threshold}")
        if urlsplit(video).scheme not in {"http", "https"} or not urlsplit(video).hostname:
            raise ValueError(f"video: give a URL such as http://127.0.0.1:18080, not {video!r}")
        if max_concurrency < 1:
            raise ValueError(f"max_concurrency: give a number above 0, not {max_concurrency}")
        if not (timeout_s > 0 and math.isfinite(timeout_s)):
            raise ValueError(f"timeout_s: give seconds above 0, not {timeout_s}")
        rule = RewardRule(on_failure, binary_reward, success_threshold)
        self._http = httpx.AsyncClient(
            headers={"authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=timeout_s + _TRANSPORT_SECONDS,
            limits=httpx.Limits(max_connections=max_concurrency),
            # A proxy of the environment is for the world outside, not for a fleet's own traffic.
            trust_env=False,
        )
        endpoint = Endpoint(self._http, video, timeout_s, asyncio.Semaphore(max_concurrency))
        self.video = VideoClient(endpoint, rule)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


class VideoClient:
    """The video service. Made by `RewardFleet`."""

    def __init__(self, endpoint: "Endpoint", rule: RewardRule) -> None:
        self._endpoint = endpoint
        self._rule = rule

    async def score(
        self, task_text: str, clip: ClipLike, **options: Unpack[VideoOptions]
    ) -> VideoScore:
        """Have one clip judged; the options are those of `video_request`.

        Raises:
            RewardFleetError: As the service told it; see `rewardfleet.wire.errors`.
        """
        request = await asyncio.to_thread(video_request, task_text, clip, **options)
        return await self._endpoint.post("/score", request, VideoScore)

    async def score_batch(self, requests: Sequence[VideoRequest]) -> list[VideoScore]:
        """Have several clips judged; a clip that fails carries its own `error`.

        Raises:
            RewardFleetError: The batch as a whole was refused, or has not 1 to 256 items.
        """
        try:
            batch = BatchRequest[VideoRequest](items=list(requests))
        except ValidationError as error:
            raise InvalidRequest(first_finding(error)) from None
        response = await self._endpoint.post("/score/batch", batch, BatchResponse[VideoScore])
        if len(response.results) != len(batch.items):
            raise BackendFailed(f"{len(response.results)} results came for {len(requests)} items")
        return response.results

    async def reward(
        self, task_text: str, clip: ClipLike, **options: Unpack[VideoOptions]
    ) -> float:
        """Have one clip judged and return its reward.

        Raises:
            RewardFleetError: Only where `on_failure` is "raise"; `Abstained` among them.
        """
        try:
            score = await self.score(task_text, clip, **options)
        except RewardFleetError as error:
            return self._rule.failed(error)
        return self._rule.reward(score)

    async def rewards(self, requests: Sequence[VideoRequest]) -> list[float]:
        """Have several clips judged and return their rewards, in the same order.

        Raises:
            RewardFleetError: Only where `on_failure` is "raise".
        """
        try:
            scores = await self.score_batch(requests)
        except RewardFleetError as error:
            return [self._rule.failed(error) for _ in requests]
        return [self._rule.reward(score) for score in scores]

    async def health(self) -> VideoHealth:
        """Ask which judges are loaded."""
        return await self._endpoint.get("/health", VideoHealth)


class Endpoint:
    """One service at one base URL: requests out, models or typed errors back."""

    def __init__(
        self, http: httpx.AsyncClient, base_url: str, timeout_s: float, places: asyncio.Semaphore
    ) -> None:
        self._http = http
        self._base_url = base_url.rstrip("/")
        self._timeout_s = timeout_s
        self._places = places

    async def post(self, path: str, body: BaseModel, answer: type[ModelT]) -> ModelT:
        content = await asyncio.to_thread(body.model_dump_json)
        headers = {
            "content-type": "application/json",
            "x-request-timeout": str(self._timeout_s),
        }
        request = self._http.build_request(
            "POST", self._base_url + path, content=content, headers=headers
        )
        return await self._send(request, answer)

    async def get(self, path: str, answer: type[ModelT]) -> ModelT:
        return await self._send(self._http.build_request("GET", self._base_url + path), answer)

    async def _send(self, request: httpx.Request, answer: type[ModelT]) -> ModelT:
        try:
            async with asyncio.timeout(self._timeout_s + _TRANSPORT_SECONDS), self._places:
                response = await self._http.send(request)
        except (TimeoutError, httpx.TimeoutException):
            raise DeadlineExceeded(
                f"no answer from {self._base_url} in {self._timeout_s:g} s"
            ) from None
        except httpx.RequestError as error:
            raise Unavailable(
                f"{self._base_url} cannot be reached: {type(error).__name__}: {error}"
            ) from error
        if response.status_code != 200:
            raise _error_of(response)
        try:
            return answer.model_validate_json(response.content)
        except ValidationError as error:
            raise BackendFailed(
                f"{self._base_url} answered what is no {answer.__name__}; is it a rewardfleet "
                "service of this version?"
            ) from error


def _error_of(response: httpx.Response) -> RewardFleetError:
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:
        error = ERROR_OF_STATUS.get(response.status_code, BackendFailed)
        return error(f"HTTP {response.status_code} without a problem: {response.text[:200]!r}")
    return ERRORS[problem.kind].of(problem)
