"""The builder that all families share: checks before loading, and the engines."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rewardfleet.wire.errors import InvalidRequest
from rewardfleet_server.system.optional_imports import require
from rewardfleet_server.video.frames import Clip
from rewardfleet_server.video.judges import DeferredJudge
from rewardfleet_server.video.prompts import Prompt
from rewardfleet_server.video.settings import VideoSettings, check_gpu_count

from . import InferenceEngine
from .checkpoint import Checkpoint
from .judge import JudgeSpec, VlmJudge

log = logging.getLogger(__name__)

#: Number of frames, and pixels per frame: the smallest clip, and that of the default request.
_CLIP_SIZES = ((2, 784), (16, 200_704))


@dataclass(frozen=True)
class ModelSpec:
    """Which model a judge runs: what differs between the builders.

    Attributes:
        judge: The judge's name in `JUDGES`.
        path: A folder with the checkpoint, or its name on a hub; None if the settings name none.
        flag_prefix: Begins the flags of the settings below: `--`, or e.g. `--primo-`.
        max_model_len: Tokens of prompt, frames and answer together.
        max_tokens: The most tokens of an answer.
        tensor_parallel_size: GPUs per replica of the model.
        gpu_memory_utilization: Share of each GPU's memory for the model, in (0, 1].
        load_checkpoint: Reads a checkpoint of the family, without its weights. Takes its path,
            `max_model_len` and the flag that sets it; may raise ValueError.
        judge_spec: Returns how the model of a checkpoint is used; may raise ValueError.
        judge_type: The class of the judge.
        max_tokens_name: Names `max_tokens` in messages, if no flag sets it.
    """

    judge: str
    path: str | None
    flag_prefix: str
    max_model_len: int
    max_tokens: int
    tensor_parallel_size: int
    gpu_memory_utilization: float
    load_checkpoint: Callable[[str, int, str], Checkpoint]
    judge_spec: Callable[[Checkpoint], JudgeSpec]
    judge_type: Callable[[JudgeSpec, Checkpoint, InferenceEngine], VlmJudge] = VlmJudge
    max_tokens_name: str | None = None


def build(model: ModelSpec, settings: VideoSettings) -> DeferredJudge:
    """Build a judge on the engine of `--engine`; see `build_vllm` and `build_transformers`."""
    builder = build_vllm if settings.engine == "vllm" else build_transformers
    return builder(model, settings)


def build_vllm(model: ModelSpec, settings: VideoSettings) -> DeferredJudge:
    """Check a model, and return a judge that will run it on vLLM.

    Args:
        model: The model.
        settings: Those of the engine.

    Raises:
        ValueError: The checkpoint, the GPUs or the prompts do not fit the settings, or vLLM is not
            installed.
    """
    checkpoint, spec = _checked(model)
    require("vllm", f"the judge {model.judge}", "vllm")
    check_gpu_count(settings, model.tensor_parallel_size * settings.data_parallel_size)

    def load() -> VlmJudge:
        from .engine_vllm import VllmEngine  # noqa: PLC0415 - takes seconds

        engine = VllmEngine(
            checkpoint,
            settings,
            tensor_parallel_size=model.tensor_parallel_size,
            gpu_memory_utilization=model.gpu_memory_utilization,
        )
        return model.judge_type(spec, checkpoint, engine)

    # With the judge's name, as several judges may share the flag.
    flag = f"{model.judge} {model.flag_prefix}gpu-memory-utilization"
    return DeferredJudge(load, {flag: model.gpu_memory_utilization})


def build_transformers(model: ModelSpec, settings: VideoSettings) -> DeferredJudge:
    """Check a model, and return a judge that will run it on transformers.

    Args:
        model: The model.
        settings: Those of the engine.

    Raises:
        ValueError: The checkpoint or the prompts do not fit the settings, or transformers is not
            installed.
    """
    checkpoint, spec = _checked(model)
    require("transformers", f"the judge {model.judge}", "torch", "torchvision", "transformers")

    def load() -> VlmJudge:
        from .engine_transformers import TransformersEngine  # noqa: PLC0415 - takes seconds

        engine = TransformersEngine(
            checkpoint, device=settings.device, batch_size=settings.batch_size
        )
        return model.judge_type(spec, checkpoint, engine)

    return DeferredJudge(load)


def _checked(model: ModelSpec) -> tuple[Checkpoint, JudgeSpec]:
    prefix = model.flag_prefix
    if model.path is None:
        raise ValueError(f"the judge {model.judge} needs {prefix}model-path")
    checkpoint = model.load_checkpoint(model.path, model.max_model_len, f"{prefix}max-model-len")
    name = model.max_tokens_name or f"{prefix}max-tokens"
    checkpoint.check_max_tokens(model.max_tokens, name)
    spec = model.judge_spec(checkpoint)
    check_fits(spec, checkpoint)
    return checkpoint, spec


def optional_prompt(template: str | None) -> Prompt | None:
    """Return the prompt of a template from the settings, or None if it is empty or not set.

    Raises:
        ValueError: The template is not accepted.
    """
    return Prompt.of(template) if template else None


def check_fits(spec: JudgeSpec, checkpoint: Checkpoint) -> None:
    """Check that the context holds every readout's prompt with the smallest clip.

    If it does not hold the clip of a default request, a warning is logged.

    Raises:
        ValueError: It does not hold the smallest clip.
    """
    for frames, max_pixels in _CLIP_SIZES:
        frame = np.broadcast_to(np.uint8(0), (448, 448, 3))
        clip = Clip((frame,) * frames, tuple(range(frames)), frames, None, max_pixels)
        for name, readout in spec.readouts.items():
            prompt = readout.prompt if spec.prompt is None else spec.prompt
            system = spec.system.template if spec.system else None
            question = prompt.render("a task", **dict.fromkeys(prompt.more_fields, "0"))
            conversation = spec.layout.full_prompt(clip, question, system)
            params = readout.generation_params(spec.sampling, 1)
            try:
                checkpoint.check_length(conversation, checkpoint.prompt(conversation), params)
            except InvalidRequest as error:
                if frames == 2:
                    raise ValueError(
                        f"{checkpoint.context_flag}: readout {name}: {error.detail}"
                    ) from None
                log.warning("%s cannot take 16 frames of 448x448: %s", spec.name, error.detail)
                return
