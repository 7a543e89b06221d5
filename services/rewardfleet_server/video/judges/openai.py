"""The judge `openai`: a model behind any OpenAI-compatible endpoint (vLLM, SGLang, Ollama, …).

Engines sample videos again, such as at 2 frames per second, and do not say what they leave out. So
it is proved by the tokens of prompts that each frame reaches the model: clips with 2, 4 and more
frames are shown, and all pairs must add as many tokens as the second one.
"""

import asyncio
import base64
import hashlib
import logging
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

import cv2
import numpy as np
from pydantic import BaseModel, FilePath, HttpUrl, JsonValue, PositiveInt, ValidationError

from rewardfleet.wire.causes import VideoCause
from rewardfleet.wire.errors import BackendFailed, Unavailable
from rewardfleet_server.video.clip.frames import UNKNOWN_FPS, Clip, as_mp4
from rewardfleet_server.video.judges.score_parser import PARSER_VERSION
from rewardfleet_server.video.prompts import PERCENTAGE, YES_OR_NO, Prompt
from rewardfleet_server.video.settings import VideoSettings, openai_api_key

from . import BackendKwargs, Judgment
from .chat_endpoint import ChatEndpoint, Choice
from .labels import HELP, LABEL_MASS, spellings
from .options import PromptOptions
from .settings import BuiltInJudge, SamplingSettings, own
from .vlm import Completion
from .vlm.readouts import YES_AND_NO, LabelReadout, TextReadout

log = logging.getLogger(__name__)

_JPEG_QUALITY = 95
#: The maximum of OpenAI's own API, and vLLM's default limit.
_LOGPROBS: Mapping[str, JsonValue] = {"logprobs": True, "top_logprobs": 20}
_LABEL_TOKENS = 8  #: enough for empty thoughts, white space and marks before a label
_CHECK_SECONDS = 5  #: seconds between checks whether the endpoint is up
_PROOF_SECONDS = 60  #: seconds in which it must answer what the model is shown
_LEAST_FRAMES = 16  #: the shortest clip that is proved is that of a default request
#: What to do if frames are left out. The flags are those of vLLM 0.32.
_REMEDY = (
    "use --set media=images, or start vLLM with --media-io-kwargs "
    '\'{"video": {"video_backend": "opencv", "num_frames": -1}}\' '
    "--mm-processor-kwargs '{\"do_sample_frames\": false}'; of images, send fewer"
)


class _Score(BaseModel, extra="forbid"):
    score: float


_SCHEMA: JsonValue = {"name": "score", "strict": True, "schema": _Score.model_json_schema()}
_FORMAT: JsonValue = {"type": "json_schema", "json_schema": _SCHEMA}


