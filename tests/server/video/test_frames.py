"""Sampling and decoding."""

import threading

import cv2
import numpy as np
import pytest

from rewardfleet.wire.video import sample_indices
from rewardfleet_server.video.clip.frames import Clip, DecodeSpec, decode_images, decode_video

from ...conftest import LONG_CLIP, table


def decode(path, *, count: int = 16, max_pixels: int = 200_704) -> Clip:
    return decode_video(str(path), DecodeSpec(count, max_pixels))


def decode_list(images: list[bytes], *, count: int, fps: float | None = None) -> Clip:
    return decode_images(images, fps, DecodeSpec(count, 10_000))


@pytest.mark.parametrize("total", range(1, 21))
def test_clips_of_1_to_20_frames_are_decoded(make_video, total):
    """The original LIBERO reward server failed on 1, 3, 7, 11 and 15 frames."""
    clip = decode(make_video(total))
    assert (clip.total, clip.fps) == (total, 20)
    assert len(clip.frames) == len(clip.indices) == min(total, 16)
    assert (clip.indices[0], clip.indices[-1]) == (0, total - 1)


def test_the_frames_match_the_indices(make_video):
    clip = decode(make_video(200), count=10)
    levels = [float(frame.mean()) for frame in clip.frames]
    assert levels == pytest.approx(clip.indices, abs=4)


@pytest.mark.parametrize(("total", "count", "indices"), table("sampled_frames"))
def test_sampling_is_even_and_includes_both_ends(total, count, indices):
    assert list(sample_indices(total, count)) == indices


def test_a_real_rollout_is_decoded():
    clip = decode(LONG_CLIP, count=128)
    assert (clip.total, clip.fps, len(clip.frames)) == (308, 20.0, 128)
    assert {frame.shape for frame in clip.frames} == {(256, 256, 3)}
    assert {frame.dtype for frame in clip.frames} == {np.dtype(np.uint8)}


@pytest.mark.parametrize("max_pixels", [784, 1000, 12_345, 65_535, 65_536, 200_704])
def test_frames_are_scaled_to_max_pixels_with_their_aspect_ratio(max_pixels):
    height, width = decode(LONG_CLIP, count=2, max_pixels=max_pixels).frames[0].shape[:2]
    assert height * width <= max_pixels
    assert height == width
    assert height * width >= min(max_pixels, 65_536) * 0.9


def test_a_very_narrow_video_is_scaled_too(make_video):
    frame = decode(make_video(3, width=2000, height=2), max_pixels=784).frames[0]
    assert frame.shape[0] * frame.shape[1] <= 784


def test_colors_are_rgb(tmp_path):
    path = tmp_path / "red.mp4"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 20.0, (64, 64))
    red = np.zeros((64, 64, 3), np.uint8)
    red[..., 2] = 255  # OpenCV writes BGR
    writer.write(red)
    writer.release()
    jpeg = cv2.imencode(".jpg", red)[1].tobytes()
    for clip in (decode(path), decode_list([jpeg], count=1)):
        assert clip.frames[0][32, 32] == pytest.approx([255, 0, 0], abs=12)


def test_images_are_sampled_like_videos():
    frames = (np.full((8, 8, 3), level, np.uint8) for level in range(0, 100, 2))
    images = [cv2.imencode(".png", frame)[1].tobytes() for frame in frames]
    clip = decode_list(images, count=5, fps=10.0)
    assert clip.indices == sample_indices(50, 5)
    assert [int(frame[0, 0, 0]) for frame in clip.frames] == [2 * index for index in clip.indices]
    assert (clip.total, clip.fps) == (50, 10.0)


@pytest.mark.parametrize("mode", ["gray", "alpha", "16bit"])
def test_images_of_other_depths_become_rgb(mode):
    shape = {"gray": (8, 8), "alpha": (8, 8, 4), "16bit": (8, 8, 3)}[mode]
    level, depth = (200 * 257, np.uint16) if mode == "16bit" else (200, np.uint8)
    content = cv2.imencode(".png", np.full(shape, level, depth))[1].tobytes()
    frame = decode_list([content], count=1).frames[0]
    assert frame.shape == (8, 8, 3) and frame.dtype == np.uint8
    assert frame[0, 0] == pytest.approx([200] * 3, abs=1)


def test_decoding_ends_when_stop_is_set():
    stop = threading.Event()
    stop.set()
    with pytest.raises(TimeoutError):
        decode_video(str(LONG_CLIP), DecodeSpec(16, 200_704, stop=stop))
