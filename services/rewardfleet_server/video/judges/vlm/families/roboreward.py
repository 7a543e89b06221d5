"""The judge `roboreward` (arXiv 2601.00675): a Qwen3-VL that grades the end of a video."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rewardfleet.wire.causes import VideoCause
from rewardfleet_server.video.judges import DeferredJudge, Judgment
from rewardfleet_server.video.judges.score_parser import ScoreMode
from rewardfleet_server.video.judges.settings import BuiltInJudge, own
from rewardfleet_server.video.judges.vlm import Completion, GenerationParams, factory
from rewardfleet_server.video.judges.vlm.judge import JudgeSpec
from rewardfleet_server.video.judges.vlm.prompt_layouts import AsOneVideo
from rewardfleet_server.video.judges.vlm.readouts import TextSampling
from rewardfleet_server.video.judges.vlm.settings import CHECKPOINT, EitherEngineSettings
from rewardfleet_server.video.prompts import Prompt
from rewardfleet_server.video.prompts.authors import (
    authors_prompt,
    one_text,
    prompts_of,
    read_fences,
)
from rewardfleet_server.video.settings import VideoSettings

from .qwen import QWEN3_VL, load_checkpoint

_NAME = "roboreward"
_PROMPT = Prompt.load("roboreward")
_SAMPLING = TextSampling(temperature=0.0, top_p=1.0, max_tokens=128)

_ANNOUNCED = re.compile(r"\bANSWER\s*:", re.IGNORECASE)
#: A grade, also as `<4>` or in Markdown, and nothing else in its line that could be one.
_ANSWER = re.compile(r"\bANSWER\s*:[\s*_<]*([1-5])(?!\w)[^\n0-9]*$", re.IGNORECASE | re.MULTILINE)


class RoboRewardSettings(EitherEngineSettings):
    """The settings of `roboreward`."""

    model_path: str | None = own("teetone/RoboReward-8B", CHECKPOINT)


def build(settings: RoboRewardSettings, service: VideoSettings) -> DeferredJudge:
    """Build the judge `roboreward`; see `factory.build` for errors."""
    checkpoint = load_checkpoint(settings, _NAME, _SAMPLING.max_tokens, model_type=QWEN3_VL)
    return factory.build(settings, service, checkpoint, judge_spec(settings))


def judge_spec(settings: RoboRewardSettings) -> JudgeSpec:
    """Return how RoboReward is used as a judge; see `prompts_of` for errors."""
    prompt = prompts_of(settings.prompts, authors_text, _PROMPT)
    return JudgeSpec(_NAME, {"grade": GradeReadout(prompt)}, _SAMPLING, AsOneVideo())


def authors_text(file: Path) -> Prompt:
    """Read the prompt from the checkpoint's README.md; see `one_text` for errors."""
    name = "a block of ```text"
    return authors_prompt(one_text({name: read_fences(file)}, name), "roboreward_authors")


@dataclass(frozen=True)
class GradeReadout:
    """Reads a grade from 1 to 5 after `ANSWER:`; the score is (grade - 1) / 4."""

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
            cause = VideoCause.ANSWER_CUT
            return Judgment(None, f"{text}\n[cut by the token limit]", cause=cause)
        if len(grades) != 1 or len(_ANNOUNCED.findall(text)) != len(_ANSWER.findall(text)):
            return Judgment(None, f"{text}\n[not one grade from 1 to 5 after ANSWER:]")
        grade = int(grades.pop())
        return Judgment((grade - 1) / 4, text, {"grade": float(grade)})


JUDGE = BuiltInJudge(
    _NAME,
    RoboRewardSettings,
    build,
    "Grades the end of a clip from 1 to 5 (arXiv 2601.00675).",
    {"grade": "The grade after ANSWER: in the answer; the score is (grade - 1) / 4."},
)
