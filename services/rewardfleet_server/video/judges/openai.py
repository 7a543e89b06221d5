"""The judge `openai`: a model behind any OpenAI-compatible endpoint (vLLM, SGLang, Ollama, …).

The endpoint returns only the most likely tokens, so the score of the readout `probability` lies in
an interval, see `yes_interval`. The score is its middle; if it is too wide, the judge abstains.
"""

import asyncio
import base64
import itertools
import logging
import math
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

import cv2
from pydantic import BaseModel, FilePath, HttpUrl, JsonValue, PositiveInt

from rewardfleet.text import read
from rewardfleet.wire.causes import VideoCause
from rewardfleet.wire.errors import BackendFailed, Unavailable
from rewardfleet_server.video.clip.frames import UNKNOWN_FPS, Clip, as_mp4
from rewardfleet_server.video.judges.score_parser import PARSER_VERSION, Scale, parse_score
from rewardfleet_server.video.prompts import PERCENTAGE, YES_OR_NO, Prompt
from rewardfleet_server.video.settings import VideoSettings, openai_api_key

from . import Judgment
from .chat_endpoint import ChatEndpoint, Choice, Position
from .label_mass import HELP, LABEL_MASS, checked_probabilities
from .options import PromptOptions
from .settings import BuiltInJudge, SamplingSettings, own
from .shown import ShownFrames

log = logging.getLogger(__name__)

_JPEG_QUALITY = 95
#: The maximum of OpenAI's own API, and vLLM's default limit.
_TOP_LOGPROBS = 20
#: Enough for empty thoughts, white space and marks before a label.
_LABEL_TOKENS = 8
#: What may surround a label in its token.
_MARKS = re.compile(r"[\W_]+")
#: The widest interval of scores for which `probability` does not abstain.
_MAX_UNCERTAINTY = 0.1
#: Seconds between checks whether the endpoint is up.
_CHECK_SECONDS = 5
#: Seconds in which it must answer what the model is shown.
_PROOF_SECONDS = 60


class _Score(BaseModel, extra="forbid"):
    score: float


_SCHEMA: JsonValue = {"name": "score", "strict": True, "schema": _Score.model_json_schema()}
_FORMAT: JsonValue = {"type": "json_schema", "json_schema": _SCHEMA}


class OpenAISettings(SamplingSettings):
    """The settings of `openai`."""

    read_if: ClassVar = {
        **dict.fromkeys(("temperature", "top_p"), ("readout", "structured", "text")),
        "min_label_mass": ("readout", "probability"),
    }

    url: HttpUrl | None = own(None, "Base URL of the endpoint, which --openai-url sets.")
    model: str | None = own(None, "Model to request there, which --openai-model sets.")
    api_key_file: FilePath | None = own(
        None, "File with the endpoint's API key. Default: the variable OPENAI_API_KEY."
    )
    readout: Literal["structured", "text", "probability"] = own(
        "structured",
        "How the answer becomes a score. structured: it can only be JSON with a number; where the "
        "endpoint does not honor that, as text. text: parse it. probability: P(yes) against P(no).",
    )
    min_label_mass: float = own(0.1, HELP, ge=0, le=1)
    media: Literal["images", "video"] = own(
        "images",
        "How frames are sent. images: one JPEG per frame. video: one mp4, if the endpoint accepts "
        "video_url.",
    )
    concurrency: PositiveInt = own(32, "Requests at the endpoint at the same time.")


def build(settings: OpenAISettings, service: VideoSettings) -> "OpenAIJudge":
    """Build the judge `openai`.

    Raises:
        ValueError: The endpoint or the model is missing.
    """
    if settings.url is None or settings.model is None:
        raise ValueError("the judge openai needs --openai-url and --openai-model")
    endpoint = ChatEndpoint(
        url=str(settings.url),
        model=settings.model,
        api_key=openai_api_key(settings.api_key_file),
        concurrency=settings.concurrency,
        timeout_s=service.deadline_s,
    )
    return OpenAIJudge(endpoint, settings)


