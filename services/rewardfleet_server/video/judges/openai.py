"""The judge `openai`: a model behind any OpenAI-compatible endpoint (vLLM, SGLang, Ollama, …).

Readouts:
  text         the model answers with a number or a verdict, which `score_parser.py` reads.
  probability  the model answers yes or no; the score is P(yes) / (P(yes) + P(no)) from the
               log-probabilities of the first token. Spellings that differ in case, spaces and
               punctuation are summed. The endpoint returns only the most likely tokens: a label
               that is not among them has a probability between 0 and the remainder, so the score
               lies in an interval. The score is the middle of the interval; if the interval is
               too wide, the judge abstains.
"""

import asyncio
import base64
import logging
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import cv2
from pydantic import JsonValue

from rewardfleet.wire.errors import BackendFailed
from rewardfleet_server.video.frames import Clip, Frame, as_mp4
from rewardfleet_server.video.prompts import PERCENTAGE, YES_OR_NO, Prompt
from rewardfleet_server.video.score_parser import PARSER_VERSION, ScoreMode, parse_score
from rewardfleet_server.video.settings import VideoSettings

from . import Judgment
from .chat_endpoint import ChatEndpoint, Choice, Token
from .options import PromptOptions, requested_prompt

log = logging.getLogger(__name__)

_JPEG_QUALITY = 95
#: The maximum of OpenAI's own API, and vLLM's default limit.
_TOP_LOGPROBS = 20
#: The widest interval of scores for which `probability` does not abstain.
_MAX_UNCERTAINTY = 0.1
#: Seconds between checks whether the endpoint is up.
_CHECK_SECONDS = 5


def build(settings: VideoSettings) -> "OpenAIJudge":
    """Build the judge `openai`.

    Raises:
        ValueError: The endpoint, the model or the prompt template is missing or invalid.
    """
    if settings.openai_url is None or settings.openai_model is None:
        raise ValueError("the judge openai needs --openai-url and --openai-model")
    if settings.readout not in {"text", "probability"}:
        raise ValueError(f"--readout {settings.readout}: openai has text and probability")
    return OpenAIJudge(
        url=str(settings.openai_url),
        model=settings.openai_model,
        api_key=settings.openai_api_key,
        readout="text" if settings.readout == "text" else "probability",
        prompt=Prompt.of(settings.prompt_template) if settings.prompt_template else None,
        media=settings.openai_media,
        temperature=settings.temperature,
        top_p=settings.top_p,
        max_tokens=settings.max_tokens,
        concurrency=settings.openai_concurrency,
        timeout_s=settings.deadline_s,
    )


