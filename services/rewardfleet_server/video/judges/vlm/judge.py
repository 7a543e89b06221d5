"""The judge that all models of this folder share."""

import asyncio
import hashlib
import math
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.validation import validate
from rewardfleet.wire.video import Curve
from rewardfleet_server.threads import lower_thread_priority, run_in_thread
from rewardfleet_server.video.frames import Clip
from rewardfleet_server.video.judges import Judgment
from rewardfleet_server.video.prompts import Prompt
from rewardfleet_server.video.score_parser import ScoreMode

from . import Answer, Ask, Conversation, Engine
from .checkpoint import Checkpoint
from .geometry import Prepare
from .prompt_layouts import View
from .readouts import Readout, Sampling

T = TypeVar("T")

#: Answers to one request, by samples and moments together.
_MAX_SAMPLES = 64
_MAX_PREFIXES = 64
#: Conversations of one curve under way at once: each holds its own frames.
_MOMENTS_AT_ONCE = 4
_BLACK = Clip((np.zeros((224, 224, 3), np.uint8),) * 2, (0, 1), 2, None, 224 * 224)


class Options(BaseModel):
    """What a request's `backend_kwargs` may say."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    readout: str | None = None
    score_mode: ScoreMode | None = None
    prompt_template: str | None = None
    system_prompt: str | None = None
    user_prompt: str | None = None
    n: int = Field(1, ge=1, le=_MAX_SAMPLES)
    curve: int | None = Field(None, ge=2, le=_MAX_PREFIXES)


@dataclass(frozen=True)
class Setup:
    """What a judge is.

    Attributes:
        name: Its name in the table.
        readouts: By name; the first is the default.
        prompt: What to ask in place of the readouts' own prompts.
        system: What the model is told before.
    """

    name: str
    readouts: Mapping[str, Readout]
    sampling: Sampling
    view: View
    prompt: Prompt | None = None
    system: Prompt | None = None

    @property
    def digest(self) -> str:
        """Names all readouts with their prompts, and the view."""
        said = [f"{each.name} {each.prompt.digest}" for each in self.readouts.values()]
        said.append(type(self.view).__name__)
        return hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class _Question:
    """What one request wants."""

    readout: Readout
    prompt: Prompt
    system: Prompt | None
    ask: Ask
    mode: ScoreMode

    @property
    def provenance(self) -> dict[str, JsonValue]:
        return {
            "readout": self.readout.name,
            "prompt": {**self.prompt.provenance},
            "system_prompt": {**self.system.provenance} if self.system else None,
        }


class VlmJudge:
    """Shows a clip to a model and reads what it answers.

    Args:
        prepare: Resizes frames; it is called in a thread.
        frames: The name of this way, for provenance.
    """

    def __init__(
        self, setup: Setup, checkpoint: Checkpoint, engine: Engine, prepare: Prepare, frames: str
    ) -> None:
        self._setup = setup
        self._checkpoint = checkpoint
        self._engine = engine
        self._prepare = prepare
        self._frames = frames
        self._threads = ThreadPoolExecutor(
            max(2, (os.cpu_count() or 2) // 2),
            thread_name_prefix="prepare",
            initializer=lower_thread_priority,
        )
        self.deterministic = setup.sampling.temperature == 0

    @property
    def provenance(self) -> Mapping[str, JsonValue]:
        sampling = self._setup.sampling
        return {
            "judge": self._setup.name,
            "model": self._checkpoint.path,
            "checkpoint": self._checkpoint.fingerprint,
            **self._question(Options()).provenance,
            # Of all that requests may choose from, so that no change of it meets old answers.
            "readouts": self._setup.digest,
            "frames_for_model": f"{self._frames} {self._checkpoint.geometry}",
            "sampling": {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "max_tokens": sampling.max_tokens,
            },
            **self._engine.provenance,
        }

    @property
    def failure(self) -> str | None:
        return self._engine.failure

    def check_options(self, backend_kwargs: Mapping[str, JsonValue]) -> None:
        """Raise `InvalidRequest` where an option is unknown, or not accepted here."""
        self._question(_options(backend_kwargs))

    async def judge(
        self, task_text: str, clip: Clip, backend_kwargs: Mapping[str, JsonValue]
    ) -> Judgment:
        options = _options(backend_kwargs)
        question = self._question(options)
        text = question.prompt.render(task_text)
        system = question.system.render(task_text) if question.system else None
        if options.curve is None:
            conversation = self._setup.view.whole(clip, text, system)
            judgment = await self._judgment(conversation, question)
        else:
            moments = self._setup.view.moments(clip, options.curve, text, system)
            judgments = await self._judgments([talk for _, talk in moments], question)
            judgment = with_curve(judgments, [frame for frame, _ in moments])
        return replace(judgment, provenance=question.provenance)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Ask each readout's kind of question once: engines compile what they need at first use.

        Without it, the first callers would wait for seconds, on a CPU for a quarter of a minute.
        """
        try:
            for readout in self._setup.readouts.values():
                ask = replace(readout.ask(self._setup.sampling, 1), max_tokens=1)
                await self._answers(self._setup.view.whole(_BLACK, "Ready?", None), ask)
            yield
        finally:
            await self._engine.aclose()
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _question(self, options: Options) -> _Question:
        """Put the request's options over the settings.

        Raises:
            InvalidRequest: They do not go together, or this judge has no such readout.
        """
        setup = self._setup
        readout = setup.readouts.get(options.readout or next(iter(setup.readouts)))
        if readout is None:
            raise InvalidRequest(
                f"backend_kwargs: readout {str(options.readout)[:60]!r} is unknown to "
                f"{setup.name}; it has: {', '.join(setup.readouts)}"
            )
        ask = readout.ask(setup.sampling, options.n)
        if options.n > 1 and not (ask.n > 1 and ask.temperature > 0):
            raise InvalidRequest(
                "backend_kwargs: n above 1 needs a readout of the model's words and a server "
                "with a temperature above 0, as its answers would all be the same"
            )
        is_default = readout is next(iter(setup.readouts.values()))
        own = setup.prompt if is_default else None
        if options.prompt_template is not None and options.user_prompt is not None:
            raise InvalidRequest("backend_kwargs: prompt_template and user_prompt are the same")
        if options.n * (options.curve or 1) > _MAX_SAMPLES:
            raise InvalidRequest(f"backend_kwargs: n times curve is at most {_MAX_SAMPLES}")
        given = _given(options.prompt_template) or _given(options.user_prompt)
        prompt = given or own or readout.prompt
        mode = options.score_mode or "auto"
        if mode == "auto" and prompt is readout.prompt:
            mode = "percentage"  # which our own prompts ask for, so that `1` can be read
        return _Question(readout, prompt, _given(options.system_prompt) or setup.system, ask, mode)

    async def _judgments(
        self, conversations: Sequence[Conversation], question: _Question
    ) -> list[Judgment]:
        """Ask the longest first, alone: the others then find their beginnings read already."""
        last = await self._judgment(conversations[-1], question)
        at_once = asyncio.Semaphore(_MOMENTS_AT_ONCE)

        async def bounded(conversation: Conversation) -> Judgment:
            async with at_once:
                return await self._judgment(conversation, question)

        async with asyncio.TaskGroup() as asking:
            others = [asking.create_task(bounded(each)) for each in conversations[:-1]]
        return [*(other.result() for other in others), last]

    async def _judgment(self, conversation: Conversation, question: _Question) -> Judgment:
        answers = await self._answers(conversation, question.ask)
        # A long chain of thought takes milliseconds to read.
        return await self._in_thread(lambda: question.readout.read(answers, question.mode))

    async def _answers(self, conversation: Conversation, ask: Ask) -> list[Answer]:
        def ready() -> tuple[Conversation, str]:
            prompt = self._checkpoint.prompt(conversation)
            self._checkpoint.check_length(conversation, prompt, ask)
            return self._prepare(conversation), prompt

        prepared, prompt = await self._in_thread(ready)
        return await self._engine.answer(prepared, prompt, ask)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await run_in_thread(self._threads, work)


