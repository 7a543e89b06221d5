"""The judges `qwen2_5_vl_vllm` and `transformers`: models of the Qwen-VL family."""

from rewardfleet_server.extras import require
from rewardfleet_server.video.judges import DeferredJudge
from rewardfleet_server.video.judges.vlm.checkpoint import Checkpoint, read_config
from rewardfleet_server.video.judges.vlm.factory import (
    check_fits,
    defer_transformers,
    defer_vllm,
    optional_prompt,
    required_path,
)
from rewardfleet_server.video.judges.vlm.judge import JudgeSpec
from rewardfleet_server.video.judges.vlm.prompt_layouts import AsVideo
from rewardfleet_server.video.judges.vlm.readouts import SamplingParams, readouts
from rewardfleet_server.video.settings import VideoSettings

from .qwen_geometry import QwenGeometry, QwenVlUtilsGeometry

#: The model of the judge `transformers` if the settings name none.
_DEFAULT_MODEL = "Qwen/Qwen3-VL-2B-Instruct"


def build_vllm(settings: VideoSettings) -> DeferredJudge:
    """Build the judge `qwen2_5_vl_vllm`.

    Raises:
        ValueError: The checkpoint, the GPUs or the prompt do not fit the settings.
    """
    path = required_path("qwen2_5_vl_vllm", "--model-path", settings.model_path)
    checkpoint = load_checkpoint(path, settings, settings.max_model_len, "--max-model-len")
    spec = judge_spec("qwen2_5_vl_vllm", settings, checkpoint)
    return defer_vllm(
        spec,
        checkpoint,
        settings,
        tensor_parallel_size=settings.tensor_parallel_size,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        gpu_memory_flag="--gpu-memory-utilization",
    )


def build_transformers(settings: VideoSettings) -> DeferredJudge:
    """Build the judge `transformers`.

    Raises:
        ValueError: The checkpoint or the prompt do not fit the settings.
    """
    checkpoint = load_checkpoint(
        settings.model_path or _DEFAULT_MODEL,
        settings,
        settings.max_model_len,
        "--max-model-len",
        max_pixels=settings.frame_pixels,
    )
    spec = judge_spec("transformers", settings, checkpoint)
    require("transformers", "the judge transformers", "torch", "torchvision", "transformers")
    return defer_transformers(spec, checkpoint, settings)


def load_checkpoint(
    path: str,
    settings: VideoSettings,
    max_model_len: int | None,
    flag: str,
    *,
    max_pixels: int | None = None,
) -> Checkpoint:
    """Read a checkpoint of the family, without its weights.

    Args:
        path: A folder with the checkpoint, or its name on a hub.
        settings: `frame_resize` is read.
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
        ValueError: The prompt is not accepted, or the checkpoint's context is too short for it.
    """
    checkpoint.check_max_tokens(settings.max_tokens, "--max-tokens")
    prompt = optional_prompt(settings.prompt_template)
    all_readouts = readouts(checkpoint)
    default = all_readouts.pop(settings.readout)
    spec = JudgeSpec(
        name=name,
        readouts={settings.readout: default, **all_readouts},
        sampling=SamplingParams(settings.temperature, settings.top_p, settings.max_tokens),
        layout=AsVideo(),
        prompt=prompt,
    )
    check_fits(spec, checkpoint)
    return spec
