"""The builder that all families share: checks before loading, and the engines."""

from collections.abc import Callable

from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.optional_imports import require
from rewardfleet_server.video.judges import DeferredJudge
from rewardfleet_server.video.judges.settings import ENGINES
from rewardfleet_server.video.settings import VideoSettings, check_gpu_count

from . import TextEngine
from .checkpoint import Checkpoint
from .judge import WARM_UP_CLIP, JudgeSpec, VlmJudge
from .settings import ModelSettings, TransformersSettings, VllmSettings


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
    """Check that the context holds every readout's prompt with the clip of the warm-up.

    Raises:
        ValueError: It does not.
    """
    for name, readout in spec.readouts.items():
        prompt = readout.prompt if spec.prompt is None else spec.prompt
        system = spec.system.template if spec.system else None
        question = prompt.render("a task", **dict.fromkeys(prompt.more_fields, "0"))
        conversation = spec.layout.full_prompt(WARM_UP_CLIP, question, system)
        params = readout.generation_params(spec.sampling, 1)
        try:
            checkpoint.check_length(conversation, checkpoint.prompt(conversation), params)
        except InvalidRequest as error:
            raise ValueError(
                f"max_model_len {checkpoint.context}: readout {name}: {error.detail}"
            ) from None
