"""The async client: typed calls in, typed answers or typed errors out."""

import asyncio
import copy
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self, TypedDict, Unpack
from urllib.parse import urlsplit

from pydantic import JsonValue

from .clips import ClipLike, body_bytes, video_request
from .coalesce import Coalescer
from .endpoint import Endpoint, in_thread
from .replicas import backoff
from .wire.errors import (
    ERRORS,
    BackendFailed,
    InvalidRequest,
    RewardFleetError,
)
from .wire.score import MAX_BATCH_ITEMS, BatchRequest, BatchResponse, Score, Status
from .wire.video import VideoHealth, VideoRequest, VideoScore

log = logging.getLogger(__name__)

#: Bytes of one batch's body at most: below what the services take (64 MiB).
_MAX_BATCH_BYTES = 48 * 2**20

#: What becomes of one item of a batch.
Answer = VideoScore | RewardFleetError

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

    Connections are made on first use, for each event loop of each process. So a fleet can be
    pickled, used in forked workers, and in one event loop after another.

    Args:
        video: Base URL of the video service, or those of its replicas.
        api_key: Sent as bearer key.
        timeout_s: Seconds for a whole call, waiting and trying again included.
        max_concurrency: Samples under way at once at each replica; more wait here, in order.
            Twice a service's `--max-in-flight` has its backend always find a next one.
        coalesce_s: Seconds that a call of `score` or `reward` waits for others, to travel with
            them as one batch. 0.005 suits trainers that call once a sample; 0 sends each by
            itself. In [0, 1].
        on_failure: What a failed or abstained judgment gives as reward: "raise" raises it, a
            number (`math.nan`, say) is returned instead, with a warning in the log.
        binary_reward: Rewards are 1.0 for scores of at least `success_threshold`, else 0.0.
            With False, rewards are the scores themselves.
        success_threshold: In [0, 1].
    """

    def __init__(
        self,
        *,
        video: str | Sequence[str],
        api_key: str | None = None,
        timeout_s: float = 120.0,
        max_concurrency: int = 128,
        coalesce_s: float = 0.0,
        on_failure: OnFailure = "raise",
        binary_reward: bool = True,
        success_threshold: float = 0.5,
    ) -> None:
        if not (on_failure == "raise" or isinstance(on_failure, int | float)):
            raise ValueError(f'on_failure: give "raise" or a number, not {on_failure!r}')
        if not 0 <= success_threshold <= 1:
            raise ValueError(f"success_threshold: give a number in [0, 1], not {success_threshold}")
        if not (timeout_s > 0 and math.isfinite(timeout_s)):
            raise ValueError(f"timeout_s: give seconds above 0, not {timeout_s}")
        if max_concurrency < 1:
            raise ValueError(f"max_concurrency: give 1 or more, not {max_concurrency}")
        if not 0 <= coalesce_s <= 1:
            raise ValueError(f"coalesce_s: give seconds in [0, 1], not {coalesce_s}")
        self._endpoint = Endpoint(
            _base_urls("video", video),
            api_key=_header_safe(api_key),
            timeout_s=timeout_s,
            max_concurrency=max_concurrency,
        )
        rule = RewardRule(on_failure, binary_reward, success_threshold)
        self.video = VideoClient(self._endpoint, rule, coalesce_s=coalesce_s)

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        await self._endpoint.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


def _header_safe(api_key: str | None) -> str | None:
    """Check a key before it is sent; what is wrong with it is told without the key."""
    key = (api_key or "").strip()
    if not (key.isascii() and (key.isprintable() or not key)):
        raise ValueError("api_key: a key is plain ASCII, in one line")
    return key or None


def _base_urls(service: str, given: str | Sequence[str]) -> list[str]:
    urls = [given] if isinstance(given, str) else list(given)
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query:
            raise ValueError(f"{service}: give a URL such as http://127.0.0.1:18080, not {url!r}")
    if not urls:
        raise ValueError(f"{service}: give one URL or more")
    return list(dict.fromkeys(url.rstrip("/") for url in urls))


class VideoClient:
    """The video service. Made by `RewardFleet`."""

    def __init__(self, endpoint: Endpoint, rule: RewardRule, *, coalesce_s: float) -> None:
        self._endpoint = endpoint
        self._rule = rule
        self._coalescer = (
            Coalescer(self._answers, window_s=coalesce_s, max_items=MAX_BATCH_ITEMS)
            if coalesce_s
            else None
        )

    async def score(
        self, task_text: str, clip: ClipLike, **options: Unpack[VideoOptions]
    ) -> VideoScore:
        """Have one clip judged; the options are those of `video_request`.

        Raises:
            RewardFleetError: As the service told it; see `rewardfleet.wire.errors`.
        """
        deadline = self._endpoint.deadline()
        request = await in_thread(lambda: video_request(task_text, clip, **options), deadline)
        if self._coalescer is not None:
            return await self._coalescer.ask(request, deadline)
        return await self._endpoint.post("/score", request, VideoScore, deadline=deadline)

    async def score_batch(self, requests: Sequence[VideoRequest]) -> list[VideoScore]:
        """Have several clips judged; a clip that fails carries its own `error`.

        Many clips travel in several requests, side by side, and are joined in order. A clip
        whose error is retryable is tried again by itself.

        Raises:
            RewardFleetError: All that was sent was refused as a whole, or nothing was given.
        """
        if not requests:
            raise InvalidRequest("items: a batch has 1 item or more")
        parts = self._split(list(requests))
        answers = await self._parts(parts, self._endpoint.deadline())
        failures = [answer for answer in answers if isinstance(answer, RewardFleetError)]
        if len(failures) == len(answers):
            raise failures[0]
        return [
            VideoScore(score=None, status=Status.ERROR, error=answer.problem())
            if isinstance(answer, RewardFleetError)
            else answer
            for answer in _joined(parts, answers)
        ]

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

    async def _answers(self, requests: list[VideoRequest], deadline: float) -> list[Answer]:
        """Answer what the coalescer gathered; a failure of the whole is each one's own."""
        if len(requests) == 1:
            return [await self._alone(requests[0], deadline)]
        parts = self._split(requests)
        return _joined(parts, await self._parts(parts, deadline))

    def _split(self, requests: list[VideoRequest]) -> list[list[VideoRequest]]:
        """Split a batch into parts that are small enough in items and in bytes."""
        most = self._endpoint.batch_items(len(requests))
        parts: list[list[VideoRequest]] = []
        size = 0
        for request in requests:
            added = body_bytes(request)
            if not parts or len(parts[-1]) >= most or size + added > _MAX_BATCH_BYTES:
                parts.append([])
                size = 0
            parts[-1].append(request)
            size += added
        return parts

    async def _parts(
        self, parts: list[list[VideoRequest]], deadline: float
    ) -> list[list[Answer] | RewardFleetError]:
        return await asyncio.gather(*(self._part(part, deadline) for part in parts))

    async def _part(
        self, requests: list[VideoRequest], deadline: float
    ) -> list[Answer] | RewardFleetError:
        """Send one request for several clips; return their answers, or why there are none."""
        batch = BatchRequest[VideoRequest].model_construct(items=requests)
        try:
            response = await self._endpoint.post(
                "/score/batch",
                batch,
                BatchResponse[VideoScore],
                samples=len(requests),
                deadline=deadline,
            )
        except RewardFleetError as error:
            return error
        if len(response.results) != len(requests):
            return BackendFailed(f"{len(response.results)} results came for {len(requests)} items")
        return await asyncio.gather(
            *(
                self._settled(request, _with_provenance(score, response), deadline)
                for request, score in zip(requests, response.results, strict=True)
            )
        )

    async def _settled(self, request: VideoRequest, score: VideoScore, deadline: float) -> Answer:
        """Try an item of a batch again where its error says that this may help."""
        if score.error is None:
            return score
        error = ERRORS[score.error.kind].of(score.error)
        pause = (error.retry_after or 0.0) + backoff(1)
        if not error.retryable or asyncio.get_running_loop().time() + pause >= deadline:
            return error
        await asyncio.sleep(pause)
        return await self._alone(request, deadline)

    async def _alone(self, request: VideoRequest, deadline: float) -> Answer:
        try:
            return await self._endpoint.post("/score", request, VideoScore, deadline=deadline)
        except RewardFleetError as error:
            return error


def _joined(
    parts: list[list[VideoRequest]], answers: list[list[Answer] | RewardFleetError]
) -> list[Answer]:
    """Put the answers in the order of the requests; the failure of a part is that of its items."""
    joined: list[Answer] = []
    for part, answer in zip(parts, answers, strict=True):
        if isinstance(answer, RewardFleetError):  # each caller gets an exception of his own
            joined += [ERRORS[answer.kind].of(answer.problem()) for _ in part]
        else:
            joined += answer
    return joined


def _with_provenance(score: VideoScore, response: BatchResponse[VideoScore]) -> VideoScore:
    """Give an item what the service tells once for the whole batch, as a single answer has it."""
    shared = copy.deepcopy(response.provenance.get(score.backend, {}))
    score.provenance = {**shared, **score.provenance}
    return score
