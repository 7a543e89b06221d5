"""The judges of published reward models, without a model: readouts, layouts, prompts, checks."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import click
import numpy as np
import pytest
from pydantic import JsonValue

from rewardfleet.wire.errors import BackendFailed, InvalidRequest
from rewardfleet_server.flags import ServiceCommand
from rewardfleet_server.video.clip.frames import Clip
from rewardfleet_server.video.judges import Judgment
from rewardfleet_server.video.judges.labels import Position, Token
from rewardfleet_server.video.judges.loading import find_judge
from rewardfleet_server.video.judges.vlm import (
    Completion,
    Conversation,
    GenerationParams,
    ImagePart,
)
from rewardfleet_server.video.judges.vlm.families import (
    primo_r1,
    robometer,
    roboreward,
    sole_r1,
    topreward,
)
from rewardfleet_server.video.judges.vlm.prompt_layouts import (
    FirstPreviousCurrent,
    OneVideoToContinue,
)
from rewardfleet_server.video.judges.vlm.readouts import LabelReadout
from rewardfleet_server.video.prompts.authors import prompts_of
from rewardfleet_server.video.settings import VideoSettings

from ...conftest import DATA, table

#: The part of a checkpoint's config.json that is read before loading.
CONFIG = dict(table("checkpoint_configs"))["qwen3_vl"]


def clip(count: int, *, height: int = 32, width: int = 32) -> Clip:
    """Return frames whose level is 10 more than that of the frame before."""
    frames = tuple(np.full((height, width, 3), 10 * n + 10, np.uint8) for n in range(count))
    return Clip(frames, tuple(range(0, 5 * count, 5)), 5 * count, 20.0, 784)


# roboreward


@pytest.mark.parametrize(("text", "grade"), table("roboreward_answers"))
def test_roboreward_states_exactly_one_grade_or_abstains(text: str, grade: int | None):
    readout = roboreward.judge_spec(roboreward.RoboRewardSettings()).readouts["grade"]
    judgment = readout.read([Completion(text, truncated=False)], "auto")
    assert judgment.score == (None if grade is None else (grade - 1) / 4)
    assert judgment.details == ({} if grade is None else {"grade": grade})
    assert text in judgment.text


def test_roboreward_is_decoded_greedily_and_a_cut_grade_abstains():
    spec = roboreward.judge_spec(roboreward.RoboRewardSettings())
    params = spec.readouts["grade"].generation_params(spec.sampling, 1)
    assert (params.temperature, params.max_tokens, params.n) == (0, 128, 1)
    judgment = spec.readouts["grade"].read([Completion("ANSWER: 4", truncated=True)], "auto")
    assert judgment.score is None and "token limit" in judgment.text


# topreward


def test_the_score_of_topreward_is_the_share_of_true_and_keeps_the_log_probability():
    labels = {"true": 1.0, "false": 0.0}
    tokens = {" True": 7, " False": 8}
    readout = LabelReadout("x", topreward.PROMPT, labels, tokens, detail="true_logprob")

    def read(true: float, false: float, first: str = " True") -> Judgment:
        position = Position(first, true, [Token(" True", true), Token(" False", false)])
        return readout.read([Completion(" True", truncated=True, positions=[position])], "auto")

    judgment = read(-20.0, -22.0)
    assert judgment.score == pytest.approx(1 / (1 + np.exp(-2)))
    assert judgment.details["true_logprob"] == pytest.approx(-20.0)
    assert read(-20.0, -22.0, "\n").score == judgment.score
    judgment = read(-np.inf, -1.0)
    assert judgment.score == 0 and "true_logprob" not in judgment.details
    params = readout.generation_params(topreward._SAMPLING, 1)
    assert (params.max_tokens, params.labels) == (1, tokens)


@pytest.mark.parametrize(("logs", "values"), table("topreward_curves"))
def test_the_curve_of_topreward_is_scaled_over_the_prefixes(logs: list, values: list):
    judgments = [Judgment(0.5, "", {} if log is None else {"true_logprob": log}) for log in logs]
    assert topreward.min_max(judgments) == values


def test_the_model_of_topreward_continues_the_text():
    layout = OneVideoToContinue()
    assert layout.full_prompt(clip(4), "Answer:", None).is_open
    prefixes = layout.prefix_prompts(clip(4), 2, "Answer:", None)
    assert [(frame, each.is_open) for frame, each in prefixes] == [(5, True), (15, True)]
    assert all(len(each.parts) == 2 for _, each in prefixes)  # each prefix is one video
    assert topreward.PROMPT.render("x").endswith(":")  # the next word begins with a space


# sole-r1


@pytest.mark.parametrize(("text", "progress"), table("sole_answers"))
def test_the_answer_of_sole_is_a_whole_number_of_percent(text: str, progress: float | None):
    readout = sole_r1.judge_spec(sole_r1.SoleSettings()).readouts["progress"]
    judgment = readout.read([Completion(text, truncated=False)], "auto")
    assert judgment.score == (None if progress is None else max(progress, 0))
    assert judgment.details == ({} if progress is None else {"progress": progress})


def test_sole_sees_the_first_the_previous_and_the_current_frame():
    """In squares of 384 pixels with gaps of 5, resized to multiples of 28 pixels."""
    image = _image(FirstPreviousCurrent().full_prompt(clip(4), "?", None))
    assert image.shape == (392, 1176, 3)
    assert [int(image[196, x].mean()) for x in (190, 588, 980)] == [10, 30, 40]
    assert image[196, 390:392].max() < 10  # a gap


def test_frames_are_fitted_into_the_middle_of_black_squares():
    image = _image(FirstPreviousCurrent().full_prompt(clip(2, height=24, width=48), "?", None))
    assert image[90, 190].max() == 0 and image[300, 190].max() == 0
    assert int(image[196, 190].mean()) == 10
    tiny = FirstPreviousCurrent().full_prompt(clip(2, height=1, width=500), "?", None)
    assert _image(tiny).shape == (392, 1176, 3)


def _image(conversation: Conversation) -> np.ndarray:
    (image,) = [part for part in conversation.parts if isinstance(part, ImagePart)]
    return image.frame


class ScriptedEngine:
    """Answers each conversation with the next of some texts."""

    provenance: Mapping[str, JsonValue] = MappingProxyType({"engine": "scripted"})
    failure = None

    def __init__(self, *answers: str) -> None:
        self._answers: Iterator[str] = iter(answers)
        self.questions: list[str] = []
        self.images: list[np.ndarray] = []

    def tokens(self, conversation: Conversation, prompt: str) -> list[int]:
        return [0]

    async def generate(
        self, conversation: Conversation, prompt: str, params: GenerationParams
    ) -> list[Completion]:
        assert params.temperature == 1.0
        self.questions.append(prompt)
        self.images.append(_image(conversation))
        answer = next(self._answers, None)
        if answer is None:
            await asyncio.Event().wait()
        if answer == "fail":
            raise BackendFailed("the model failed")
        return [Completion(str(answer), truncated=False)]

    async def aclose(self) -> None:
        pass


def sole_judge(engine: ScriptedEngine) -> sole_r1.SoleJudge:
    """Return the judge with a checkpoint whose chat template is the text alone."""
    checkpoint: Any = SimpleNamespace(
        path="p",
        name="p",
        fingerprint="f",
        geometry=SimpleNamespace(name="g", prepare=lambda conversation: conversation),
        prompt=lambda conversation: conversation.parts[-1],
        check_length=lambda *_: None,
    )
    return sole_r1.SoleJudge(sole_r1.judge_spec(sole_r1.SoleSettings()), checkpoint, engine)


def answers(*numbers: str) -> list[str]:
    return [f"<think>t</think><answer>{number}%</answer>" for number in numbers]


async def test_sole_asks_about_each_frame_with_the_progress_before():
    engine = ScriptedEngine(*answers("10", "-20", "150"))
    judgment = await sole_judge(engine).judge("lift {it}", clip(4), {})
    progress = ["0%", "10%", "-20%"]
    for question, before in zip(engine.questions, progress, strict=True):
        assert f"previous moment is {before}." in question and "lift {it}" in question
    levels = [[int(image[196, x].mean()) for x in (190, 588, 980)] for image in engine.images]
    assert levels == [[10, 10, 20], [10, 20, 30], [10, 30, 40]]
    assert judgment.score == 1.0
    assert judgment.curve is not None
    assert judgment.curve.frames == [0, 5, 10, 15]
    assert judgment.curve.values == [0.0, 0.1, 0.0, 1.0]
    expected = {"progress": 1.0, "unreadable_answers": 0, "value_order_correlation": 0.632}
    assert judgment.details == pytest.approx(expected, abs=1e-3)
    lines = [line.partition("]")[0] for line in judgment.text.splitlines()]
    assert lines == ["[frame 5", "[frame 10", "[frame 15"]
    engine = ScriptedEngine(*answers("30", "thirty", "40"))  # an answer that cannot be read
    await sole_judge(engine).judge("t", clip(4), {})
    assert "previous moment is 30%." in engine.questions[2]


@pytest.mark.parametrize(("numbers", "progress", "unreadable", "curve"), table("sole_clips"))
async def test_the_last_answer_is_the_score_if_it_can_be_read(
    numbers: list[str], progress: float | None, unreadable: int, curve: list
):
    engine = ScriptedEngine(*answers(*numbers))
    judgment = await sole_judge(engine).judge("t", clip(len(numbers) + 1), {})
    assert judgment.score == (None if progress is None else max(progress, 0))
    assert judgment.details.get("progress") == progress
    assert judgment.details["unreadable_answers"] == unreadable
    assert judgment.curve is not None and judgment.curve.values == curve


async def test_a_single_frame_abstains_and_a_failure_at_one_frame_fails_the_clip():
    judgment = await sole_judge(ScriptedEngine()).judge("t", clip(1), {})
    assert judgment.score is None and "first one" in judgment.text
    with pytest.raises(BackendFailed):
        await sole_judge(ScriptedEngine(*answers("10"), "fail")).judge("t", clip(9), {})


async def test_clips_do_not_wait_for_each_other_and_cancelled_ones_ask_no_further_question():
    """Each clip has one question in progress; those of all clips are in progress together."""
    engine = ScriptedEngine(*answers("10"))
    judging = [asyncio.ensure_future(sole_judge(engine).judge("t", clip(9), {})) for _ in range(8)]
    async with asyncio.timeout(10):
        while len(engine.questions) < 9:  # the second one of the clip that got an answer
            await asyncio.sleep(0.01)
    for each in judging:
        each.cancel()
    results = await asyncio.gather(*judging, return_exceptions=True)
    assert {type(each) for each in results} == {asyncio.CancelledError}
    assert len(engine.questions) == 9


def test_sole_takes_no_options_that_it_cannot_honor_and_is_not_cached():
    judge = sole_judge(ScriptedEngine())
    judge.check_options({"score_mode": "percentage"})
    for options in ({"curve": 4}, {"n": 2}, {"prompt_template": "x"}, {"x": 1}):
        with pytest.raises(InvalidRequest, match=next(iter(options))):
            judge.check_options(options)
    assert not judge.deterministic
    sampling = {"temperature": 1.0, "top_p": 0.9, "top_k": 50, "max_tokens": 200}
    assert judge.provenance["sampling"] == sampling
    assert json.dumps(judge.provenance)


# The authors' prompts

AUTHORS = DATA / "video" / "authors"


def test_the_prompts_are_read_from_the_authors_files(tmp_path: Path):
    settings = roboreward.RoboRewardSettings(prompts=AUTHORS / "roboreward.md")
    prompt = roboreward.judge_spec(settings).readouts["grade"].prompt
    assert prompt.render("lift").startswith("Grade it")
    assert prompt.render("lift").endswith("Task: lift") and prompt.name == "roboreward_authors"
    file = tmp_path / "README.md"  # many unclosed blocks take linear time
    file.write_text("```text\n" * 50_000 + (AUTHORS / "roboreward.md").read_text())
    assert roboreward.authors_text(file).render("lift").startswith("Grade it")
    rendered = topreward.authors_text(AUTHORS / "topreward.txt").render("lift {it}")
    assert rendered == "The video shows: lift {it} True or not? Answer:"
    spec = sole_r1.judge_spec(sole_r1.SoleSettings(prompts=AUTHORS / "sole.txt"))
    assert spec.system is not None and spec.system.render("t") == "Think. Answer. Done."
    question = spec.readouts["progress"].prompt.render("lift", previous_progress="-5")
    assert question == "One view of lift. It was at -5%. And now?"


@pytest.mark.parametrize(
    "read",
    [
        *(judge.authors_text for judge in (roboreward, topreward, robometer)),
        *(sole_r1.authors_texts, primo_r1.authors_prompts),
    ],
)
@pytest.mark.parametrize(
    "text",
    [
        *table("files_without_prompts"),
        "A = " + "+".join(["'x'"] * 50_000),
        "A = " + "+".join(["'x'"] * 980),
        "A = " + "-" * 100_000 + "1",
    ],
    ids=range(21),
)
def test_files_without_the_prompts_are_rejected_by_name(tmp_path: Path, read: Any, text: str):
    file = tmp_path / "prompts.py"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"prompts .*prompts\.py: "):
        prompts_of(file, read, None)


# Checks before anything is loaded


@pytest.mark.parametrize("judge", ["roboreward", "topreward", "sole-r1"])
@pytest.mark.parametrize(("given", "config", "message"), table("settings_of_published"))
def test_settings_that_cannot_work_are_rejected(
    tmp_path: Path, judge: str, given: dict, config: dict, message: str
):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | config))
    with pytest.raises(ValueError, match=message):
        find_judge(judge, VideoSettings(backend=[judge], model_path=str(tmp_path), **given))


@pytest.mark.parametrize("judge", ["roboreward", "sole-r1"])
def test_a_checkpoint_of_another_model_type_is_rejected(tmp_path: Path, judge: str):
    config = CONFIG | {"model_type": "qwen2_5_vl"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=f"'qwen2_5_vl' is not {judge}, which is a 'qwen3_vl'"):
        find_judge(judge, VideoSettings(backend=[judge], model_path=str(tmp_path)))


def test_judge_is_another_spelling_of_backend():
    seen: list[VideoSettings] = []
    command = ServiceCommand("video", "", VideoSettings, lambda given: seen.append(given) or 0)
    command.main(["--judge", "topreward", "--backend", "sole-r1"], standalone_mode=False)
    assert seen[0].backends == ["topreward", "sole-r1"]
    assert "--backend, --judge JUDGE" in command.get_help(click.Context(command))
