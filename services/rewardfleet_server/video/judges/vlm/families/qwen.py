"""How the judges that prompt any model of the Qwen-VL family use it."""

from collections.abc import Mapping

from rewardfleet_server.video.judges.labels import spellings
from rewardfleet_server.video.judges.vlm import GenerationParams
from rewardfleet_server.video.judges.vlm.checkpoint import Checkpoint
from rewardfleet_server.video.judges.vlm.judge import JudgeSpec
from rewardfleet_server.video.judges.vlm.prompt_layouts import AsVideo
from rewardfleet_server.video.judges.vlm.readouts import (
    YES_AND_NO,
    LabelReadout,
    Readout,
    TextReadout,
)
from rewardfleet_server.video.judges.vlm.settings import QwenVlSettings
from rewardfleet_server.video.prompts import PERCENTAGE, RUBRIC, YES_OR_NO, Prompt
from rewardfleet_server.video.prompts.authors import original_prompt, prompts_of

#: The readouts of any model of the family.
READOUTS = {
    "constrained": "The model can only generate a whole number, from 0 to 100.",
    "text": "The number or the verdict that the answer states.",
    "probability": "P(yes) / (P(yes) + P(no)) of the first word behind thoughts and marks.",
    "rubric": "The expected grade from 1 to 5 of that word, scaled to [0, 1].",
}
_GRADES = {str(grade): (grade - 1) / 4 for grade in range(1, 6)}


def judge_spec(judge: str, own: QwenVlSettings, checkpoint: Checkpoint) -> JudgeSpec:
    """Return how a model is used as this judge; see `Checkpoint.tokens` and `prompts_of`."""
    percentage = prompts_of(own.prompts, original_prompt, PERCENTAGE)

    def label_readout(name: str, prompt: Prompt, labels: Mapping[str, float]) -> LabelReadout:
        tokens = checkpoint.tokens({label: spellings([label]) for label in labels})
        title = f"{name} v3, mass {own.min_label_mass:g}"
        return LabelReadout(title, prompt, labels, tokens, own.min_label_mass)

    readouts: dict[str, Readout] = {
        "text": TextReadout(percentage),
        "constrained": TextReadout(percentage, numbers_only=True),
        "probability": label_readout("probability", YES_OR_NO, YES_AND_NO),
        "rubric": label_readout("rubric", RUBRIC, _GRADES),
    }
    return JudgeSpec(
        name=judge,
        readouts={own.readout: readouts.pop(own.readout), **readouts},
        sampling=GenerationParams(own.max_tokens, own.temperature, own.top_p),
        layout=AsVideo(),
        prompt=Prompt(own.prompt_template) if own.prompt_template else None,
    )