class OpenAIJudge:
    """Sends frames and question to `POST {url}/chat/completions`.

    Args:
        url: Base URL of the endpoint.
        model: Model to request there.
        api_key: The endpoint's key, or None.
        readout: See the module.
        prompt: Replaces the readout's own prompt.
        media: Send one JPEG per frame, or one mp4.
        temperature: Of the readout `text`, 0 or more; 0 for greedy decoding.
        top_p: Of the readout `text`, in (0, 1].
        max_tokens: Of the readout `text`, the most tokens of a completion.
        concurrency: Requests at the endpoint at the same time.
        timeout_s: Seconds for one HTTP request.

    Attributes:
        outage: Why the endpoint cannot be used now, or None.
    """

    failure = None
    outage: str | None = None

    def __init__(
        self,
        *,
        url: str,
        model: str,
        api_key: str | None,
        readout: Literal["text", "probability"],
        prompt: Prompt | None,
        media: Literal["images", "video"],
        temperature: float,
        top_p: float,
        max_tokens: int,
        concurrency: int,
        timeout_s: float,
    ) -> None:
        self._endpoint = ChatEndpoint(
            url=url, model=model, api_key=api_key, concurrency=concurrency, timeout_s=timeout_s
        )
        self._readout = readout
        self._prompt = prompt or (PERCENTAGE if readout == "text" else YES_OR_NO)
        self._media = media
        self._sampling: dict[str, JsonValue] = (
            {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens}
            if readout == "text"
            else {"temperature": 0, "max_tokens": 1}
        )
        self.deterministic = self._sampling["temperature"] == 0

    @property
    def provenance(self) -> Mapping[str, JsonValue]:
        return {
            "judge": "openai",
            "url": self._endpoint.url,
            "model": self._endpoint.model,
            "readout": f"{self._readout} v{PARSER_VERSION}",
            "prompt": {**self._prompt.provenance},
            "media": self._media,
            "sampling": self._sampling,
        }

    def check_options(self, backend_kwargs: Mapping[str, JsonValue]) -> None:
        self._prompt_for(PromptOptions.of(backend_kwargs))

    async def judge(
        self, task_text: str, clip: Clip, backend_kwargs: Mapping[str, JsonValue]
    ) -> Judgment:
        options = PromptOptions.of(backend_kwargs)
        prompt = self._prompt_for(options)
        parts = await asyncio.to_thread(_video_parts if self._media == "video" else _images, clip)
        question = {"type": "text", "text": prompt.render(task_text)}
        choice = await self._complete([*parts, question])
        if self._readout == "probability":
            return _probability(choice)
        # Parsing a long chain of thought takes milliseconds.
        mode = options.mode(is_percentage=prompt is PERCENTAGE)
        return await asyncio.to_thread(_text, choice, mode)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Until the end, `outage` says whether the endpoint answers."""
        self.outage = await self._endpoint.outage()
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            await self._endpoint.aclose()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            outage = await self._endpoint.outage()
            if outage is not None and self.outage is None:
                log.warning(outage)
            self.outage = outage

    def _prompt_for(self, options: PromptOptions) -> Prompt:
        return requested_prompt("prompt_template", options.prompt_template) or self._prompt

    async def _complete(self, content: Sequence[Mapping[str, object]]) -> Choice:
        parameters: dict[str, object] = {**self._sampling}
        if self._readout == "probability":
            parameters |= {"logprobs": True, "top_logprobs": _TOP_LOGPROBS}
        return await self._endpoint.complete([{"role": "user", "content": content}], parameters)


def _images(clip: Clip) -> list[dict[str, object]]:
    return [
        {"type": "image_url", "image_url": {"url": _data_url("image/jpeg", _jpeg(frame))}}
        for frame in clip.frames
    ]


def _video_parts(clip: Clip) -> list[dict[str, object]]:
    with as_mp4(clip) as path:
        url = _data_url("video/mp4", path.read_bytes())
    return [{"type": "video_url", "video_url": {"url": url}}]


def _jpeg(frame: Frame) -> bytes:
    bgr = cv2.cvtColor(frame, cv2.COLOR_RGB2BGR)
    _, content = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])
    return content.tobytes()


def _data_url(media_type: str, content: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode('ascii')}"


def _text(choice: Choice, mode: ScoreMode) -> Judgment:
    text = choice.message.content or ""
    parsed = parse_score(text, mode=mode, truncated=choice.finish_reason == "length")
    return Judgment(
        parsed.score, text if parsed.score is not None else f"{text}\n[{parsed.reason}]"
    )


def _probability(choice: Choice) -> Judgment:
    if choice.logprobs is None:
        raise BackendFailed("the endpoint returned no log-probabilities; it must support them")
    tokens = choice.logprobs.content[0].top_logprobs
    low, high = yes_interval(tokens)
    text = choice.message.content or ""
    if high - low > _MAX_UNCERTAINTY:
        return Judgment(
            None,
            f"{text}\n[P(yes) lies between {low:.3f} and {high:.3f}: the {len(tokens)} most likely "
            "tokens leave too much probability unknown]",
        )
    return Judgment((low + high) / 2, text, {"uncertainty": high - low})


def yes_interval(tokens: Sequence[Token]) -> tuple[float, float]:
    """Return the smallest and the largest P(yes) / (P(yes) + P(no)) that the tokens allow.

    A label among the tokens has the summed probability of its spellings. Any other label has at
    most the probability that the tokens leave over.
    """
    yes = no = 0.0
    probabilities = [math.exp(min(token.logprob, 0.0)) for token in tokens]
    for token, probability in zip(tokens, probabilities, strict=True):
        label = token.token.strip().strip(".,!'\"").casefold()
        yes += probability * (label == "yes")
        no += probability * (label == "no")
    if not yes and not no:
        return 0.0, 1.0
    unseen = max(0.0, 1.0 - sum(probabilities))
    low = yes / (yes + (no or unseen))
    high = (yes or unseen) / ((yes or unseen) + no)
    return low, high
