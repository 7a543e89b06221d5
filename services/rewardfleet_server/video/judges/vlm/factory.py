"""What the builders of all families share: checks before loading, and the engines."""

import logging

import numpy as np

from rewardfleet.wire.errors import InvalidRequest
from rewardfleet_server.extras import require
from rewardfleet_server.video.frames import Clip
from rewardfleet_server.video.judges import DeferredJudge
from rewardfleet_server.video.prompts import Prompt
from rewardfleet_server.video.settings import VideoSettings, check_gpu_count

from .checkpoint import Checkpoint
from .judge import JudgeSpec, VlmJudge

log = logging.getLogger(__name__)

#: Number of frames, and pixels per frame: the smallest clip, and that of the default request.
_CLIP_SIZES = ((2, 784), (16, 200_704))


def defer_vllm(
    spec: JudgeSpec,
    checkpoint: Checkpoint,
    settings: VideoSettings,
    *,
    tensor_parallel_size: int,
    gpu_memory_utilization: float,
    gpu_memory_flag: str,
) -> DeferredJudge:
    """Return a judge that will run on vLLM.

    Args:
        spec: How the model is used.
        checkpoint: What to load.
        settings: Those of the engine.
        tensor_parallel_size: GPUs per replica of the model.
        gpu_memory_utilization: Share of each GPU's memory for the model.
        gpu_memory_flag: The flag that sets it.

    Raises:
        ValueError: vLLM is not installed, or there are too few GPUs.
    """
    require("vllm", f"the judge {spec.name}", "vllm")
    check_gpu_count(settings, tensor_parallel_size * settings.data_parallel_size)

    def load() -> VlmJudge:
        from .engine_vllm import VllmEngine  # noqa: PLC0415 - takes seconds

        engine = VllmEngine(
            checkpoint,
            settings,
            tensor_parallel_size=tensor_parallel_size,
            gpu_memory_utilization=gpu_memory_utilization,
        )
        return VlmJudge(spec, checkpoint, engine)

    return DeferredJudge(load, {gpu_memory_flag: gpu_memory_utilization})


def defer_transformers(
    spec: JudgeSpec, checkpoint: Checkpoint, settings: VideoSettings
) -> DeferredJudge:
    """Return a judge that will run on transformers."""

    def load() -> VlmJudge:
        from .engine_transformers import TransformersEngine  # noqa: PLC0415 - takes seconds

        engine = TransformersEngine(
            checkpoint, device=settings.device, batch_size=settings.batch_size
        )
        return VlmJudge(spec, checkpoint, engine)

    return DeferredJudge(load)


def required_path(judge: str, flag: str, path: str | None) -> str:
    """Return the path of a judge's checkpoint.

    Raises:
        ValueError: The settings name none.
    """
    if path is None:
        raise ValueError(f"the judge {judge} needs {flag}")
    return path


def optional_prompt(template: str | None) -> Prompt | None:
    """Return the prompt of a template from the settings; None if it is empty or not set.

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
            conversation = spec.layout.full_prompt(clip, prompt.render("a task"), system)
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
