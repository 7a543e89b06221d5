"""The judge `qwen2_5_vl_vllm`: any model of the Qwen-VL family, on vLLM."""

from pydantic import PositiveInt

from rewardfleet_server.video.judges import DeferredJudge
from rewardfleet_server.video.judges.settings import BuiltInJudge, own
from rewardfleet_server.video.judges.vlm import factory
from rewardfleet_server.video.judges.vlm.settings import (
    GPUS_PER_REPLICA,
    QwenVlSettings,
    VllmSettings,
)
from rewardfleet_server.video.settings import VideoSettings

from .qwen import READOUTS, judge_spec, load_checkpoint

_NAME = "qwen2_5_vl_vllm"


class QwenVllmSettings(VllmSettings, QwenVlSettings):
    """The settings of `qwen2_5_vl_vllm`; the default is that of the original server."""

    tensor_parallel_size: PositiveInt = own(2, GPUS_PER_REPLICA)


def build(settings: QwenVllmSettings, service: VideoSettings) -> DeferredJudge:
    """Build the judge `qwen2_5_vl_vllm`; see `factory.build` for errors."""
    checkpoint = load_checkpoint(settings, _NAME, settings.max_tokens)
    return factory.build(settings, service, checkpoint, judge_spec(_NAME, settings, checkpoint))


JUDGE = BuiltInJudge(
    _NAME,
    QwenVllmSettings,
    build,
    "Asks any Qwen-VL (2.5, 3), by vLLM in this process.",
    READOUTS,
    ("--model-path", "Qwen/Qwen2.5-VL-7B-Instruct", "--set", "tensor_parallel_size=1"),
)
