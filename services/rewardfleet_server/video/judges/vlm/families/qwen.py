"""The judges `qwen2_5_vl_vllm` and `transformers`: models of the Qwen-VL family."""

from functools import partial

from rewardfleet_server.video.judges import DeferredJudge
from rewardfleet_server.video.judges.vlm import factory
from rewardfleet_server.video.judges.vlm.checkpoint import Checkpoint, read_config
from rewardfleet_server.video.judges.vlm.judge import JudgeSpec
from rewardfleet_server.video.judges.vlm.prompt_layouts import AsVideo
from rewardfleet_server.video.judges.vlm.readouts import TextSampling, readouts
from rewardfleet_server.video.settings import VideoSettings

from .qwen_geometry import QwenGeometry, QwenVlUtilsGeometry

#: The model of the judge `transformers` if the settings name none.
_DEFAULT_MODEL = "Qwen/Qwen3-VL-2B-Instruct"


def build_vllm(settings: VideoSettings) -> DeferredJudge:
    """Build the judge `qwen2_5_vl_vllm`; see `factory.build_vllm` for errors."""
    model = _model_spec("qwen2_5_vl_vllm", settings, settings.model_path)
    return factory.build_vllm(model, settings)


def build_transformers(settings: VideoSettings) -> DeferredJudge:
    """Build the judge `transformers`; see `factory.build_transformers` for errors."""
    path = settings.model_path or _DEFAULT_MODEL
    model = _model_spec("transformers", settings, path, max_pixels=settings.frame_pixels)
    return factory.build_transformers(model, settings)


def _model_spec(
    judge: str, settings: VideoSettings, path: str | None, *, max_pixels: int | None = None
) -> factory.ModelSpec:
    return factory.ModelSpec(
        judge=judge,
        path=path,
        flag_prefix="--",
        max_model_len=settings.max_model_len,
        max_tokens=settings.max_tokens,
        tensor_parallel_size=settings.tensor_parallel_size,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        load_checkpoint=partial(load_checkpoint, settings, max_pixels=max_pixels),
        judge_spec=partial(judge_spec, judge, settings),
    )


def load_checkpoint(
    settings: VideoSettings,
    path: str,
    max_model_len: int | None,
    flag: str,
    *,
    max_pixels: int | None = None,
) -> Checkpoint:
    """Read a checkpoint of the family, without its weights.

    Args:
        settings: `frame_resize` is read.
        path: A folder with the checkpoint, or its name on a hub.
        max_model_len: Tokens of prompt, frames and answer together; None for the model's maximum.
        flag: The flag that sets `max_model_len`.
        max_pixels: The most pixels of a frame of a video, whatever requests allow.

    Raises:
        ValueError: There is none, it is of another family, or its context is too short.
    """
    config = read_config(path)
    is_single = settings.frame_resize == "single"
    geometry_type = QwenGeometry if is_single else QwenVlUtilsGeometry
    geometry = geometry_type.from_config(path, config, max_pixels=max_pixels)
    return Checkpoint(path, config, geometry, max_model_len=max_model_len, flag=flag)


def judge_spec(name: str, settings: VideoSettings, checkpoint: Checkpoint) -> JudgeSpec:
    """Return how a model of the family is used as a judge.

    Raises:
        ValueError: The prompt is not accepted, or the tokenizer lacks a label of a readout.
    """
    prompt = factory.optional_prompt(settings.prompt_template)
    all_readouts = readouts(checkpoint)
    default = all_readouts.pop(settings.readout)
    return JudgeSpec(
        name=name,
        readouts={settings.readout: default, **all_readouts},
        sampling=TextSampling(settings.temperature, settings.top_p, settings.max_tokens),
        layout=AsVideo(),
        prompt=prompt,
    )
