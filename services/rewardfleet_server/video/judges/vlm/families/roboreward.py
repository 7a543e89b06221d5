"""The judge `roboreward` (arXiv 2601.00675): a Qwen3-VL that grades the end of a video."""

import re
from collections.abc import Sequence
from pathlib import Path

from rewardfleet.wire.causes import VideoCause
from rewardfleet_server.video.judges import Judgment
from rewardfleet_server.video.judges.score_parser import Scale
from rewardfleet_server.video.judges.settings import BuiltInJudge, own
from rewardfleet_server.video.judges.vlm import Completion, GenerationParams
from rewardfleet_server.video.judges.vlm.factory import QWEN3_VL, builder
from rewardfleet_server.video.judges.vlm.judge import JudgeSpec
from rewardfleet_server.video.judges.vlm.prompt_layouts import AsOneVideo
from rewardfleet_server.video.judges.vlm.readouts import TextReadout
from rewardfleet_server.video.judges.vlm.settings import CHECKPOINT, EitherEngineSettings
from rewardfleet_server.video.prompts import Prompt, authors

_NAME = "roboreward"
_PROMPT = Prompt.load("roboreward")
_SAMPLING = GenerationParams(max_tokens=128, temperature=0.0, top_p=1.0)

_ANNOUNCED = re.compile(r"\bANSWER\s*:", re.IGNORECASE)
#: A grade, also as `<4>` or in Markdown, and nothing else in its line that could be one.
_ANSWER = re.compile(r"\bANSWER\s*:[\s*_<]*([1-5])(?!\w)[^\n0-9]*$", re.IGNORECASE | re.MULTILINE)


class RoboRewardSettings(EitherEngineSettings):
    model_path: str | None = own("teetone/RoboReward-8B", CHECKPOINT)


def judge_spec(settings: RoboRewardSettings) -> JudgeSpec:
    """Return how RoboReward is used as a judge; see `prompts_of` for errors."""
    prompt = authors.prompts_of(settings.prompts, authors_text, _PROMPT)
    return JudgeSpec(_NAME, {"grade": GradeReadout(prompt)}, _SAMPLING, AsOneVideo())


def authors_text(file: Path) -> Prompt:
    """Read the prompt from the checkpoint's README.md; see `one_text` for errors."""
    name = "a block of ```text"
    text = authors.one_text({name: authors.read_fences(file)}, name)
    return authors.authors_prompt(text, "roboreward_authors")


class GradeReadout(TextReadout):
    """Reads a grade from 1 to 5 after `ANSWER:`; the score is (grade - 1) / 4."""

    name = "grade v1"

    def read(self, completions: Sequence[Completion], mode: Scale) -> Judgment:
        """Return the grade as a score; abstain unless exactly one grade is stated."""
        del mode
        (completion,) = completions
        text = completion.text
        grades = set(_ANSWER.findall(text))
        if completion.truncated:
            return Judgment(None, f"{text}\n[cut by the token limit]", cause=VideoCause.ANSWER_CUT)
        if len(grades) != 1 or len(_ANNOUNCED.findall(text)) != len(_ANSWER.findall(text)):
            return Judgment(None, f"{text}\n[not one grade from 1 to 5 after ANSWER:]")
        grade = int(grades.pop())
        return Judgment((grade - 1) / 4, text, {"grade": float(grade)})


JUDGE = BuiltInJudge(
    _NAME,
    RoboRewardSettings,
    builder(_NAME, lambda own, _: judge_spec(own), QWEN3_VL),
    "Grades the end of a clip from 1 to 5 (arXiv 2601.00675).",
    {"grade": "The grade after ANSWER: in the answer; the score is (grade - 1) / 4."},
)
