"""The judge `qwen2_5_vl_vllm`: any model of the Qwen-VL family, on vLLM."""

from pydantic import PositiveInt

from rewardfleet_server.video.judges.settings import BuiltInJudge, own
from rewardfleet_server.video.judges.vlm.factory import builder
from rewardfleet_server.video.judges.vlm.settings import (
    GPUS_PER_REPLICA,
    QwenVlSettings,
    VllmSettings,
)

from .qwen import READOUTS, judge_spec

_NAME = "qwen2_5_vl_vllm"


class QwenVllmSettings(VllmSettings, QwenVlSettings):
    """The settings of `qwen2_5_vl_vllm`; the default is that of the original server."""

    tensor_parallel_size: PositiveInt = own(2, GPUS_PER_REPLICA)


JUDGE = BuiltInJudge(
    _NAME,
    QwenVllmSettings,
    builder(_NAME, lambda own, checkpoint: judge_spec(_NAME, own, checkpoint)),
    "Asks any Qwen-VL (2.5, 3), by vLLM in this process.",
    READOUTS,
    ("--model-path", "Qwen/Qwen2.5-VL-7B-Instruct", "--set", "tensor_parallel_size=1"),
)
