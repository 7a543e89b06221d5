"""The judge `sole-r1` (arXiv 2603.28730): a Qwen3-VL that reasons about each frame in turn."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rewardfleet.wire.causes import VideoCause
from rewardfleet_server.system.threads import run_in_thread
from rewardfleet_server.video.clip.frames import Clip
from rewardfleet_server.video.judges import BackendKwargs, Judgment
from rewardfleet_server.video.judges.options import JudgeOptions
from rewardfleet_server.video.judges.score_parser import Scale
from rewardfleet_server.video.judges.settings import BuiltInJudge, own
from rewardfleet_server.video.judges.vlm import Completion, GenerationParams
from rewardfleet_server.video.judges.vlm.factory import QWEN3_VL, builder
from rewardfleet_server.video.judges.vlm.judge import (
    JudgeSpec,
    VlmJudge,
    VlmOptions,
    scores,
    with_curve,
)
from rewardfleet_server.video.judges.vlm.prompt_layouts import FirstPreviousCurrent, part_of
from rewardfleet_server.video.judges.vlm.readouts import TextReadout, cause_of_abstention
from rewardfleet_server.video.judges.vlm.settings import CHECKPOINT, EitherEngineSettings
from rewardfleet_server.video.prompts import Prompt, authors

_NAME = "sole-r1"
_SYSTEM = Prompt.load("sole_system")
#: The field of the question besides the task: the progress at the frame before, in percent.
_FIELDS = ("previous_progress",)
_QUESTION = Prompt.load("sole_question", more_fields=_FIELDS)
_SAMPLING = GenerationParams(max_tokens=200, temperature=1.0, top_p=0.9, top_k=50)

#: As the authors read it; the last bracket may be missing.
_ANSWER = re.compile(r"<answer>(.*?)</answer", re.DOTALL)
_PERCENTAGE = re.compile(r"\s*([+-]?[0-9]{1,9})\s*%?\s*")


class SoleSettings(EitherEngineSettings):
    model_path: str | None = own("Philip-MIT/SOLE-R1-8B", CHECKPOINT)


def judge_spec(settings: SoleSettings) -> JudgeSpec:
    """Return how SOLE-R1 is used as a judge; see `prompts_of` for errors."""
    system, question = authors.prompts_of(settings.prompts, authors_texts, (_SYSTEM, _QUESTION))
    readouts = {"progress": ProgressReadout(question)}
    return JudgeSpec(_NAME, readouts, _SAMPLING, FirstPreviousCurrent(), system=system)


def authors_texts(file: Path) -> tuple[Prompt, Prompt]:
    """Read both from the authors' `src/reward_server/constants.py`; see `one_text` for errors."""
    texts = authors.read_texts(file)
    system = authors.one_text(texts, "SYSTEM_PROMPT_TEMPLATE")
    question = authors.one_text(texts, "USER_QUESTION_EXTERNAL_VIEW_TEMPLATE")
    return (
        Prompt(system, "sole_system_authors"),
        authors.authors_prompt(question, "sole_question_authors", more_fields=_FIELDS),
    )


class ProgressReadout(TextReadout):
    """Reads the progress at one frame, a percentage from -100 to 100 in `<answer>`."""

    name = "progress v1"

    def read(self, completions: Sequence[Completion], mode: Scale) -> Judgment:
        """Return the progress as the detail `progress`, and above 0 as the score."""
        del mode
        (completion,) = completions
        text = completion.text
        answer = _ANSWER.search(text)
        number = _PERCENTAGE.fullmatch(answer[1]) if answer else None
        if number is None:
            reason = f"{text}\n[no whole number of percent in <answer>]"
            return Judgment(None, reason, cause=cause_of_abstention(completions))
        progress = min(max(int(number[1]), -100), 100) / 100
        return Judgment(max(progress, 0.0), text, {"progress": progress})


class SoleJudge(VlmJudge):
    """Asks about one frame after another, with the progress that was answered for the one before.

    The frames of a clip take their turn; those of concurrent clips share batches.
    """

    def check_options(self, backend_kwargs: BackendKwargs) -> None:
        JudgeOptions.of(backend_kwargs)  # which have no effect: the answer is a percentage

    async def judge(self, task_text: str, clip: Clip, backend_kwargs: BackendKwargs) -> Judgment:
        del backend_kwargs  # they have no effect
        judgments = await self._judge_frames(task_text, clip)
        if not judgments:
            reason = "[there is no frame after the first one]"
            return Judgment(None, reason, cause=VideoCause.TOO_FEW_FRAMES)
        values = scores(judgments)
        answers = zip(clip.indices[1:], judgments, strict=True)
        text = "\n".join(f"[frame {index}] {judgment.text}" for index, judgment in answers)
        details = {**judgments[-1].details, "unreadable_answers": float(values.count(None))}
        judgment = replace(judgments[-1], text=text, details=details)
        return with_curve(judgment, clip.indices, [0.0, *values])

    async def _judge_frames(self, task_text: str, clip: Clip) -> list[Judgment]:
        """Judge all frames but the first, whose progress is 0.

        After an answer without a number, the next question names the progress before it.
        """
        query = self._query(VlmOptions())
        system = query.system.render(task_text) if query.system else None
        progress, judgments = 0.0, []
        for end in range(2, len(clip.frames) + 1):
            question = query.prompt.render(task_text, previous_progress=str(round(100 * progress)))
            shown = part_of(clip, 0, end)
            asking = partial(self._spec.layout.full_prompt, shown, question, system)
            judgment = await self._judge(await run_in_thread(self._threads, asking), query)
            progress = judgment.details.get("progress", progress)
            judgments.append(judgment)
        return judgments


JUDGE = BuiltInJudge(
    _NAME,
    SoleSettings,
    builder(_NAME, lambda own, _: judge_spec(own), QWEN3_VL, SoleJudge),
    "Reasons about one frame after another (arXiv 2603.28730).",
    {"progress": "The percentage in <answer> at the last frame; 0 if it is negative."},
)
