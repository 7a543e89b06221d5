"""What the judges with a model of the Qwen-VL family share."""

from collections.abc import Callable
from typing import Any

from rewardfleet_server.video.judges import DeferredJudge
from rewardfleet_server.video.judges.vlm import GenerationParams, factory
from rewardfleet_server.video.judges.vlm.checkpoint import Checkpoint, read_config
from rewardfleet_server.video.judges.vlm.geometry import read_geometry
from rewardfleet_server.video.judges.vlm.judge import JudgeSpec, VlmJudge
from rewardfleet_server.video.judges.vlm.prompt_layouts import AsVideo
from rewardfleet_server.video.judges.vlm.readouts import readouts
from rewardfleet_server.video.judges.vlm.settings import ModelSettings, QwenVlSettings
from rewardfleet_server.video.prompts import PERCENTAGE, Prompt
from rewardfleet_server.video.prompts.authors import original_prompt, prompts_of
from rewardfleet_server.video.settings import VideoSettings

#: The `model_type` of checkpoints that published models were trained from.
QWEN3_VL = "qwen3_vl"

#: The readouts of any model of the family, see `readouts.py`.
READOUTS = {
    "constrained": "The model can only generate a whole number, from 0 to 100.",
    "text": "The number or the verdict that the answer states.",
    "probability": "P(yes) / (P(yes) + P(no)) of the first word behind thoughts and marks.",
    "rubric": "The expected grade from 1 to 5 of that word, scaled to [0, 1].",
}


def builder(
    judge: str,
    spec_of: Callable[[Any, Checkpoint], JudgeSpec],
    model_type: str | None = None,
    judge_type: type[VlmJudge] = VlmJudge,
) -> Callable[[Any, VideoSettings], DeferredJudge]:
    """Return what builds a judge from its settings; see `load_checkpoint` and `factory.build`.

    Args:
        judge: Its name.
        spec_of: Returns how a checkpoint is used, by the judge's settings.
        model_type: The type of its checkpoints; None for any of the family.
    """

    def build(settings: Any, service: VideoSettings) -> DeferredJudge:
        checkpoint = load_checkpoint(settings, judge, model_type)
        spec = spec_of(settings, checkpoint)
        return factory.build(settings, service, checkpoint, spec, judge_type)

    return build


def load_checkpoint(own: ModelSettings, judge: str, model_type: str | None = None) -> Checkpoint:
    """Read a checkpoint of the family, without its weights.

    Args:
        judge: The name of the judge.
        model_type: The type of its checkpoints; None for any of the family.

    Raises:
        ValueError: There is none, it is of another family, or `max_model_len` is too long.
    """
    path = own.model_path
    if path is None:
        raise ValueError(f"the judge {judge} needs --model-path")
    config = read_config(path)
    found = config.get("model_type")
    if model_type is not None and found not in {model_type, None}:
        raise ValueError(
            f"--model-path {path}: {found!r} is not {judge}, which is a {model_type!r}"
        )
    return Checkpoint(path, config, read_geometry(config, own), own.max_model_len)


def judge_spec(judge: str, own: QwenVlSettings, checkpoint: Checkpoint) -> JudgeSpec:
    """Return how any model of the family is used as a judge.

    See `Checkpoint.tokens` and `prompts_of` for errors.
    """
    percentage = prompts_of(own.prompts, original_prompt, PERCENTAGE)
    all_readouts = readouts(checkpoint, percentage, min_mass=own.min_label_mass)
    default = all_readouts.pop(own.readout)
    return JudgeSpec(
        name=judge,
        readouts={own.readout: default, **all_readouts},
        sampling=GenerationParams(own.max_tokens, own.temperature, own.top_p),
        layout=AsVideo(),
        prompt=Prompt.of(own.prompt_template) if own.prompt_template else None,
    )
