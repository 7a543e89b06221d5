"""The judges with a model, without loading one: checks, prompt layouts, readouts, prompts."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from rewardfleet.wire.errors import BackendFailed
from rewardfleet.wire.video import Curve
from rewardfleet_server.testing import FakeJudge
from rewardfleet_server.video.app import create_app
from rewardfleet_server.video.clip.frames import Clip
from rewardfleet_server.video.judges import DeferredJudge, Judgment, loading
from rewardfleet_server.video.judges.labels import Position, Token
from rewardfleet_server.video.judges.loading import find_judge
from rewardfleet_server.video.judges.vlm import Completion, ImagePart, VideoPart
from rewardfleet_server.video.judges.vlm.checkpoint import QwenGeometry
from rewardfleet_server.video.judges.vlm.factory import load_checkpoint
from rewardfleet_server.video.judges.vlm.families import primo_r1
from rewardfleet_server.video.judges.vlm.families.primo_r1 import PrimoSettings
from rewardfleet_server.video.judges.vlm.judge import order_correlation, scores, with_curve
from rewardfleet_server.video.judges.vlm.prompt_layouts import AsVideo, FirstVideoLast, even_lengths
from rewardfleet_server.video.judges.vlm.readouts import YES_AND_NO, LabelReadout, TextReadout
from rewardfleet_server.video.judges.vlm.settings import ModelSettings
from rewardfleet_server.video.prompts import PERCENTAGE, YES_OR_NO
from rewardfleet_server.video.settings import VideoSettings

from ...conftest import DATA, served, table
from ...measure import CpuStopwatch

#: The part of a checkpoint's config.json that is read before loading.
CONFIG = dict(table("checkpoint_configs"))["qwen2_5_vl"]


def clip(count: int) -> Clip:
    frames = tuple(np.full((28, 28, 3), index, np.uint8) for index in range(count))
    return Clip(frames, tuple(range(0, 10 * count, 10)), 10 * count, 20.0, 784)


# Checks before anything is loaded


@pytest.mark.parametrize("judge", ["qwen2_5_vl_vllm", "PRIMO-R1", "primo_r1_vllm", "transformers"])
@pytest.mark.parametrize(("content", "message"), table("other_models"))
def test_a_folder_without_a_model_of_the_family_is_rejected(
    tmp_path: Path, judge: str, content: str | None, message: str
):
    folder = tmp_path / "model"
    if content is not None:
        folder.mkdir()
    if content:
        (folder / "config.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        find_judge(judge, VideoSettings(backend=[judge], model_path=str(folder)))


@pytest.mark.parametrize(("judge", "given", "message"), table("settings_of_vlms"))
def test_settings_that_cannot_work_are_rejected(
    tmp_path: Path, judge: str, given: dict, message: str
):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    path = {} if judge == "openai" else {"model_path": str(tmp_path)}
    with pytest.raises(ValueError, match=message):
        find_judge(judge, VideoSettings(backend=[judge], **path, **given))


@pytest.mark.parametrize("ids", ["zero", "0,0", "", "0;1", "-1", "0,"])
def test_gpu_ids_are_distinct_numbers(ids: str):
    with pytest.raises(ValueError, match="give numbers, each once, like 0 or 0,1"):
        VideoSettings(gpu_ids=ids)


def test_all_judges_are_checked_before_any_is_loaded(monkeypatch: pytest.MonkeyPatch):
    def load() -> FakeJudge:
        raise AssertionError("loaded")

    def find(name: str, settings: VideoSettings) -> object:
        return DeferredJudge(load) if name == "first" else find_judge(name, settings)

    monkeypatch.setattr(loading, "find_judge", find)
    with pytest.raises(ValueError, match="nosuch"):
        create_app(VideoSettings(backend=["first", "nosuch"]))


@pytest.mark.parametrize("gpus", [0, 1])
def test_models_that_need_more_memory_than_the_gpus_have_are_rejected(
    monkeypatch: pytest.MonkeyPatch, gpus: int
):
    """Without GPUs the shares of their memory do not matter."""
    share = "gpu_memory_utilization"
    deferred = {
        "first": DeferredJudge(FakeJudge, {f"first.{share}": 0.8}),
        "second": DeferredJudge(FakeJudge, {f"second.{share}": 0.9}),
        "same-as-second": DeferredJudge(FakeJudge, {f"second.{share}": 0.9}),
    }
    monkeypatch.setattr(loading, "find_judge", lambda name, _: deferred[name])
    monkeypatch.setattr(loading, "gpu_count", lambda: gpus)
    assert set(loading.load_judges(VideoSettings(backend=["second", "same-as-second"])))
    both = VideoSettings(backend=["first", "second"])
    if gpus:
        message = "2 models .*_utilization 0.8 and second.gpu_memory_utilization 0.9 are more"
        with pytest.raises(ValueError, match=message):
            loading.load_judges(both)
    else:
        assert set(loading.load_judges(both)) == {"first", "second"}


def test_a_checkpoint_is_needed_whose_context_settings_may_shorten(tmp_path: Path):
    for judge in ("qwen2_5_vl_vllm", "PRIMO-R1"):
        with pytest.raises(ValueError, match=f"the judge {judge} needs --"):
            find_judge(judge, VideoSettings())
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    for own in ({}, {"max_model_len": 4096}):
        checkpoint = load_checkpoint(ModelSettings(model_path=str(tmp_path), **own), "x")
        assert checkpoint.context == own.get("max_model_len", 16384)


def test_the_name_of_a_geometry_is_part_of_cache_keys_and_does_not_change():
    geometry = QwenGeometry(patch=14, merge=2, max_pixels=50_176)
    assert str(geometry) == "QwenGeometry(patch=14, merge=2, temporal=2, max_pixels=50176)"


# Prompt layouts


@pytest.mark.parametrize("count", [1, 2, 3, 16])
def test_a_video_has_an_even_number_of_frames_with_their_indices(count: int):
    (video, question) = AsVideo().full_prompt(clip(count), "?", None).parts
    assert isinstance(video, VideoPart) and question == "?"
    assert len(video.frames) == len(video.indices) == count + count % 2
    assert video.indices[-1] == 10 * (count - 1) and video.total == 10 * count


def test_longer_prefixes_begin_with_the_shorter_ones():
    """By content and by id, so that an engine can reuse its cache."""
    prefixes = AsVideo().prefix_prompts(clip(16), 4, "?", None)
    assert [frame for frame, _ in prefixes] == [30, 70, 110, 150]
    (_, short), (_, longer), *_ = prefixes
    assert [part.id for part in short.parts[:-1]] == [part.id for part in longer.parts[:2]]
    again = AsVideo().prefix_prompts(clip(16), 4, "?", None)[0][1]
    assert not {part.id for part in short.parts[:-1]} & {part.id for part in again.parts[:-1]}
    assert len(AsVideo().prefix_prompts(clip(3), 8, "?", None)) == 2  # a short clip has fewer
    assert (even_lengths(1, 5), even_lengths(7, 3)) == ([1], [3, 5, 7])


def test_primo_sees_first_frame_video_and_last_frame_of_every_prefix():
    prefixes = FirstVideoLast().prefix_prompts(clip(4), 2, "?", "system")
    for (frame, conversation), end in zip(prefixes, (1, 3), strict=True):
        first, video, last, question = conversation.parts
        assert frame == 10 * end and question == "?" and conversation.system == "system"
        assert isinstance(first, ImagePart) and first.frame[0, 0, 0] == 0
        assert isinstance(last, ImagePart) and last.frame[0, 0, 0] == end
        assert isinstance(video, VideoPart) and video.frames[-1][0, 0, 0] == end


# Readouts


def read_first(readout: LabelReadout, logprobs: dict[str, float], first: str = "x") -> Judgment:
    """Read a token, with the log-probabilities of labels in its place."""
    tokens = [Token(text, value) for text, value in logprobs.items()]
    position = Position(first, logprobs.get(first, math.log(0.5)), tokens)
    return readout.read([Completion(first, truncated=True, positions=[position])], "auto")


def yes_or_no(min_mass: float = 0.0) -> LabelReadout:
    return LabelReadout("probability", YES_OR_NO, YES_AND_NO, {"Yes": 1, "No": 2}, min_mass)


@pytest.mark.parametrize(
    ("logprobs", "score"),
    [({"Yes": -301.0, " yes": -301.0, "No": -300.0}, 2 / math.e / (2 / math.e + 1)),
     ({"Yes": -math.inf, "No": -math.inf}, None), ({"Yes": 0.0, "No": -math.inf}, 1.0)],
)  # fmt: skip
def test_label_probabilities_are_normalized_even_if_they_are_tiny(
    logprobs: dict[str, float], score: float | None
):
    judgment = read_first(yes_or_no(), logprobs)
    assert judgment.score == (score if score is None else pytest.approx(score))
    assert "uncertainty" not in judgment.details


def test_labels_with_less_than_the_minimum_abstain_with_their_mass():
    readout = yes_or_no(min_mass=0.1)
    judgment = read_first(readout, {"Yes": math.log(0.08), "No": math.log(0.04)})
    assert judgment.score == pytest.approx(2 / 3)
    few = read_first(readout, {"Yes": math.log(0.04), "No": math.log(0.04)})
    assert few.score is None and few.details == {"label_mass": pytest.approx(0.08)}
    assert few.cause is None
    for logits in ({"Yes": 18.0, "No": 17.0}, {"Yes": -30.0, "No": -31.0, "x": 17.0}):
        with pytest.raises(BackendFailed, match="no log-probabilities"):
            read_first(readout, logits)


@pytest.mark.parametrize(
    ("first", "cause"),
    [("<think>", "answer_cut"), ("\n", "answer_cut"), ("**", "answer_cut"), ("_", "answer_cut"),
     ("", None), ("\ufffd", None), ("\x1b", None), ("x", None)],
)  # fmt: skip
def test_an_answer_without_a_word_yet_is_cut(first: str, cause: str | None):
    """Parts of characters, whose text is empty or a replacement character, are words."""
    assert read_first(yes_or_no(), {"Yes": -0.1, "No": -9.0}, first).cause == cause


def test_a_rubric_is_the_expected_grade():
    grades = {str(grade): (grade - 1) / 4 for grade in range(1, 6)}
    logprobs = {each: math.log(p / 1000) for each, p in zip(grades, (1, 2, 4, 2, 1), strict=True)}
    judgment = read_first(LabelReadout("rubric", YES_OR_NO, grades, {"3": 3}), logprobs, "3")
    assert judgment.score == pytest.approx(0.5)


def test_samples_give_mean_and_spread_and_too_few_with_a_score_abstain():
    texts = [Completion(text, truncated=False) for text in ("80", "90", "100", "the bowl", "hm")]
    judgment = TextReadout(PERCENTAGE).read(texts[:4], "percentage")
    assert judgment.score == pytest.approx(0.9)
    assert judgment.details == pytest.approx({"spread": math.sqrt(0.02 / 3), "samples": 3.0})
    assert TextReadout(PERCENTAGE).read(texts[2:], "percentage").score is None


@pytest.mark.parametrize(("text", "truncated", "score"), table("primo_answers"))
def test_the_output_of_primo_is_parsed_strictly(text: str, truncated: bool, score: float | None):
    readout = primo_r1.judge_spec(PrimoSettings()).readouts["text"]
    judgment = readout.read([Completion(text, truncated=truncated)], "percentage")
    assert judgment.score == score
    assert judgment.details == ({} if score is None else {"progress": score})


@pytest.mark.serial
def test_repeated_tags_are_parsed_in_linear_time():
    readout = primo_r1.judge_spec(PrimoSettings()).readouts["text"]
    completion = Completion("<think>a</think>" * 20_000, truncated=True)
    watch = CpuStopwatch()
    assert readout.read([completion], "percentage").score is None
    assert watch.seconds < 1


# The authors' prompts


def test_the_authors_prompts_are_parsed_and_not_executed():
    spec = primo_r1.judge_spec(PrimoSettings(prompts=DATA / "video" / "authors" / "primo.txt"))
    assert spec.system is not None and spec.system.render("t") == "Keep to {this} format."
    user = spec.readouts["text"].prompt
    assert user.render("stack the bowls").startswith("QUESTION:\nThe first picture is")
    assert "stack the bowls" in user.render("stack the bowls")
    assert user.render("t").endswith("regression\n\nAnswer as `regression`. Give a number.")
    assert user.digest != primo_r1.judge_spec(PrimoSettings()).readouts["text"].prompt.digest


# Curves


@pytest.mark.parametrize(("values", "expected"), table("rank_correlations"))
def test_value_order_correlation_is_spearmans_rank_correlation(
    values: list[float], expected: float | None
):
    correlation = order_correlation(values)
    assert correlation == (None if expected is None else pytest.approx(expected))


def test_a_curve_contains_abstentions():
    judgments = [Judgment(0.1, "a"), Judgment(None, "b"), Judgment(0.6, "c", {"x": 1.0})]
    judgment = with_curve(judgments[-1], [3, 7, 11], scores(judgments))
    assert judgment.curve is not None
    assert judgment.curve.values == [0.1, None, 0.6] and judgment.curve.frames == [3, 7, 11]
    assert judgment.details == pytest.approx({"x": 1.0, "value_order_correlation": 1.0})
    assert (judgment.score, judgment.text) == (0.6, "c")
    assert with_curve(judgments[0], [3], [0.1]).details == {}


# The service


def test_the_response_contains_the_curve(make_video):
    class Curved(FakeJudge):
        async def judge(self, *_: object) -> Judgment:
            return Judgment(0.5, "", curve=Curve(frames=[1, 2], values=[None, 0.5]))

    video = make_video(3)
    with served(Curved(), video_root=[video.parent]) as client:
        body = {"task_text": "t", "video_path": str(video)}
        answer = client.post("/score", json=body).json()
    assert answer["curve"] == {"frames": [1, 2], "values": [None, 0.5]}
