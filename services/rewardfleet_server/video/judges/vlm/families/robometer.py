"""The judge Robometer (arXiv 2603.02115), whose heads give every frame's progress and success."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import FilePath, JsonValue, PositiveInt

from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.optional_imports import require
from rewardfleet_server.video.clip.frames import Clip
from rewardfleet_server.video.judges import BackendKwargs, DeferredJudge, Judgment
from rewardfleet_server.video.judges.options import PromptOptions
from rewardfleet_server.video.judges.settings import ENGINES, BuiltInJudge, own
from rewardfleet_server.video.judges.vlm import Conversation, GenerationParams, ImagePart
from rewardfleet_server.video.judges.vlm.checkpoint import read_config
from rewardfleet_server.video.judges.vlm.judge import WARM_UP_CLIP, ModelJudge, with_curve
from rewardfleet_server.video.judges.vlm.settings import CHECKPOINT, TransformersSettings
from rewardfleet_server.video.prompts import Prompt, authors
from rewardfleet_server.video.settings import VideoSettings

from .robometer_checkpoint import RobometerCheckpoint

if TYPE_CHECKING:  # it imports torch
    from rewardfleet_server.video.judges.vlm.engine_robometer import RobometerEngine

_NAME = "robometer"
_PROMPT = Prompt.load("robometer")
_READOUT_VERSION = 1  #: increased when scores are read differently from the same outputs
#: Nothing is generated: the engine and the check of the context have no use for other values.
_PARAMS = GenerationParams(max_tokens=1, temperature=0.0, top_p=1.0)


class RobometerOptions(PromptOptions):
    #: The head whose value at the last frame is the score; None for `progress`.
    readout: Literal["progress", "success"] | None = None


@dataclass(frozen=True)
class FrameScores:
    """What the heads say after each frame."""

    progress: tuple[float, ...]  #: in [0, 1], one per frame
    success: tuple[float, ...]  #: probability that the task is done, one per frame


class RobometerJudge(ModelJudge[FrameScores]):
    """Asks a question, shows frames to Robometer and reads its heads."""

    deterministic = True
    _checkpoint: RobometerCheckpoint

    def __init__(
        self, checkpoint: RobometerCheckpoint, engine: "RobometerEngine", prompt: Prompt
    ) -> None:
        super().__init__(checkpoint, engine)
        self._prompt = prompt

    @cached_property
    def provenance(self) -> Mapping[str, JsonValue]:
        return {
            "judge": _NAME,
            "processor": self._checkpoint.layout.processor,
            **self._of_request(RobometerOptions()),
            **self._of_model(_conversation(WARM_UP_CLIP, "Ready?")),
        }

    def check_options(self, backend_kwargs: BackendKwargs) -> None:
        self._of_request(RobometerOptions.of(backend_kwargs))

    async def judge(self, task_text: str, clip: Clip, backend_kwargs: BackendKwargs) -> Judgment:
        options = RobometerOptions.of(backend_kwargs)
        prompt = options.prompt_template or self._prompt
        scores = await self._score(clip, prompt.render(task_text))
        progress, success = scores.progress[-1], scores.success[-1]
        details = {"progress": progress, "success": success}
        judgment = Judgment(
            score=details[options.readout or "progress"],
            text=f"progress {progress:.2f}, success {success:.2f}",
            details=details,
            provenance=self._of_request(options),
        )
        return with_curve(judgment, clip.indices, scores.progress)

    async def _warm_up(self) -> None:
        await self._score(WARM_UP_CLIP, self._prompt.render("Ready?"))

    async def _score(self, clip: Clip, question: str) -> FrameScores:
        return await self._run(_conversation(clip, question), _PARAMS)

    def _of_request(self, options: RobometerOptions) -> dict[str, JsonValue]:
        """Return the part of the provenance that a request can change."""
        return {
            "readout": f"{options.readout or 'progress'} v{_READOUT_VERSION}",
            "prompt": {**(options.prompt_template or self._prompt).provenance},
        }


class RobometerSettings(TransformersSettings):
    model_path: str | None = own("robometer/Robometer-4B", CHECKPOINT)
    frame_pixels: PositiveInt | None = own(
        None, "Most pixels per frame. Default: frames keep their size, as in training."
    )
    prompts: FilePath | None = own(
        None,
        "The authors' robometer/data/collators/rbm_heads.py, whose prompt replaces the shipped "
        "one. It is parsed, not executed.",
    )


def build(settings: RobometerSettings, service: VideoSettings) -> DeferredJudge:
    """Build the judge; see `factory.builder` for errors."""
    del service
    prompt = authors.prompts_of(settings.prompts, authors_text, _PROMPT)
    checkpoint = RobometerCheckpoint(read_config(settings.model_path or ""), settings)
    require("transformers", f"the judge {_NAME}", *ENGINES["transformers"])
    try:
        conversation = _conversation(WARM_UP_CLIP, prompt.render("a task"))
        checkpoint.check_length(conversation, checkpoint.prompt(conversation), _PARAMS)
    except InvalidRequest as error:
        raise ValueError(f"max_model_len {checkpoint.context}: {error.detail}") from None

    def load() -> RobometerJudge:
        from rewardfleet_server.video.judges.vlm import engine_robometer  # noqa: PLC0415 - seconds

        engine = engine_robometer.RobometerEngine(
            checkpoint, device=settings.device, batch_size=settings.batch_size
        )
        return RobometerJudge(checkpoint, engine, prompt)

    return DeferredJudge(load)


def authors_text(file: Path) -> Prompt:
    """Read the prompt from the authors' `robometer/data/collators/rbm_heads.py`; see `one_text`."""
    text = authors.one_text(authors.read_texts(file), "_process_progress_batch.prompt")
    return authors.authors_prompt(text, "robometer_authors")


def _conversation(clip: Clip, question: str) -> Conversation:
    return Conversation((question, *map(ImagePart, clip.frames)))


JUDGE = BuiltInJudge(
    _NAME,
    RobometerSettings,
    build,
    "Reads the progress from a head of its own, without text (arXiv 2603.02115).",
    {
        "progress": "The progress at the last frame.",
        "success": "The probability that the task is done at the last frame, for requests with "
        "backend_kwargs.readout.",
    },
)
