"""What is seen best from inside: batches, frames and message shapes."""

import asyncio
import json
import threading
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from rewardfleet import RewardFleet
from rewardfleet.wire.errors import BackendFailed, InvalidRequest
from rewardfleet_server.testing import serving
from rewardfleet_server.video.app import create_app
from rewardfleet_server.video.frames import Clip, decode_video
from rewardfleet_server.video.judges.vlm import Ask, Conversation, Picture, Video
from rewardfleet_server.video.judges.vlm.checkpoint import Checkpoint
from rewardfleet_server.video.judges.vlm.engine_transformers import TransformersEngine
from rewardfleet_server.video.judges.vlm.factory import primo_setup, qwen_on_transformers
from rewardfleet_server.video.judges.vlm.geometry import by_qwen_vl_utils
from rewardfleet_server.video.judges.vlm.judge import VlmJudge
from rewardfleet_server.video.judges.vlm.prompt_layouts import AsVideo, FirstVideoLast
from rewardfleet_server.video.settings import VideoSettings

from .conftest import TASK, VIDEOS


@pytest.mark.parametrize("readout", ["probability", "text"])
def test_64_callers_make_far_fewer_than_64_forward_passes(
    checkpoint: Path, videos: list[Path], readout: str
):
    settings = VideoSettings(
        model_path=str(checkpoint),
        device="cpu",
        video_root=[VIDEOS],
        readout=readout,
        max_tokens=8,
    )
    judge = qwen_on_transformers(settings).load()
    assert isinstance(judge, VlmJudge)
    engine = judge._engine
    assert isinstance(engine, TransformersEngine)

    async def all_of_them(url: str) -> list[str]:
        async with RewardFleet(video=url) as fleet:
            asked = (fleet.video.score(f"{n}", str(videos[n % 38])) for n in range(64))
            return [answer.backend for answer in await asyncio.gather(*asked)]

    with serving(create_app(settings, {"transformers": judge})) as url:
        before = engine.passes
        assert asyncio.run(all_of_them(url)) == ["transformers"] * 64
        passes = engine.passes - before
    steps = 1 if readout == "probability" else 8
    assert 64 / settings.batch_size <= passes / steps <= 24, passes


def test_a_batch_answers_as_each_alone_does(checkpoint3: Path, videos: list[Path]):
    """Conversations of different length are padded; nobody's answer changes by it."""
    model = Checkpoint(str(checkpoint3))
    engine = TransformersEngine(model, device="cpu", batch_size=4)
    settings = VideoSettings(readout="rubric")
    from rewardfleet_server.video.judges.vlm.factory import _qwen_setup

    ask = _qwen_setup("x", settings, model).readouts["rubric"].ask(None, 1)  # type: ignore[arg-type]
    conversations = [
        model.geometry.prepare(AsVideo().whole(_clip(path, 2 + 4 * n), "word " * n + "?", None))
        for n, path in enumerate(videos[:4])
    ]

    async def answers() -> tuple[list, list]:
        prompts = [model.prompt(conversation) for conversation in conversations]
        asked = list(zip(conversations, prompts, strict=True))
        alone = [await engine.answer(*one, ask) for one in asked]
        before = engine.passes
        together = await asyncio.gather(*(engine.answer(*one, ask) for one in asked))
        assert engine.passes - before <= 2
        return alone, list(together)

    for (alone,), (together,) in zip(*asyncio.run(answers()), strict=True):
        for token, logprob in alone.logprobs.items():
            assert together.logprobs[token] == pytest.approx(logprob, abs=3e-2)  # bfloat16


def test_one_that_fails_does_not_fail_its_batch(checkpoint: Path, clip: Clip):
    """Not even by an exception that cannot leave a thread."""
    model = Checkpoint(str(checkpoint))
    engine = TransformersEngine(model, device="cpu", batch_size=4)
    good = model.geometry.prepare(AsVideo().whole(clip, "?", None))
    prompt, ask = model.prompt(good), Ask(4, 0.0, 1.0)
    poisoned = prompt.replace("?", "<|vision_start|><|video_pad|><|vision_end|>")

    async def answers() -> list:
        asked = (engine.answer(good, said, ask) for said in (prompt, poisoned, prompt, prompt))
        async with asyncio.timeout(30):
            return await asyncio.gather(*asked, return_exceptions=True)

    outcomes = asyncio.run(answers())
    assert [isinstance(outcome, BackendFailed) for outcome in outcomes] == [
        False,
        True,
        False,
        False,
    ]


def _clip(path: Path, count: int, max_pixels: int = 200_704) -> Clip:
    return decode_video(str(path), count=count, max_pixels=max_pixels, stop=threading.Event())


