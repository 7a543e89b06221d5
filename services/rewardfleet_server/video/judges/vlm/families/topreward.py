"""The judge `topreward` (arXiv 2602.19313): how likely a model finds that the task was done.

A model that was not trained for this continues a text about the video. The log-probability that
the next word is True is the value of the authors, who compare it between prefixes of one clip.
"""

from collections.abc import Sequence
from pathlib import Path

from rewardfleet_server.video.judges import Judgment
from rewardfleet_server.video.judges.settings import BuiltInJudge, own
from rewardfleet_server.video.judges.vlm import GenerationParams
from rewardfleet_server.video.judges.vlm.checkpoint import Checkpoint
from rewardfleet_server.video.judges.vlm.factory import builder
from rewardfleet_server.video.judges.vlm.judge import JudgeSpec
from rewardfleet_server.video.judges.vlm.prompt_layouts import OneVideoToContinue
from rewardfleet_server.video.judges.vlm.readouts import LabelReadout
from rewardfleet_server.video.judges.vlm.settings import CHECKPOINT, EitherEngineSettings
from rewardfleet_server.video.prompts import Prompt, authors

_NAME = "topreward"
PROMPT = Prompt.load("topreward")  #: the text that the model continues
_SAMPLING = GenerationParams(max_tokens=1, temperature=0.0, top_p=1.0)
_LABELS = {"true": 1.0, "false": 0.0}


class TopRewardSettings(EitherEngineSettings):
    model_path: str | None = own("Qwen/Qwen3-VL-8B-Instruct", CHECKPOINT)


def judge_spec(settings: TopRewardSettings, checkpoint: Checkpoint) -> JudgeSpec:
    """Return how a model is used as TOPReward.

    The score is P(True) / (P(True) + P(False)). The authors state no score of a single clip. See
    `prompts_of` and `Checkpoint.tokens` for errors.
    """
    prompt = authors.prompts_of(settings.prompts, authors_text, PROMPT)
    # As words that follow a space: the bare ones are other tokens.
    tokens = checkpoint.tokens({"true": [" True"], "false": [" False"]})
    readout = LabelReadout("true_logprob v1", prompt, _LABELS, tokens, detail="true_logprob")
    readouts = {"true_logprob": readout}
    return JudgeSpec(_NAME, readouts, _SAMPLING, OneVideoToContinue(), curve_values=min_max)


def min_max(judgments: Sequence[Judgment]) -> list[float | None]:
    """Return the log-probabilities of True, scaled to [0, 1] over the prefixes of a clip.

    They are None if all are equal: the smallest and the largest then are the same value.
    """
    logs = [judgment.details.get("true_logprob") for judgment in judgments]
    known = {log for log in logs if log is not None}
    if len(known) < 2:
        return [None] * len(logs)
    low, high = min(known), max(known)
    return [None if log is None else (log - low) / (high - low) for log in logs]


def authors_text(file: Path) -> Prompt:
    """Read the prompt from the authors' `topreward/clients/qwen.py`; see `one_text` for errors."""
    texts = authors.read_texts(file)
    # The client has second texts, for a video that is described first and a turn of the model.
    starts = [text for text in texts.get("prompt_text", []) if "{" not in text]
    ends = [text for text in texts.get("instruction_suffix", []) if text.endswith(" True")]
    chosen = {"prompt_text": starts, "instruction_suffix": ends}
    text = "".join(authors.one_text(chosen, name) for name in chosen)
    return authors.authors_prompt(text.removesuffix(" True"), "topreward_authors")


JUDGE = BuiltInJudge(
    _NAME,
    TopRewardSettings,
    builder(_NAME, judge_spec),
    "How likely any Qwen-VL finds that the task was done (arXiv 2602.19313).",
    {"true_logprob": "P(True) / (P(True) + P(False)) of the next word."},
)
