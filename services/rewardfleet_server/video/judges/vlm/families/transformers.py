"""The judge `transformers`: any model of the Qwen-VL family, on any device of transformers."""

from pydantic import PositiveInt

from rewardfleet_server.video.judges.settings import BuiltInJudge, own
from rewardfleet_server.video.judges.vlm.factory import builder
from rewardfleet_server.video.judges.vlm.settings import (
    CHECKPOINT,
    QwenVlSettings,
    TransformersSettings,
)

from .qwen import READOUTS, judge_spec

_NAME = "transformers"


class QwenTransformersSettings(TransformersSettings, QwenVlSettings):
    model_path: str | None = own("Qwen/Qwen3-VL-2B-Instruct", CHECKPOINT)
    frame_pixels: PositiveInt = own(
        50176,
        "Most pixels per frame; 50176 is 224x224. More pixels show more detail and are slower "
        "on a CPU.",
    )


JUDGE = BuiltInJudge(
    _NAME,
    QwenTransformersSettings,
    builder(_NAME, lambda own, checkpoint: judge_spec(_NAME, own, checkpoint)),
    "Asks any Qwen-VL (2.5, 3), on any device of transformers.",
    READOUTS,
)
