"""The judge `roboreward` (arXiv 2601.00675): a Qwen3-VL that grades the end of a video."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rewardfleet_server.video.judges import DeferredJudge, Judgment
from rewardfleet_server.video.judges.vlm import Completion, GenerationParams
from rewardfleet_server.video.judges.vlm.checkpoint import Checkpoint
from rewardfleet_server.video.judges.vlm.judge import JudgeSpec
from rewardfleet_server.video.judges.vlm.prompt_layouts import AsOneVideo
from rewardfleet_server.video.judges.vlm.readouts import TextSampling
from rewardfleet_server.video.prompts import ROBOREWARD, Prompt
from rewardfleet_server.video.prompts.authors import (
    authors_prompt,
    one_text,
    read_fences,
    read_texts,
)
from rewardfleet_server.video.score_parser import ScoreMode
from rewardfleet_server.video.settings import VideoSettings

from . import published

_MODEL = "teetone/RoboReward-8B"
_SAMPLING = TextSampling(temperature=0.0, top_p=1.0, max_tokens=128)

_ANNOUNCED = re.compile(r"\bANSWER\s*:", re.IGNORECASE)
#: A grade, also as `<4>` or in Markdown, and nothing else in its line that could be one.
_ANSWER = re.compile(r"\bANSWER\s*:[\s*_<]*([1-5])(?!\w)[^\n0-9]*$", re.IGNORECASE | re.MULTILINE)


def build(settings: VideoSettings) -> DeferredJudge:
    """Build the judge `roboreward`; see `published.build` for errors."""
    return published.build(
        "roboreward",
        settings,
        default_model=_MODEL,
        model_type=published.QWEN3_VL,
        max_tokens=_SAMPLING.max_tokens,
        judge_spec=partial(judge_spec, settings),
    )


def judge_spec(settings: VideoSettings, checkpoint: Checkpoint | None = None) -> JudgeSpec:
    """Return how RoboReward is used as a judge.

    Raises:
        ValueError: `--roboreward-prompts` is not accepted.
    """
    del checkpoint
    file = settings.roboreward_prompts
    prompt = ROBOREWARD if file is None else authors_text(file)
    return JudgeSpec("roboreward", {"grade": GradeReadout(prompt)}, _SAMPLING, AsOneVideo())


def authors_text(file: Path) -> Prompt:
    """Read the prompt from the checkpoint's README.md, or from a Python file.

    Raises:
        ValueError: It is not in the file.
    """
    try:
        if file.suffix.lower() == ".md":
            texts = {"a block of ```text": read_fences(file)}
        else:
            texts = read_texts(file)
        names = ("a block of ```text", "ROBOREWARD_PROMPT_TEMPLATE", "ROBOREWARD_PROMPT")
        return authors_prompt(one_text(texts, *names), "roboreward_authors")
    except ValueError as error:
        raise ValueError(f"--roboreward-prompts {file}: {error}") from error


@dataclass(frozen=True)
class GradeReadout:
    """Reads a grade from 1 to 5 after `ANSWER:`; the score is (grade - 1) / 4.

    Attributes:
        prompt: See `Readout`.
        name: See `Readout`.
    """

    prompt: Prompt
    name: str = "grade v1"

    def generation_params(self, sampling: TextSampling, n: int) -> GenerationParams:
        return GenerationParams(sampling.max_tokens, sampling.temperature, sampling.top_p, n=n)

    def read(self, completions: Sequence[Completion], mode: ScoreMode) -> Judgment:
        """Return the grade as a score; abstain unless exactly one grade is stated."""
        del mode
        (completion,) = completions
        text = completion.text
        grades = set(_ANSWER.findall(text))
        if completion.truncated:
            return Judgment(None, f"{text}\n[cut by the token limit]")
        if len(grades) != 1 or len(_ANNOUNCED.findall(text)) != len(_ANSWER.findall(text)):
            return Judgment(None, f"{text}\n[not one grade from 1 to 5 after ANSWER:]")
        grade = int(grades.pop())
        return Judgment((grade - 1) / 4, text, {"grade": float(grade)})
