"""The judge that all families of models share."""

import asyncio
import hashlib
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Generic, TypeVar

import numpy as np
from pydantic import Field, JsonValue

from rewardfleet.text import read
from rewardfleet.wire.causes import VideoCause
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.video import Curve
from rewardfleet_server.system.threads import lower_thread_priority, run_in_thread, usable_cores
from rewardfleet_server.video.clip.frames import Clip
from rewardfleet_server.video.judges import BackendKwargs, Judgment
from rewardfleet_server.video.judges.labels import LABEL_MASS, Position
from rewardfleet_server.video.judges.options import PromptOptions, RequestedPrompt
from rewardfleet_server.video.judges.score_parser import Scale
from rewardfleet_server.video.prompts import Prompt

from . import Completion, Conversation, GenerationParams, InferenceEngine, TextEngine
from .checkpoint import Checkpoint
from .prompt_layouts import PromptLayout
from .readouts import Readout

T = TypeVar("T")

_MAX_COMPLETIONS = 64  #: completions of one request: samples times points of the curve
_MAX_CURVE_POINTS = 64
#: Conversations of one curve in progress at the same time; each holds its own frames.
_CONCURRENT_PREFIXES = 4
_THINKS = Position("<think>", 0.0, ())  #: what a prompt ends with that begins the thoughts
#: What is judged before the first request. Its frames are more than a second apart.
WARM_UP_CLIP = Clip((np.zeros((224, 224, 3), np.uint8),) * 4, (0, 30, 60, 90), 91, 20.0, 224 * 224)


class VlmOptions(PromptOptions):
    """The `backend_kwargs` that a request may have."""

    readout: str | None = None  #: a readout of the judge; None for its default
    system_prompt: RequestedPrompt | None = None  #: replaces the judge's system prompt
    user_prompt: RequestedPrompt | None = None  #: another name of `prompt_template`
    n: int = Field(1, ge=1, le=_MAX_COMPLETIONS)  #: completions, whose mean is the score
    #: Prefixes of the clip to score, or None for the complete clip only.
    curve: int | None = Field(None, ge=2, le=_MAX_CURVE_POINTS)


def scores(judgments: Sequence[Judgment]) -> list[float | None]:
    return [judgment.score for judgment in judgments]


@dataclass(frozen=True)
class JudgeSpec:
    """The layout, prompts, readouts and sampling that make a judge of a model."""

    name: str
    #: Those that requests may choose from, by name; the first is the default.
    readouts: Mapping[str, Readout]
    sampling: GenerationParams  #: how free text is sampled
    layout: PromptLayout  #: how a clip is laid out in a prompt
    prompt: Prompt | None = None  #: replaces the default readout's own prompt
    system: Prompt | None = None
    #: Returns the values of a curve, from the judgments of its prefixes.
    curve_values: Callable[[Sequence[Judgment]], list[float | None]] = scores

    @property
    def digest(self) -> str:
        """A digest of all readouts with their prompts, and of the layout; part of cache keys."""
        lines = [f"{each.name} {each.prompt.digest}" for each in self.readouts.values()]
        lines.append(type(self.layout).__name__)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class _Query:
    """A request's options, resolved against the judge's spec."""

    readout: Readout
    prompt: Prompt
    system: Prompt | None
    params: GenerationParams
    mode: Scale

    @property
    def provenance(self) -> dict[str, JsonValue]:
        return {
            "readout": self.readout.name,
            "prompt": {**self.prompt.provenance},
            "system_prompt": {**self.system.provenance} if self.system else None,
        }


