"""The builder that all families share: checks before loading, and the engines."""

import logging
from collections.abc import Callable

import numpy as np

from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.optional_imports import require
from rewardfleet_server.video.clip.frames import Clip
from rewardfleet_server.video.judges import DeferredJudge
from rewardfleet_server.video.judges.settings import ENGINES
from rewardfleet_server.video.settings import VideoSettings, check_gpu_count

from . import TextEngine
from .checkpoint import Checkpoint
from .judge import JudgeSpec, VlmJudge
from .settings import ModelSettings, TransformersSettings, VllmSettings

log = logging.getLogger(__name__)

#: Number of frames, and pixels per frame: the smallest clip, and that of the default request.
_CLIP_SIZES = ((2, 784), (16, 200_704))


def build(
    own: ModelSettings,
    service: VideoSettings,
    checkpoint: Checkpoint,
    spec: JudgeSpec,
    judge_type: Callable[[JudgeSpec, Checkpoint, TextEngine], VlmJudge] = VlmJudge,
) -> DeferredJudge:
    """Check a model, and return a judge that will run it on its engine.

    Raises:
        ValueError: The prompts or the GPUs do not fit the settings, or the engine is not installed.
    """
    check_fits(spec, checkpoint)
    shares = {}
    if isinstance(own, VllmSettings) and own.runs_on == "vllm":
        require("vllm", f"the judge {spec.name}", *ENGINES["vllm"])
        check_gpu_count(service, own.gpus)
        # With the judge's name, as several judges have the setting.
        shares[f"{spec.name}.gpu_memory_utilization"] = own.gpu_memory_utilization
    else:
        require("transformers", f"the judge {spec.name}", *ENGINES["transformers"])
    return DeferredJudge(lambda: judge_type(spec, checkpoint, _engine(own, checkpoint)), shares)


def _engine(own: ModelSettings, checkpoint: Checkpoint) -> TextEngine:
    """Load the model; the modules of engines take seconds to import."""
    if isinstance(own, VllmSettings) and own.runs_on == "vllm":
        from .engine_vllm import VllmEngine  # noqa: PLC0415 - as above

        return VllmEngine(checkpoint, own)
    from .engine_transformers import TransformersEngine  # noqa: PLC0415 - as above

    assert isinstance(own, TransformersSettings)  # noqa: S101 - there is no third engine
    return TransformersEngine(checkpoint, device=own.device, batch_size=own.batch_size)


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
                        f"max_model_len {checkpoint.context}: readout {name}: {error.detail}"
                    ) from None
                log.warning("%s cannot take 16 frames of 448x448: %s", spec.name, error.detail)
                return
