"""Engines in the test's own process: batches, frames and prompts."""

import asyncio
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from rewardfleet import RewardFleet
from rewardfleet.wire.errors import BackendFailed, InvalidRequest
from rewardfleet_server.testing import serving
from rewardfleet_server.video.app import create_app
from rewardfleet_server.video.clip.frames import Clip, DecodeSpec, decode_video
from rewardfleet_server.video.judges.vlm import GenerationParams, ImagePart, VideoPart
from rewardfleet_server.video.judges.vlm.checkpoint import VIDEO_TOKENS, Checkpoint, QwenGeometry
from rewardfleet_server.video.judges.vlm.engine_transformers import TransformersEngine
from rewardfleet_server.video.judges.vlm.factory import load_checkpoint
from rewardfleet_server.video.judges.vlm.families import primo_r1, qwen
from rewardfleet_server.video.judges.vlm.prompt_layouts import AsVideo, FirstVideoLast
from rewardfleet_server.video.judges.vlm.settings import ModelSettings, QwenVlSettings
from rewardfleet_server.video.settings import VideoSettings

from .conftest import CLIPS, TASK, VIDEOS, count_passes, load_judge


def load(folder: Path, **given: Any) -> Checkpoint:
    return load_checkpoint(ModelSettings(model_path=str(folder), **given), "a judge")


@pytest.mark.parametrize("readout", ["probability", "text"])
def test_64_concurrent_requests_take_far_fewer_than_64_forward_passes(
    checkpoint: Path, videos: list[Path], readout: str
):
    steps = 1 if readout == "probability" else 8
    own = ("device=cpu", f"readout={readout}", f"max_tokens={steps}")
    judge = load_judge("transformers", checkpoint, *own)
    settings = VideoSettings(video_root=[VIDEOS])

    async def score_all(url: str) -> list[str]:
        async with RewardFleet(video=url) as fleet:
            requests = (fleet.video.score(f"{n}", str(videos[n % 38])) for n in range(64))
            return [score.backend for score in await asyncio.gather(*requests)]

    with serving(create_app(settings, {"transformers": judge})) as url:
        passes = count_passes(judge._engine)
        assert asyncio.run(score_all(url)) == ["transformers"] * 64
    assert 64 / 8 <= len(passes) / steps <= 24, passes


def test_a_batch_has_the_same_results_as_single_conversations(checkpoint3: Path):
    """Padding of conversations of different length does not change them."""
    model = load(checkpoint3)
    engine = TransformersEngine(model, device="cpu", batch_size=4)
    spec = qwen.judge_spec("x", QwenVlSettings(readout="rubric"), model)
    params = spec.readouts["rubric"].generation_params(replace(spec.sampling, max_tokens=1), 1)
    clips = [decode_video(path, DecodeSpec(2 + 4 * n, 200_704)) for n, path in enumerate(CLIPS[:4])]
    prompts = (AsVideo().full_prompt(clip, "word " * n + "?", None) for n, clip in enumerate(clips))
    conversations = [model.geometry.prepare(each) for each in prompts]

    async def generate() -> tuple[list, list]:
        inputs = [(conversation, model.prompt(conversation)) for conversation in conversations]
        single = [await engine.generate(*each, params) for each in inputs]
        passes = count_passes(engine)
        batched = await asyncio.gather(*(engine.generate(*each, params) for each in inputs))
        assert len(passes) <= 2
        return single, list(batched)

    for (single,), (batched,) in zip(*asyncio.run(generate()), strict=True):
        one, other = (each.positions[0].top_logprobs for each in (single, batched))
        assert len(one) >= 5
        for expected, found in zip(one, other, strict=True):
            assert found.logprob == pytest.approx(expected.logprob, abs=3e-2)  # bfloat16


def test_a_failing_conversation_does_not_fail_its_batch(checkpoint: Path, clip: Clip):
    """Not even with StopIteration, which cannot be raised out of a thread."""
    model = load(checkpoint)
    engine = TransformersEngine(model, device="cpu", batch_size=4)
    conversation = model.geometry.prepare(AsVideo().full_prompt(clip, "?", None))
    prompt, params = model.prompt(conversation), GenerationParams(4, 0.0, 1.0)
    invalid = prompt.replace("?", "<|vision_start|><|video_pad|><|vision_end|>")

    async def generate() -> list:
        prompts = (prompt, invalid, prompt, prompt)
        calls = (engine.generate(conversation, each, params) for each in prompts)
        async with asyncio.timeout(120):
            return await asyncio.gather(*calls, return_exceptions=True)

    failures = [isinstance(outcome, BackendFailed) for outcome in asyncio.run(generate())]
    assert failures == [False, True, False, False]


