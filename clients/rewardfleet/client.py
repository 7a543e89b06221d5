"""The async client: typed calls in, typed answers or typed errors out."""

import math
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypedDict, Unpack
from urllib.parse import urlsplit

from pydantic import JsonValue, ValidationError

from .clips import ClipLike, body_bytes, first_finding, video_request
from .endpoint import Endpoint, in_thread
from .episode_client import EpisodeClient
from .service import OnFailure, RewardRule, ServiceClient
from .wire.code import CodeRequest, CodeScore, DatasetTests, Limits, PlainTests
from .wire.errors import InvalidRequest, RewardFleetError
from .wire.video import VideoHealth, VideoRequest, VideoScore

#: Tests as a model, or as the mapping that JSON has for it.
TestsLike = PlainTests | DatasetTests | Mapping[str, Any]


class VideoOptions(TypedDict, total=False):
    """What `video_request` takes beside task and clip."""

    fps: float | None
    nframes: int
    max_pixels: int
    backend: str | None
    backend_kwargs: dict[str, JsonValue] | None


class CodeOptions(TypedDict, total=False):
    """What `code_request` takes beside program and tests."""

    critique: str | None
    original: str | None
    original_passed: bool | None
    mode: Literal["pass_rate", "all_pass"]
    limits: Limits | Mapping[str, float]
    language: Literal["python"]


def code_request(revision: str, tests: TestsLike, **options: Unpack[CodeOptions]) -> CodeRequest:
    """Make a request of a program, or a text with one in a fence, and its tests.

    Args:
        revision: The program, or the text.
        tests: What it must pass; at least one test.
        options: `critique`, `original`, `original_passed`, `mode`, `limits` and `language`; see
            `CodeRequest`.

    Raises:
        InvalidRequest: As the service would say.
    """
    try:
        return CodeRequest.model_validate({"revision": revision, "tests": tests, **options})
    except ValidationError as error:
        raise InvalidRequest(first_finding(error)) from None


class VideoClient(ServiceClient[VideoRequest, VideoScore]):
    """The video service. Made by `RewardFleet`."""

    def __init__(self, endpoint: Endpoint, rule: RewardRule, *, coalesce_s: float) -> None:
        super().__init__(
            endpoint, rule, score_type=VideoScore, body_bytes=body_bytes, coalesce_s=coalesce_s
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
        return await self._one(request, deadline)

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

    async def health(self) -> VideoHealth:
        """Ask which judges are loaded."""
        return await self._endpoint.get("/health", VideoHealth)


class CodeClient(ServiceClient[CodeRequest, CodeScore]):
    """The code service. Made by `RewardFleet`."""

    def __init__(self, endpoint: Endpoint, rule: RewardRule, *, coalesce_s: float) -> None:
        super().__init__(
            endpoint, rule, score_type=CodeScore, body_bytes=_code_bytes, coalesce_s=coalesce_s
        )

    async def score(
        self, revision: str, tests: TestsLike, **options: Unpack[CodeOptions]
    ) -> CodeScore:
        """Have one program judged; the options are those of `code_request`.

        Raises:
            RewardFleetError: As the service told it; see `rewardfleet.wire.errors`.
        """
        request = code_request(revision, tests, **options)
        return await self._one(request, self._endpoint.deadline())

    async def reward(
        self, revision: str, tests: TestsLike, **options: Unpack[CodeOptions]
    ) -> float:
        """Have one program judged and return its score as the reward.

        Raises:
            RewardFleetError: Only where `on_failure` is "raise".
        """
        try:
            score = await self.score(revision, tests, **options)
        except RewardFleetError as error:
            return self._rule.failed(error)
        return self._rule.reward(score)


def _code_bytes(request: CodeRequest) -> int:
    return len(request.model_dump_json())


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
        code: Likewise of the code service.
        episode: Likewise of the episode service. Where its groups or runs are remembered, its
            replicas must share one `--run-state-file`.
        api_key: Sent as bearer key.
        timeout_s: Seconds for a whole call, waiting and trying again included.
        max_concurrency: Samples under way at once at each replica; more wait here, in order.
            Twice a service's `--max-in-flight` has its backend always find a next one.
        coalesce_s: Seconds that a call of `score` or `reward` waits for others, to travel with
            them as one batch. 0.005 suits trainers that call once a sample; 0 sends each by
            itself. In [0, 1].
        on_failure: What a failed or abstained judgment gives as reward: "raise" raises it, a
            number (`math.nan`, say) is returned instead, with a warning in the log.
        binary_reward: Rewards of the video service are 1.0 for scores of at least
            `success_threshold`, else 0.0. With False, they are the scores themselves, as those
            of the code service always are.
        success_threshold: In [0, 1].
    """

    def __init__(
        self,
        *,
        video: str | Sequence[str] | None = None,
        code: str | Sequence[str] | None = None,
        episode: str | Sequence[str] | None = None,
        api_key: str | None = None,
        timeout_s: float = 120.0,
        max_concurrency: int = 128,
        coalesce_s: float = 0.0,
        on_failure: OnFailure = "raise",
        binary_reward: bool = True,
        success_threshold: float = 0.5,
    ) -> None:
        if not 0 <= success_threshold <= 1:
            raise ValueError(f"success_threshold: give a number in [0, 1], not {success_threshold}")
        if not (timeout_s > 0 and math.isfinite(timeout_s)):
            raise ValueError(f"timeout_s: give seconds above 0, not {timeout_s}")
        if max_concurrency < 1:
            raise ValueError(f"max_concurrency: give 1 or more, not {max_concurrency}")
        if not 0 <= coalesce_s <= 1:
            raise ValueError(f"coalesce_s: give seconds in [0, 1], not {coalesce_s}")
        if video is None and code is None and episode is None:
            raise ValueError("give the URL of a service, e.g. video=... or code=...")
        self._endpoints = {
            name: Endpoint(
                _base_urls(name, urls),
                api_key=_header_safe(api_key),
                timeout_s=timeout_s,
                max_concurrency=max_concurrency,
            )
            for name, urls in (("video", video), ("code", code), ("episode", episode))
            if urls is not None
        }
        rule = RewardRule(on_failure, binary_reward, success_threshold)
        as_it_is = RewardRule(on_failure, binary_reward=False, success_threshold=0.0)
        wait = {"coalesce_s": coalesce_s}
        endpoints = self._endpoints
        self._video = VideoClient(endpoints["video"], rule, **wait) if video is not None else None
        self._code = CodeClient(endpoints["code"], as_it_is, **wait) if code is not None else None
        self._episode = (
            EpisodeClient(endpoints["episode"], as_it_is) if episode is not None else None
        )

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        for endpoint in self._endpoints.values():
            await endpoint.aclose()

    @property
    def video(self) -> VideoClient:
        """The video service.

        Raises:
            AttributeError: This fleet was given none.
        """
        if self._video is None:
            raise AttributeError("this fleet has no video service: give video=URL")
        return self._video

    @property
    def code(self) -> CodeClient:
        """The code service.

        Raises:
            AttributeError: This fleet was given none.
        """
        if self._code is None:
            raise AttributeError("this fleet has no code service: give code=URL")
        return self._code

    @property
    def episode(self) -> EpisodeClient:
        """The episode service.

        Raises:
            AttributeError: This fleet was given none.
        """
        if self._episode is None:
            raise AttributeError("this fleet has no episode service: give episode=URL")
        return self._episode

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
