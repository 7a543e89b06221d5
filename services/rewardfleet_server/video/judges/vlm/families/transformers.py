"""The judge `transformers`: any model of the Qwen-VL family, on any device of transformers."""

from pydantic import PositiveInt

from rewardfleet_server.video.judges import DeferredJudge
from rewardfleet_server.video.judges.settings import BuiltInJudge, own
from rewardfleet_server.video.judges.vlm import factory
from rewardfleet_server.video.judges.vlm.settings import (
    CHECKPOINT,
    QwenVlSettings,
    TransformersSettings,
)
from rewardfleet_server.video.settings import VideoSettings

from .qwen import READOUTS, judge_spec, load_checkpoint

_NAME = "transformers"


class QwenTransformersSettings(TransformersSettings, QwenVlSettings):
    """The settings of `transformers`."""

    model_path: str | None = own("Qwen/Qwen3-VL-2B-Instruct", CHECKPOINT)
    frame_pixels: PositiveInt = own(
        50176,
        "Most pixels per frame; 50176 is 224x224. More pixels show more detail and are slower "
        "on a CPU.",
    )


def build(settings: QwenTransformersSettings, service: VideoSettings) -> DeferredJudge:
    """Build the judge `transformers`; see `factory.build` for errors."""
    checkpoint = load_checkpoint(
        settings, _NAME, settings.max_tokens, max_pixels=settings.frame_pixels
    )
    return factory.build(settings, service, checkpoint, judge_spec(_NAME, settings, checkpoint))


JUDGE = BuiltInJudge(
    _NAME,
    QwenTransformersSettings,
    build,
    "Asks any Qwen-VL (2.5, 3), on any device of transformers.",
    READOUTS,
)