class ModelJudge(Generic[T]):
    """What judges with a model in this process share, whose engine gives results of type `T`."""

    outage = None

    def __init__(self, checkpoint: Checkpoint, engine: InferenceEngine[T]) -> None:
        self._checkpoint = checkpoint
        self._engine = engine
        threads = max(2, usable_cores() // 2)
        self._threads = ThreadPoolExecutor(threads, "prepare", lower_thread_priority)

    @property
    def failure(self) -> str | None:
        return self._engine.failure

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Use the model before a request, which would wait: engines compile at first use."""
        try:
            await self._warm_up()
            yield
        finally:
            await self._engine.aclose()
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _warm_up(self) -> None:
        raise NotImplementedError

    def _of_model(self, conversation: Conversation) -> dict[str, JsonValue]:
        """Return the provenance of the model, with the text and tokens of a conversation."""
        prompt = self._checkpoint.prompt(conversation)
        prepared = self._checkpoint.geometry.prepare(conversation)
        content = f"{prompt}\n{self._engine.tokens(prepared, prompt)}"
        return {
            "model": self._checkpoint.name,
            "checkpoint": self._checkpoint.fingerprint,
            "frames_for_model": str(self._checkpoint.geometry),
            "rendered_prompt": hashlib.sha256(content.encode()).hexdigest()[:16],
            **self._engine.provenance,
        }

    async def _run(self, conversation: Conversation, params: GenerationParams) -> T:
        def prepare() -> tuple[Conversation, str]:
            prompt = self._checkpoint.prompt(conversation)
            self._checkpoint.check_length(conversation, prompt, params)
            return self._checkpoint.geometry.prepare(conversation), prompt

        prepared, prompt = await run_in_thread(self._threads, prepare)
        return await self._engine.generate(prepared, prompt, params)


class VlmJudge(ModelJudge[list[Completion]]):
    """Shows a clip to a vision-language model and reads a score from its completions."""

    def __init__(self, spec: JudgeSpec, checkpoint: Checkpoint, engine: TextEngine) -> None:
        super().__init__(checkpoint, engine)
        self._spec = spec
        self.deterministic = spec.sampling.temperature == 0

    @cached_property
    def provenance(self) -> Mapping[str, JsonValue]:
        sampling = self._spec.sampling
        return {
            "judge": self._spec.name,
            **self._query(VlmOptions()).provenance,
            # Requests may choose another readout, whose prompt the lines above do not name.
            "readouts": self._spec.digest,
            "sampling": {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                **({"top_k": sampling.top_k} if sampling.top_k else {}),
                "max_tokens": sampling.max_tokens,
            },
            **self._of_model(self._warm_up_prompt),
        }

    def check_options(self, backend_kwargs: BackendKwargs) -> None:
        self._query(VlmOptions.of(backend_kwargs))

    async def judge(self, task_text: str, clip: Clip, backend_kwargs: BackendKwargs) -> Judgment:
        options = VlmOptions.of(backend_kwargs)
        query = self._query(options)
        text = query.prompt.render(task_text)
        system = query.system.render(task_text) if query.system else None
        layout = self._spec.layout
        if options.curve is None:
            judgment = await self._judge(layout.full_prompt(clip, text, system), query)
        else:
            prefixes = layout.prefix_prompts(clip, options.curve, text, system)
            judgments = await self._judge_prefixes([each for _, each in prefixes], query)
            values = self._spec.curve_values(judgments)
            judgment = with_curve(judgments[-1], [frame for frame, _ in prefixes], values)
        return replace(judgment, provenance=query.provenance)

    async def _warm_up(self) -> None:
        for readout in self._spec.readouts.values():
            params = replace(readout.generation_params(self._spec.sampling, 1), max_tokens=1)
            await self._run(self._warm_up_prompt, params)

    @cached_property
    def _thinks(self) -> bool:
        """Whether the prompt begins the thoughts, by its template."""
        return read(self._checkpoint.prompt(self._warm_up_prompt)).last.cut

    @property
    def _warm_up_prompt(self) -> Conversation:
        return self._spec.layout.full_prompt(WARM_UP_CLIP, "Ready?", None)

    def _query(self, options: VlmOptions) -> _Query:
        """Check a request's options, and resolve them against the spec."""
        spec = self._spec
        readout = spec.readouts.get(options.readout or next(iter(spec.readouts)))
        if readout is None:
            shown, known = str(options.readout)[:60], ", ".join(spec.readouts)
            raise InvalidRequest(
                f"backend_kwargs: readout {shown!r} is unknown to {spec.name}; it has: {known}"
            )
        params = readout.generation_params(spec.sampling, options.n)
        if options.n > 1 and not (params.n > 1 and params.temperature > 0):
            raise InvalidRequest(
                "backend_kwargs: n above 1 needs a readout of text and a server with a "
                "temperature above 0; otherwise all completions would be the same"
            )
        if options.prompt_template is not None and options.user_prompt is not None:
            raise InvalidRequest("backend_kwargs: prompt_template and user_prompt are the same")
        if options.n * (options.curve or 1) > _MAX_COMPLETIONS:
            raise InvalidRequest(f"backend_kwargs: n times curve is at most {_MAX_COMPLETIONS}")
        is_default = readout is next(iter(spec.readouts.values()))
        default = (spec.prompt if is_default else None) or readout.prompt
        prompt = options.prompt_template or options.user_prompt or default
        mode = options.mode(prompt, is_percentage=prompt is readout.prompt)
        return _Query(readout, prompt, options.system_prompt or spec.system, params, mode)

    async def _judge_prefixes(
        self, conversations: Sequence[Conversation], query: _Query
    ) -> list[Judgment]:
        """Judge the longest before the others: the engine then has their prefixes cached."""
        last = await self._judge(conversations[-1], query)
        slots = asyncio.Semaphore(_CONCURRENT_PREFIXES)

        async def judge(conversation: Conversation) -> Judgment:
            async with slots:
                return await self._judge(conversation, query)

        async with asyncio.TaskGroup() as group:
            others = [group.create_task(judge(each)) for each in conversations[:-1]]
        return [*(other.result() for other in others), last]

    async def _judge(self, conversation: Conversation, query: _Query) -> Judgment:
        params = query.params
        # Most answers begin with their label. Others have thoughts or marks before it.
        first = 1 if params.labels and not self._thinks else params.max_tokens
        for limit in sorted({first, params.max_tokens}):
            completions = await self._run(conversation, replace(params, max_tokens=limit))
            if params.labels and self._thinks:
                positions = (_THINKS, *completions[0].positions)
                completions = [replace(completions[0], positions=positions)]
            # Parsing a long chain of thought takes milliseconds.
            judgment = await run_in_thread(
                self._threads, partial(query.readout.read, completions, query.mode)
            )
            if judgment.cause is not VideoCause.ANSWER_CUT:
                break
        if (mass := judgment.details.get("label_mass")) is not None:
            LABEL_MASS.labels(self._spec.name).observe(mass)
        return judgment


def with_curve(
    judgment: Judgment, frames: Sequence[int], values: Sequence[float | None]
) -> Judgment:
    """Return the judgment of the complete clip with a curve.

    The detail `value_order_correlation` is Spearman's rank correlation of the values with time
    (Ma et al., "Vision Language Models are In-Context Value Learners", 2024): 1 if they always
    rise, -1 if they always fall. It is left out if the values are all equal.

    Args:
        frames: The source's index of the last frame of each prefix; the last is the complete clip.
        values: The value of each prefix, in [0, 1]; None if there is none.
    """
    details = dict(judgment.details)
    correlation = order_correlation([value for value in values if value is not None])
    if correlation is not None:
        details["value_order_correlation"] = correlation
    curve = Curve(frames=list(frames), values=list(values))
    return replace(judgment, details=details, curve=curve)


def order_correlation(values: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation of values with their order; None if all are equal."""
    if len(set(values)) < 2:
        return None
    _, groups, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = (ends - (counts - 1) / 2)[groups]  # equal values share the mean of their ranks
    correlation = float(np.corrcoef(ranks, np.arange(len(values)))[0, 1])
    return min(max(correlation, -1.0), 1.0) if math.isfinite(correlation) else None