SIZES = [(256, 256), (128, 128), (100, 300), (480, 640)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("max_pixels", [50_176, 200_704])
def test_frames_can_be_prepared_by_qwen_vl_utils(
    checkpoint: Path, clip: Clip, size: tuple[int, int], max_pixels: int
):
    """`--frames qwen-vl-utils`: frames of the same size, alike to within a level on average."""
    geometry = Checkpoint(str(checkpoint)).geometry
    conversation = primo_setup(VideoSettings()).view.whole(
        _resized(clip, size, max_pixels), "?", None
    )
    ours = geometry.prepare(conversation)
    theirs = by_qwen_vl_utils(geometry)(conversation)
    for mine, other in zip(_pixels(ours), _pixels(theirs), strict=True):
        assert mine.shape == other.shape
        assert np.abs(mine - other).mean() < 1


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("patch", [14, 16])
@pytest.mark.parametrize("max_pixels", [131_072, 200_704, 1_605_632])
def test_frames_are_as_qwen_vl_utils_prepares_those_of_files(
    checkpoint: Path, clip: Clip, size: tuple[int, int], patch: int, max_pixels: int
):
    """The same size; pixels differ by 4 of 255 levels at most, by a fifth of one on average."""
    geometry = replace(Checkpoint(str(checkpoint)).geometry, patch=patch)
    clip = _resized(clip, size, max_pixels)
    theirs = _by_the_librarys_file_way(clip, patch, max_pixels)
    (ours,) = _pixels(geometry.prepare(AsVideo().whole(clip, "?", None)))
    assert ours.shape == theirs.shape
    difference = np.abs(ours - theirs)
    assert difference.max() <= 4 and difference.mean() <= 0.2, difference.mean()


def _by_the_librarys_file_way(clip: Clip, patch: int, max_pixels: int) -> np.ndarray:
    """Have the library read our frames as those of a file."""
    import torch
    from qwen_vl_utils import fetch_video, vision_process

    stacked = torch.from_numpy(np.stack(clip.frames)).permute(0, 3, 1, 2)
    vision_process.VIDEO_READER_BACKENDS["ours"] = lambda _: (stacked, {}, 2.0)
    vision_process.get_video_reader_backend.cache_clear()
    before = vision_process.FORCE_QWENVL_VIDEO_READER
    vision_process.FORCE_QWENVL_VIDEO_READER = "ours"
    try:
        video = {"video": "file", "max_pixels": max_pixels}
        prepared = fetch_video(video, image_patch_size=patch)
    finally:
        vision_process.FORCE_QWENVL_VIDEO_READER = before
        vision_process.get_video_reader_backend.cache_clear()
    pixels: np.ndarray = prepared.permute(0, 2, 3, 1).numpy()
    return pixels


def _resized(clip: Clip, size: tuple[int, int], max_pixels: int) -> Clip:
    frames = tuple(cv2.resize(frame, size[::-1]) for frame in clip.frames[:4])
    return replace(clip, frames=frames, indices=clip.indices[:4], max_pixels=max_pixels)


def _pixels(conversation: Conversation) -> list[np.ndarray]:
    return [
        (part.frame if isinstance(part, Picture) else part.frames).astype(float)
        for part in conversation.parts
        if not isinstance(part, str)
    ]


def test_primo_sees_the_first_frame_the_video_and_the_last_frame(checkpoint: Path, clip: Clip):
    """In this order, then the question; before all that its system prompt."""
    setup = primo_setup(VideoSettings())
    question = setup.readouts["text"].prompt.render(TASK)
    assert setup.system is not None
    conversation = setup.view.whole(clip, question, setup.system.render(TASK))
    kinds = [type(part) for part in conversation.parts]
    assert kinds == [Picture, Video, Picture, str]
    first, _, last, _ = conversation.parts
    assert isinstance(first, Picture) and isinstance(last, Picture)
    assert (first.frame == clip.frames[0]).all() and (last.frame == clip.frames[-1]).all()
    picture = "<|vision_start|><|image_pad|><|vision_end|>"
    video = "<|vision_start|><|video_pad|><|vision_end|>"
    assert Checkpoint(str(checkpoint)).prompt(conversation) == (
        f"<|im_start|>system\n{setup.system.template}<|im_end|>\n"
        f"<|im_start|>user\n{picture}{video}{picture}{question}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_task_cannot_smuggle_in_a_picture(checkpoint: Path, clip: Clip):
    """The placeholders of the model's own language are taken out of what callers say."""
    prompt = Checkpoint(str(checkpoint)).prompt(
        AsVideo().whole(clip, "grasp <|video_pad|> and <|im_end|> <|image_pad|>", None)
    )
    assert prompt.count("<|video_pad|>") == 1 and "<|image_pad|>" not in prompt
    assert prompt.count("<|im_end|>") == 2  # of the system's and the user's turn


def test_a_curve_of_many_frames_takes_no_copy_of_them(clip: Clip):
    """Frames are stacked when they have the model's size, a few conversations at a time."""
    for view in (AsVideo(), FirstVideoLast()):
        for _, conversation in view.moments(clip, 16, "?", None):
            for part in conversation.parts:
                if isinstance(part, Video):
                    assert all(any(each is one for one in clip.frames) for each in part.frames)


def test_what_judgments_depend_on_is_in_the_provenance(checkpoint: Path):
    """Frame size, way of resizing, prompts to choose from, and the checkpoint's files."""
    base = {"model_path": str(checkpoint), "device": "cpu"}
    said = [
        qwen_on_transformers(VideoSettings(**base, **more)).load().provenance
        for more in (
            {},
            {"frame_pixels": 12544},
            {"frames": "qwen-vl-utils"},
            {"readout": "rubric"},
        )
    ]
    (checkpoint / "model.safetensors").touch()
    said.append(qwen_on_transformers(VideoSettings(**base)).load().provenance)
    assert len({json.dumps(dict(each), sort_keys=True) for each in said}) == 5


def test_a_conversation_too_long_is_told_before_the_model_sees_it(checkpoint: Path, clip: Clip):
    model = Checkpoint(str(checkpoint), 1024, flag="--max-model-len")
    conversation = model.geometry.prepare(AsVideo().whole(clip, "?", None))
    assert model.geometry.tokens(conversation) == 8 * 12 * 12
    with pytest.raises(InvalidRequest, match="the frames make 1152 tokens"):
        model.check_length(conversation, model.prompt(conversation), Ask(1, 0.0, 1.0))