def with_curve(judgments: Sequence[Judgment], frames: Sequence[int]) -> Judgment:
    """Return the last judgment, with those of all moments as a curve.

    `value_order_correlation` is Spearman's rank correlation of the values with time (Ma et al.,
    "Vision Language Models are In-Context Value Learners", 2024): 1 rises throughout, -1 falls.
    It is left out where the values do not differ.
    """
    values = [judgment.score for judgment in judgments]
    components = dict(judgments[-1].components)
    correlation = order_correlation([value for value in values if value is not None])
    if correlation is not None:
        components["value_order_correlation"] = correlation
    curve = Curve(frames=list(frames), values=values)
    return replace(judgments[-1], components=components, curve=curve)


def order_correlation(values: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation of values with their order, in [-1, 1]."""
    if len(set(values)) < 2:
        return None
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = (ends - (counts - 1) / 2)[places]  # equal values share the mean of their ranks
    correlation = float(np.corrcoef(ranks, np.arange(len(values)))[0, 1])
    return min(max(correlation, -1.0), 1.0) if math.isfinite(correlation) else None


def _given(template: str | None) -> Prompt | None:
    if template is None:
        return None
    try:
        return Prompt.of(template)
    except ValueError as error:
        raise InvalidRequest(f"backend_kwargs: {error}") from None


def _options(backend_kwargs: Mapping[str, JsonValue]) -> Options:
    return validate(Options, backend_kwargs, prefix="backend_kwargs: ")
