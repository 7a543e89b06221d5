"""`POST /v1/chat/completions` and `GET /v1/models`: the judges in OpenAI's format.

Stock RLinf (`reward.worker_type: api`) sends frames and a prompt, and reads a label or a number
from the answer. docs/trainers/rlinf.md describes how the prompt is read, and what a trend is.
"""

import binascii
import json
import logging
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rewardfleet.wire.chat import (
    ChatAnswer,
    ChatChoice,
    ChatCompletion,
    ChatError,
    ChatModel,
    ChatModels,
    ChatRequest,
)
from rewardfleet.wire.errors import InvalidRequest, RewardFleetError
from rewardfleet.wire.score import Status
from rewardfleet.wire.validation import validate, validate_json
from rewardfleet.wire.video import VideoRequest, VideoScore
from rewardfleet_server.engine import Engine
from rewardfleet_server.http.routes import Route
from rewardfleet_server.observe.telemetry import RequestContext

from .scorer import VideoScorer

log = logging.getLogger(__name__)

#: A smaller change of the judge's value, in either direction, is the trend `unclear`.
TREND_DEAD_ZONE = 0.05
#: A prompt with these words asks for one of them.
_TREND_WORDS = {"positive", "negative", "unclear"}
#: What is before and after the task in one form of prompt, and what is before it in the other.
_BEFORE_TASK, _AFTER_TASK = "performing the task: ", ". You are given"
_TASK_LINE = "Task:"
#: A prompt for two cameras, and how many frames it says each has.
_TWO_VIDEOS = re.compile(r"two synchronized (\d{1,4})-frame videos")
#: How many unknown names of models are remembered, and how much of one is logged.
_MAX_UNKNOWN_MODELS, _MAX_SHOWN = 100, 100


@dataclass(frozen=True)
class ChatQuery:
    model: str | None  #: the name that the request gives
    #: The clip; for a trend, its first and its last frame. They name no judge.
    items: Sequence[VideoRequest]
    is_trend: bool  #: whether the answer is a trend


class ChatApi:
    """Converts requests in OpenAI's format to those of `/score`, and the scores back."""

    def __init__(self, engine: Engine[VideoRequest, VideoScore], scorer: VideoScorer) -> None:
        self._engine = engine
        self._scorer = scorer
        self._unknown_models: set[str] = set()

    def routes(self) -> Sequence[Route[Any]]:
        return (
            Route(
                "/v1/chat/completions",
                "Score frames, or report their trend; OpenAI's format",
                ChatRequest,
                ChatCompletion,
                self._complete,
                decode_query,
                failure_model=ChatError,
            ),
            Route(
                "/v1/models",
                "The loaded judges; OpenAI's format",
                None,
                ChatModels,
                self._models,
                scores=False,
                failure_model=ChatError,
                method="GET",
            ),
        )

    async def _complete(self, query: ChatQuery, context: RequestContext) -> ChatCompletion:
        judge = {"backend": self._judge(query.model)}
        items = [item.model_copy(update=judge) for item in query.items]
        scores = await self._engine.score_batch(items, context)
        for score in scores:
            if score.error is not None:
                raise RewardFleetError.from_problem(score.error)
            shared = self._engine.scorer.provenance(score.backend)
            score.provenance = {**shared, **score.provenance}
        content = _trend(scores) if query.is_trend else _number(scores[0])
        abstained = any(score.status is Status.ABSTAINED for score in scores)
        refusal = "the judge abstained" if abstained else None
        return ChatCompletion(
            id=f"chatcmpl-{context.request_id}",
            created=int(time.time()),
            model=scores[0].backend,
            choices=[ChatChoice(message=ChatAnswer(content=content, refusal=refusal))],
            task_text=query.items[0].task_text,
            scores=scores,
        )

    async def _models(self, _: object, __: RequestContext) -> ChatModels:
        return ChatModels(data=[ChatModel(id=name) for name in self._scorer.judge_names])

    def _judge(self, model: str | None) -> str | None:
        """Return `model` if it names a judge, else None for the default one."""
        if model is None or model in self._scorer.loaded_names:
            return model
        shown = model[:_MAX_SHOWN]
        if shown not in self._unknown_models and len(self._unknown_models) < _MAX_UNKNOWN_MODELS:
            self._unknown_models.add(shown)
            default = self._scorer.judge_names[0]
            log.warning(
                "no judge is called %r; the default judge %s answers such requests", shown, default
            )
        return None