class OpenAIJudge:
    """Sends frames and question to `POST {url}/chat/completions`.

    Args:
        settings: The readout, the prompt, how frames are sent, and the sampling of text.
    """

    failure = None
    #: Why the endpoint cannot be used now, or None.
    outage: str | None = "the endpoint has not been asked yet"

    def __init__(self, endpoint: ChatEndpoint, settings: OpenAISettings) -> None:
        self._endpoint = endpoint
        self._readout = settings.readout
        template = settings.prompt_template
        shipped = YES_OR_NO if self._readout == "probability" else PERCENTAGE
        self._prompt = Prompt.of(template) if template else shipped
        self._media = settings.media
        self._sampling: dict[str, JsonValue] = (
            {"temperature": 0, "max_tokens": _LABEL_TOKENS}
            if self._readout == "probability"
            else settings.model_dump(include={"temperature", "top_p", "max_tokens"})
        )
        if "max_tokens" in settings.model_fields_set:  # of thoughts before a label
            self._sampling["max_tokens"] = settings.max_tokens
        self._min_mass = settings.min_label_mass
        self.deterministic = self._sampling["temperature"] == 0
        self._shown = ShownFrames(endpoint, self._show)
        self._format: Mapping[str, JsonValue] = {}  #: of answers, if the endpoint honors it
        self._provenance: Mapping[str, JsonValue] = {
            "judge": "openai",
            "url": endpoint.url,
            "model": endpoint.model,
            "readout": f"{self._readout} v{PARSER_VERSION}",
            "prompt": {**self._prompt.provenance},
            "media": self._media,
            "sampling": self._sampling,
            **({"min_label_mass": self._min_mass} if self._readout == "probability" else {}),
        }

    @property
    def provenance(self) -> Mapping[str, JsonValue]:
        found = {"rendered_prompt": self._shown.digest, "structured": bool(self._format)}
        return {**self._provenance, **found}

    def check_options(self, backend_kwargs: Mapping[str, JsonValue]) -> None:
        PromptOptions.of(backend_kwargs).prompt_or(self._prompt)

    async def judge(
        self, task_text: str, clip: Clip, backend_kwargs: Mapping[str, JsonValue]
    ) -> Judgment:
        options = PromptOptions.of(backend_kwargs)
        prompt = options.prompt_or(self._prompt)
        is_text = self._readout != "probability"
        more = self._format if prompt is PERCENTAGE else {}  # others may want other answers
        if not is_text:
            more = {"logprobs": True, "top_logprobs": _TOP_LOGPROBS}
        choice = await self._ask(prompt, task_text, clip, {**self._sampling, **more})
        # After the answer: the endpoint may have been restarted while this waited for it.
        is_proved = await self._shown.prove(len(clip.frames), clip.fps or UNKNOWN_FPS)
        if choice.refusal is not None:
            text = f"{choice.message.content or ''}\n[refused: {choice.refusal}]"
            judgment = Judgment(None, text, cause=VideoCause.REFUSED)
        elif not is_text:
            judgment = _probability(choice, self._min_mass)
        else:
            # Parsing a long chain of thought takes milliseconds.
            mode = options.mode(prompt, is_percentage=prompt is PERCENTAGE)
            judgment = await asyncio.to_thread(_text, choice, mode)
        return replace(judgment, provenance={"shown": "proved" if is_proved else "unproved"})

    async def _ask(
        self, prompt: Prompt, task_text: str, clip: Clip | None, more: Mapping[str, JsonValue]
    ) -> Choice:
        make_parts = _video_parts if self._media == "video" else _images
        parts = await asyncio.to_thread(make_parts, clip) if clip else []
        question = {"type": "text", "text": prompt.render(task_text)}
        return await self._endpoint.complete(
            [{"role": "user", "content": [*parts, question]}], more
        )

    async def _show(self, clip: Clip | None) -> Choice:
        """Show a clip, for the tokens of the prompt; without one, also find the format."""
        ask = partial(self._ask, self._prompt, "Ready?", clip)
        if clip is None and self._readout == "structured" and self._prompt is PERCENTAGE:
            wanted = {"response_format": _FORMAT}
            try:
                answer = (await ask({**self._sampling, **wanted})).message.content or ""
            except BackendFailed as error:
                answer = error.detail
            is_honored = answer.lstrip().startswith("{")  # which the question does not ask for
            if not is_honored:
                log.warning(
                    "the endpoint honors no response_format, so text is parsed: %.99s", answer
                )
            self._format = wanted if is_honored else {}
        try:
            return await ask({"max_tokens": 1, "return_token_ids": True})
        except BackendFailed:  # OpenAI's own API refuses fields that it does not know
            return await ask({"max_tokens": 1})

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Until the end, `outage` says whether the endpoint answers."""
        await self._check()
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            await self._endpoint.aclose()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            await self._check()

    async def _check(self) -> None:
        outage = await self._endpoint.outage()
        if outage is None:
            try:
                async with asyncio.timeout(_PROOF_SECONDS):
                    await self._shown.prove()
            except (BackendFailed, Unavailable, TimeoutError) as error:
                outage = getattr(error, "detail", "the endpoint answers too slowly")
        if outage not in {None, self.outage}:
            log.warning(outage)
        self.outage = outage


def _images(clip: Clip) -> list[dict[str, object]]:
    parts: list[dict[str, object]] = []
    for frame in clip.frames:
        bgr = cv2.cvtColor(frame, cv2.COLOR_RGB2BGR)
        _, jpeg = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])
        parts.append(_part("image_url", "image/jpeg", jpeg.tobytes()))
    return parts


def _video_parts(clip: Clip) -> list[dict[str, object]]:
    """Return an mp4 whose odd last frame is shown twice.

    vLLM leaves it out for Qwen2.5-VL, which merges frames in pairs, and reads no single frame.
    """
    last = clip.frames[-1:] if len(clip.frames) % 2 else ()
    with as_mp4(replace(clip, frames=(*clip.frames, *last))) as path:
        return [_part("video_url", "video/mp4", path.read_bytes())]


def _part(kind: str, media_type: str, content: bytes) -> dict[str, object]:
    url = f"data:{media_type};base64,{base64.b64encode(content).decode('ascii')}"
    return {"type": kind, kind: {"url": url}}


def _text(choice: Choice, mode: Scale) -> Judgment:
    text = choice.message.content or ""
    is_cut = choice.finish_reason == "length"
    parsed = parse_score(text, mode=mode, truncated=is_cut)
    if parsed.score is not None:
        return Judgment(parsed.score, text)
    cause = VideoCause.ANSWER_CUT if is_cut else None
    return Judgment(None, f"{text}\n[{parsed.reason}]", cause=cause)


def _probability(choice: Choice, min_mass: float) -> Judgment:
    if choice.logprobs is None:
        raise BackendFailed("the endpoint returned no log-probabilities; it must support them")
    text = choice.message.content or ""
    positions = _after_thoughts(choice.logprobs.content)
    if not positions:
        reason = "max_tokens ended the answer within its thoughts"
        return Judgment(None, f"{text}\n[{reason}]", cause=VideoCause.ANSWER_CUT)
    yes, no, unseen = label_probabilities(positions)
    low, high = yes_interval(yes, no, unseen)
    details = {"uncertainty": high - low, "label_mass": yes + no}
    LABEL_MASS.labels("openai").observe(yes + no)
    if high - low > _MAX_UNCERTAINTY:
        reason = f"P(yes) lies between {low:.3f} and {high:.3f}: the tokens leave too much unknown"
    elif yes + no < min_mass:
        reason = f"yes and no have {yes + no:.2g} of the probability, less than {min_mass:g}"
    else:
        return Judgment((low + high) / 2, text, details)
    return Judgment(None, f"{text}\n[{reason}]", details)


def _after_thoughts(positions: Sequence[Position]) -> Sequence[Position]:
    """Return the positions of the answer; none if the thoughts do not end."""
    text = "".join(position.token for position in positions)
    turn = read(text).last
    thoughts = text.find(turn.text) + turn.thoughts[-1].end if turn.thoughts else 0
    starts = itertools.accumulate((len(each.token) for each in positions), initial=0)
    return [each for each, start in zip(positions, starts, strict=False) if start >= thoughts]


def label_probabilities(positions: Sequence[Position]) -> tuple[float, float, float]:
    """Return the probabilities of yes and of no, and what the tokens leave unknown.

    A label has the summed probability of its spellings, which differ in case, white space and
    marks. It may follow tokens of nothing else. See `checked_probabilities` for errors.
    """
    labels = {"yes": 0.0, "no": 0.0}
    unseen, reached = 0.0, 1.0
    for position in positions:
        probabilities = checked_probabilities(each.logprob for each in position.top_logprobs)
        for token, probability in zip(position.top_logprobs, probabilities, strict=True):
            label = _MARKS.sub("", token.token).casefold()
            if label in labels:
                labels[label] += reached * probability
        unseen += reached * max(0.0, 1.0 - math.fsum(probabilities))
        if _MARKS.sub("", position.token):
            break
        reached *= checked_probabilities([position.logprob])[0]
    return labels["yes"], labels["no"], unseen


def yes_interval(yes: float, no: float, unseen: float) -> tuple[float, float]:
    """Return the least and the largest P(yes) / (P(yes) + P(no)), if labels may be unseen."""
    if not yes and not no:
        return 0.0, 1.0
    return yes / (yes + (no or unseen)), (yes or unseen) / ((yes or unseen) + no)


JUDGE = BuiltInJudge(
    "openai",
    OpenAISettings,
    build,
    "A model behind any OpenAI-compatible endpoint: vLLM, SGLang, Ollama, a cloud.",
    {
        "structured": "The number in the JSON that the answer can only be.",
        "text": "The number or the verdict that the answer states.",
        "probability": "P(yes) / (P(yes) + P(no)), behind thoughts and marks.",
    },
    (
        *("--openai-url", "http://127.0.0.1:8000/v1"),
        *("--openai-model", "Qwen/Qwen2.5-VL-7B-Instruct"),
    ),
)