SIZES = [(256, 256), (128, 128), (100, 300), (480, 640)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("patch", [14, 16])
@pytest.mark.parametrize("max_pixels", [131_072, 200_704, 1_605_632])
def test_frames_are_resized_as_qwen_vl_utils_resizes_files(
    checkpoint: Path, clip: Clip, size: tuple[int, int], patch: int, max_pixels: int
):
    """Sizes are equal; pixels differ by at most 4 of 255 levels, and a fifth of one on average."""
    geometry = replace(load(checkpoint).geometry, patch=patch)
    frames = tuple(cv2.resize(frame, size[::-1]) for frame in clip.frames[:4])
    clip = replace(clip, frames=frames, indices=clip.indices[:4], max_pixels=max_pixels)
    by_library = _file_by_qwen_vl_utils(clip, patch, max_pixels)
    video, _ = geometry.prepare(AsVideo().full_prompt(clip, "?", None)).parts
    resized = video.frames.astype(float)
    assert resized.shape == by_library.shape
    difference = np.abs(resized - by_library)
    assert difference.max() <= 4 and difference.mean() <= 0.2, difference.mean()


def _file_by_qwen_vl_utils(clip: Clip, patch: int, max_pixels: int) -> np.ndarray:
    """Let the library read a clip's frames as those of a file."""
    import torch
    from qwen_vl_utils import fetch_video, vision_process

    stacked = torch.from_numpy(np.stack(clip.frames)).permute(0, 3, 1, 2)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(vision_process, "get_video_reader_backend", lambda: "test")
        patched.setitem(vision_process.VIDEO_READER_BACKENDS, "test", lambda _: (stacked, {}, 2.0))
        video = {"video": "file", "max_pixels": max_pixels}
        return fetch_video(video, image_patch_size=patch).permute(0, 2, 3, 1).numpy()


def test_primo_sees_the_first_frame_the_video_and_the_last_frame(checkpoint: Path, clip: Clip):
    """In this order, after the system prompt and before the question."""
    spec = primo_r1.judge_spec(primo_r1.PrimoSettings())
    question = spec.readouts["text"].prompt.render(TASK)
    assert spec.system is not None
    conversation = spec.layout.full_prompt(clip, question, spec.system.render(TASK))
    types = [type(part) for part in conversation.parts]
    assert types == [ImagePart, VideoPart, ImagePart, str]
    first, _, last, _ = conversation.parts
    assert isinstance(first, ImagePart) and isinstance(last, ImagePart)
    assert (first.frame == clip.frames[0]).all() and (last.frame == clip.frames[-1]).all()
    image = "<|vision_start|><|image_pad|><|vision_end|>"
    video = "<|vision_start|><|video_pad|><|vision_end|>"
    assert load(checkpoint).prompt(conversation) == (
        f"<|im_start|>system\n{spec.system.template}<|im_end|>\n"
        f"<|im_start|>user\n{image}{video}{image}{question}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_task_cannot_add_an_image(checkpoint: Path, clip: Clip):
    """Special tokens are removed from texts of callers."""
    prompt = load(checkpoint).prompt(
        AsVideo().full_prompt(clip, "grasp <|video_pad|> and <|im_end|> <|image_pad|>", None)
    )
    assert prompt.count("<|video_pad|>") == 1 and "<|image_pad|>" not in prompt
    assert prompt.count("<|im_end|>") == 2  # of the system's and the user's turn


def test_the_prompts_of_a_curve_do_not_copy_frames(clip: Clip):
    """Frames are stacked once they have the model's size, a few conversations at a time."""
    for layout in (AsVideo(), FirstVideoLast()):
        for _, conversation in layout.prefix_prompts(clip, 16, "?", None):
            for part in conversation.parts:
                if isinstance(part, VideoPart):
                    assert all(any(each is one for one in clip.frames) for each in part.frames)


def test_the_provenance_contains_everything_that_judgments_depend_on(checkpoint: Path):
    """Frame size, the prompts of all readouts, and the checkpoint's files."""
    load = partial(load_judge, "transformers", checkpoint, "device=cpu")
    provenances = [
        load(*own).provenance for own in ([], ["frame_pixels=12544"], ["readout=rubric"])
    ]
    (checkpoint / "model.safetensors").touch()
    provenances.append(load().provenance)
    assert len({json.dumps(dict(each), sort_keys=True) for each in provenances}) == 4


def test_a_conversation_that_is_too_long_is_rejected(checkpoint: Path, clip: Clip):
    model = load(checkpoint, max_model_len=1024)
    conversation = model.geometry.prepare(AsVideo().full_prompt(clip, "?", None))
    assert model.geometry.tokens(conversation) == 8 * 12 * 12
    with pytest.raises(InvalidRequest, match="the frames take 1152 tokens"):
        model.check_length(conversation, model.prompt(conversation), GenerationParams(1, 0.0, 1.0))


def test_frames_are_at_most_as_large_as_the_settings_say_and_not_too_narrow():
    geometry = QwenGeometry(patch=16, merge=2, max_pixels=50_176)
    assert geometry.size(256, 256, 200_704, VIDEO_TOKENS) == (224, 224)
    with pytest.raises(InvalidRequest, match="no side may be more than 200 times the other"):
        geometry.size(1, 201, 200_704, VIDEO_TOKENS)