def decode_query(body: bytes) -> ChatQuery:
    """Convert a body, or raise InvalidRequest. It may run in another process."""
    request = validate_json(ChatRequest, body)
    prompt = next(part.text or "" for part in request.parts if part.type == "text")
    images = (part.image_url for part in request.parts if part.type == "image_url")
    urls = [image.url for image in images if image is not None]
    main = list(enumerate(urls))[: _main_frames(len(urls), prompt)]
    is_trend = set(re.findall("[a-z]+", prompt.lower())) >= _TREND_WORDS
    # A trend compares two clips of the same length, as some judges score longer clips higher.
    # And the last frame of a window is the first of a later one, whose score is then cached.
    clips = [main[:1], main[-1:]] if is_trend else [main]
    frames = [[_image(*indexed) for indexed in clip] for clip in clips]
    items = [{"task_text": task_of(prompt), "frames_base64": each} for each in frames]
    prefix = "the task in the text: "  # nothing else can be invalid
    videos = [validate(VideoRequest, item, prefix=prefix) for item in items]
    return ChatQuery(request.model, videos, is_trend)


def task_of(prompt: str) -> str:
    """Return the task that a prompt names; a prompt in no known form is the task itself."""
    # No regular expression: the time of a search for both ends could be quadratic.
    task, is_complete, _ = prompt.partition(_BEFORE_TASK)[2].partition(_AFTER_TASK)
    if is_complete:
        return task.strip()
    text = prompt.strip()
    if text.startswith(_TASK_LINE):
        return text.removeprefix(_TASK_LINE).partition("\n")[0].strip()
    return text


def _main_frames(count: int, prompt: str) -> int:
    """Return how many of `count` frames are the main camera's; they come first.

    RLinf's prompt names two videos of five frames whatever its configuration sends: one camera, or
    windows of another length.
    """
    found = _TWO_VIDEOS.search(prompt)
    if found is None or count == int(found[1]):
        return count
    if count % 2:
        raise InvalidRequest(
            f"the text names two synchronized videos, so send an even number of frames: those of "
            f"the main camera, then as many of the second one (got {count})"
        )
    return count // 2


def _image(index: int, url: str) -> bytes:
    head, _, content = url.partition(",")
    try:
        if not (head.startswith("data:") and head.endswith(";base64")):
            raise ValueError("not a data URL in base64, and other URLs are not fetched")  # noqa: TRY301 - one message for both
        return binascii.a2b_base64(content, strict_mode=True)
    except ValueError as error:
        raise InvalidRequest(
            f"image_url {index}: {error}; send a JPEG or PNG as data:image/jpeg;base64,… "
            f"(got {url[:40]!r})"
        ) from None


def _number(score: VideoScore) -> str:
    # Never in scientific notation, of which some parsers would read the first digits only.
    return "null" if score.score is None else f"{score.score:.6f}"


def _trend(scores: Sequence[VideoScore]) -> str:
    first, last = (_value(score) for score in scores)
    trend = None
    if first is not None and last is not None:
        is_clear = abs(last - first) > TREND_DEAD_ZONE
        trend = ("positive" if last > first else "negative") if is_clear else "unclear"
    return json.dumps({"trend": trend})


def _value(score: VideoScore) -> float | None:
    """Return the judge's progress if it reports one: its score may change at the very end only."""
    progress = score.details.get("progress")
    return progress if isinstance(progress, float) and score.score is not None else score.score
