"""The builder that all families share: checks before loading, and the engines."""

from collections.abc import Callable
from typing import Any

from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.optional_imports import require
from rewardfleet_server.video.judges import DeferredJudge
from rewardfleet_server.video.judges.settings import ENGINES
from rewardfleet_server.video.settings import VideoSettings, check_gpu_count

from .checkpoint import Checkpoint, read_config
from .judge import WARM_UP_CLIP, JudgeSpec, VlmJudge
from .settings import ModelSettings

#: The `model_type` of checkpoints that published models were trained from.
QWEN3_VL = "qwen3_vl"


def builder(
    judge: str,
    spec_of: Callable[[Any, Checkpoint], JudgeSpec],
    model_type: str | None = None,
    judge_type: type[VlmJudge] = VlmJudge,
) -> Callable[[Any, VideoSettings], DeferredJudge]:
    """Return what checks the settings of a judge, and returns the judge that will load its model.

    It raises ValueError if the checkpoint, the prompts or the GPUs do not fit the settings, or the
    engine is not installed.

    Args:
        judge: Its name.
        spec_of: Returns how a checkpoint is used, by the judge's settings.
        model_type: The type of its checkpoints; None for any of the family.
    """

    def build(own: Any, service: VideoSettings) -> DeferredJudge:
        checkpoint = load_checkpoint(own, judge, model_type)
        spec = spec_of(own, checkpoint)
        _check_fits(spec, checkpoint)
        require(own.runs_on, f"the judge {judge}", *ENGINES[own.runs_on])
        shares = {}
        if own.runs_on == "vllm":
            check_gpu_count(service, own.gpus)
            # With the judge's name, as several judges have the setting.
            shares[f"{judge}.gpu_memory_utilization"] = own.gpu_memory_utilization

        def load() -> VlmJudge:  # the modules of engines take seconds to import
            if own.runs_on == "vllm":
                from .engine_vllm import VllmEngine  # noqa: PLC0415 - as above

                return judge_type(spec, checkpoint, VllmEngine(checkpoint, own))
            from .engine_transformers import TransformersEngine  # noqa: PLC0415 - as above

            engine = TransformersEngine(checkpoint, device=own.device, batch_size=own.batch_size)
            return judge_type(spec, checkpoint, engine)

        return DeferredJudge(load, shares)

    return build


def load_checkpoint(own: ModelSettings, judge: str, model_type: str | None = None) -> Checkpoint:
    """Read a checkpoint of the family, without its weights; see `builder`, also for errors."""
    path = own.model_path
    if path is None:
        raise ValueError(f"the judge {judge} needs --model-path")
    config = read_config(path)
    found = config.get("model_type")
    if model_type is not None and found not in {model_type, None}:
        raise ValueError(
            f"--model-path {path}: {found!r} is not {judge}, which is a {model_type!r}"
        )
    return Checkpoint(config, own)


def _check_fits(spec: JudgeSpec, checkpoint: Checkpoint) -> None:
    """Check that the context holds every readout's prompt with the clip of the warm-up."""
    for name, readout in spec.readouts.items():
        prompt = spec.prompt or readout.prompt
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