class OpenAISettings(SamplingSettings):
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
    """Build the judge; raise ValueError if the endpoint or the model is missing."""
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
    failure = None
    #: Why the endpoint cannot be used now, or None.
    outage: str | None = "the endpoint has not been asked yet"

    def __init__(self, endpoint: ChatEndpoint, settings: OpenAISettings) -> None:
        self._endpoint = endpoint
        self._readout = settings.readout
        template = settings.prompt_template
        shipped = YES_OR_NO if self._readout == "probability" else PERCENTAGE
        self._prompt = Prompt(template) if template else shipped
        self._media = settings.media
        self._labels: LabelReadout | None = None
        self._sampling = settings.model_dump(include={"temperature", "top_p", "max_tokens"})
        if self._readout == "probability":
            self._labels = LabelReadout("", self._prompt, YES_AND_NO, {}, settings.min_label_mass)
            self._sampling = {"temperature": 0, "max_tokens": _LABEL_TOKENS, **_LOGPROBS}
            if "max_tokens" in settings.model_fields_set:  # of thoughts before a label
                self._sampling["max_tokens"] = settings.max_tokens
        self.deterministic = self._sampling["temperature"] == 0
        self._honored: Mapping[str, JsonValue] = {}  #: fields that not all endpoints honor
        # What is proved until the endpoint is restarted, and by which number of its breaks.
        self._proving, self._breaks = asyncio.Lock(), -1
        self._most_frames = self._highest_rate = 0.0  # of the clips that are shown completely
        #: Of the tokens that clips of 0, 2 and 4 frames become, or of their number.
        self._rendered: str | None = None
        self._provenance: Mapping[str, JsonValue] = {
            "judge": "openai",
            "url": endpoint.url,
            "model": endpoint.model,
            "readout": f"{self._readout} v{PARSER_VERSION}",
            "prompt": {**self._prompt.provenance},
            "media": self._media,
            "sampling": self._sampling,
            **({"min_label_mass": self._labels.min_mass} if self._labels else {}),
        }

    @property
    def provenance(self) -> Mapping[str, JsonValue]:
        honored: list[JsonValue] = [*self._honored]
        return {**self._provenance, "rendered_prompt": self._rendered, "honored": honored}

    def check_options(self, backend_kwargs: BackendKwargs) -> None:
        PromptOptions.of(backend_kwargs)

    async def judge(self, task_text: str, clip: Clip, backend_kwargs: BackendKwargs) -> Judgment:
        options = PromptOptions.of(backend_kwargs)
        prompt = options.prompt_template or self._prompt
        # Other prompts may want other answers.
        more = self._honored if self._labels or prompt is PERCENTAGE else {}
        readout = self._labels or TextReadout(prompt)
        choice = await self._ask(prompt, task_text, clip, {**self._sampling, **more})
        # After the answer: the endpoint may have been restarted while this waited for it.
        is_proved = await self._prove(len(clip.frames), clip.fps or UNKNOWN_FPS)
        text, is_cut = choice.message.content or "", choice.finish_reason == "length"
        positions = choice.logprobs.content if choice.logprobs else ()
        if choice.refusal is not None:
            reason = f"{text}\n[refused: {choice.refusal}]"
            judgment = Judgment(None, reason, cause=VideoCause.REFUSED)
        elif self._labels and not positions:
            raise BackendFailed("the endpoint returned no log-probabilities; it must support them")
        elif "response_format" in more and not is_cut and not _is_structured(text):
            judgment = Judgment(None, f"{text}\n[not in the form that was asked for]")
        else:
            answer = Completion(text, truncated=is_cut, positions=positions)
            mode = options.mode(prompt, is_percentage=prompt is PERCENTAGE)
            # Parsing a long chain of thought takes milliseconds.
            judgment = await asyncio.to_thread(readout.read, [answer], mode)
        if "label_mass" in judgment.details:
            LABEL_MASS.labels("openai").observe(judgment.details["label_mass"])
        shown = "proved" if is_proved else "unproved"
        return replace(judgment, provenance={"shown": shown, "honored": [*more]})

    async def _ask(
        self, prompt: Prompt, task_text: str, clip: Clip | None, more: Mapping[str, JsonValue]
    ) -> Choice:
        make_parts = _video_parts if self._media == "video" else _images
        parts = await asyncio.to_thread(make_parts, clip) if clip else []
        question = {"type": "text", "text": prompt.render(task_text)}
        return await self._endpoint.complete([*parts, question], more)

    async def _prove(self, frames: int, rate: float) -> bool:
        """Return whether clips like this are shown completely; False if tokens are not counted.

        Where some frames are left out, BackendFailed; where the endpoint fails, Unavailable.
        """
        async with self._proving:
            if self._breaks != self._endpoint.breaks:
                self._breaks = self._endpoint.breaks
                self._most_frames = self._highest_rate = 0.0
            if frames > self._most_frames or rate > self._highest_rate:
                most = max(frames, int(self._most_frames), _LEAST_FRAMES)
                await self._prove_anew(most, max(rate, self._highest_rate))
            return self._rendered is not None

    async def _prove_anew(self, frames: int, rate: float) -> None:
        clips = (None, _black(2), _black(4), _black(frames, rate))
        try:
            answers = [await self._show(clip) for clip in clips]
            none, two, four, all_frames = (answer.prompt_tokens for answer in answers)
            reason = None if two > none else "its usage.prompt_tokens does not count frames"
        except BackendFailed as error:
            reason = error.detail
        if reason is not None:
            log.warning("it is not known whether the model sees all frames: %s", reason)
            self._rendered, self._most_frames, self._highest_rate = None, math.inf, math.inf
            return
        pair = four - two
        shown = 2 + 2 * (all_frames - two) / pair if pair > 0 else 2
        if shown < frames - 0.5:
            raise BackendFailed(
                f"the endpoint shows the model about {shown:.0f} of {frames} frames that are sent "
                f"at {rate:.3g} frames per second: {_REMEDY}"
            )
        tokens = [answer.prompt_token_ids or answer.prompt_tokens for answer in answers[:3]]
        self._rendered = hashlib.sha256(str(tokens).encode()).hexdigest()[:16]
        self._most_frames, self._highest_rate = frames, rate

    async def _show(self, clip: Clip | None) -> Choice:
        """Show a clip, for the tokens of the prompt; without one, also find what is honored."""
        if clip is None:
            await self._find_honored()
        ask = partial(self._ask, self._prompt, "Ready?", clip)
        try:
            return await ask({"max_tokens": 1, "return_token_ids": True})
        except BackendFailed:  # OpenAI's own API refuses fields that it does not know
            return await ask({"max_tokens": 1})

    async def _find_honored(self) -> None:
        """Find which fields the endpoint honors, by an answer: it may ignore them silently."""
        self._honored, wanted = {}, {"response_format": _FORMAT}
        tokens: Mapping[str, int] = {}
        if self._labels:
            tokens = await self._endpoint.single_tokens(spellings(YES_AND_NO))
            self._labels = replace(self._labels, tokens=tokens)
            wanted = {"logprob_token_ids": [*tokens.values()]}
        if not tokens and (self._readout != "structured" or self._prompt is not PERCENTAGE):
            return
        likely = set[str]()
        try:
            choice = await self._ask(self._prompt, "Ready?", None, {**self._sampling, **wanted})
            answer = choice.message.content or ""
            if choice.logprobs:
                likely = {each.token for each in choice.logprobs.content[0].top_logprobs}
        except BackendFailed as error:
            answer = error.detail
        # Tokens that are not the likeliest, or a form that the question does not ask for.
        if tokens.keys() <= likely if tokens else answer.lstrip().startswith("{"):
            self._honored = wanted
        elif not tokens:
            log.warning("the endpoint honors no response_format: text is parsed: %.99s", answer)

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
                    await self._prove(_LEAST_FRAMES, UNKNOWN_FPS)
            except (BackendFailed, Unavailable, TimeoutError) as error:
                outage = getattr(error, "detail", "the endpoint answers too slowly")
        if outage not in {None, self.outage}:
            log.warning(outage)
        self.outage = outage


def _black(frames: int, fps: float = UNKNOWN_FPS) -> Clip:
    frame = np.zeros((224, 224, 3), np.uint8)
    return Clip((frame,) * frames, tuple(range(frames)), frames, fps, 224 * 224)


def _images(clip: Clip) -> list[dict[str, object]]:
    quality = [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY]
    bgr = (cv2.cvtColor(frame, cv2.COLOR_RGB2BGR) for frame in clip.frames)
    jpegs = (cv2.imencode(".jpg", frame, quality)[1] for frame in bgr)
    return [_part("image_url", "image/jpeg", each.tobytes()) for each in jpegs]


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


def _is_structured(text: str) -> bool:
    try:
        _Score.model_validate_json(text)
    except ValidationError:
        return False
    return True


_URL, _MODEL = "http://127.0.0.1:8000/v1", "Qwen/Qwen2.5-VL-7B-Instruct"
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
    ("--openai-url", _URL, "--openai-model", _MODEL),
)
