"""Sampling and decoding, also of parts of video files: `start_s` and `end_s`."""

import itertools
import threading
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.video import sample_indices
from rewardfleet_server.video.clip.frames import (
    Clip,
    DecodeSpec,
    decode_images,
    decode_video,
    video_cost,
)
from rewardfleet_server.video.clip.video_reader import TimeRange

from ...conftest import LONG_CLIP, Serve, table


def decode(path, *, count: int = 16, max_pixels: int = 200_704, part=None) -> Clip:
    part = TimeRange(*part) if part else None
    return decode_video(str(path), DecodeSpec(count, max_pixels, part=part))


def decode_list(images: list[bytes], *, count: int, fps: float | None = None) -> Clip:
    return decode_images(images, fps, DecodeSpec(count, 10_000))


@pytest.mark.parametrize("total", range(1, 21))
def test_clips_of_1_to_20_frames_are_decoded(make_video, total):
    """The original LIBERO reward server failed on 1, 3, 7, 11 and 15 frames."""
    clip = decode(make_video(total))
    assert (clip.total, clip.fps) == (total, 20)
    assert len(clip.frames) == len(clip.indices) == min(total, 16)
    assert (clip.indices[0], clip.indices[-1]) == (0, total - 1)


@pytest.mark.parametrize(("total", "count", "indices"), table("sampled_frames"))
def test_sampling_is_even_and_includes_both_ends(total, count, indices):
    assert list(sample_indices(total, count)) == indices


@pytest.mark.parametrize("max_pixels", [784, 1000, 12_345, 65_535, 65_536, 200_704])
def test_frames_are_scaled_to_max_pixels_with_their_aspect_ratio(make_video, max_pixels):
    clip = decode(LONG_CLIP, count=2, max_pixels=max_pixels)
    height, width = clip.frames[0].shape[:2]
    assert (clip.total, clip.fps, clip.frames[0].dtype) == (308, 20.0, np.uint8)
    assert height == width
    assert min(max_pixels, 65_536) * 0.9 <= height * width <= max_pixels
    narrow = decode(make_video(3, width=2000, height=2), max_pixels=max_pixels).frames[0]
    assert narrow.shape[0] * narrow.shape[1] <= max_pixels


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


MakeVideo = Callable[..., Path]


@pytest.mark.parametrize(("first", "last"), [(0, 1), (0, 40), (7, 9), (13, 40), (39, 40), (12, 13)])
def test_a_part_has_the_frames_that_are_shown_in_it(make_video: MakeVideo, first: int, last: int):
    path = make_video(40)  # of 20 frames per second, with keyframes
    whole, part = (decode(path, count=128, part=p) for p in (None, (first / 20, last / 20)))
    assert (part.total, part.indices) == (last - first, tuple(range(last - first)))
    assert all(map(np.array_equal, part.frames, whole.frames[first:last]))
    assert part.fps == 20


def test_parts_next_to_each_other_have_each_frame_once():
    """Of a clip with B-frames, with times that are not exact in binary."""
    whole, times = decode(LONG_CLIP, count=1), [0, 3.35, 7.7, 11.05, 1000]
    parts = [decode(LONG_CLIP, part=each) for each in itertools.pairwise(times)]
    assert sum(part.total for part in parts) == whole.total
    assert np.array_equal(parts[-1].frames[-1], whole.frames[0])


def test_a_part_costs_what_it_has_and_one_without_frames_is_refused(make_video: MakeVideo):
    path = str(make_video(40))
    assert video_cost(path, TimeRange(1.0, 1.5)).pixels * 4 == video_cost(path).pixels
    with pytest.raises(InvalidRequest, match="no frame from 8 s to 9 s"):
        decode(path, part=(8, 9))


def test_parts_of_one_file_have_scores_of_their_own(serve: Serve, make_video: MakeVideo):
    client = serve()
    request = {"task_text": "x", "video_path": str(make_video(40))}
    totals = {}
    for part in ({}, {"start_s": 1.0}, {"end_s": 0.5}, {"start_s": 1.0, "end_s": 1.5}):
        for is_cached in (False, True):
            answer = client.post("/score", json={**request, **part}).json()
            assert answer["cached"] is is_cached
        totals[str(part)] = answer["provenance"]["frames"]["total"]
    assert list(totals.values()) == [40, 20, 10, 10]


def test_what_is_no_part_is_refused(serve: Serve, make_video: MakeVideo, frames_request: dict):
    client, request = serve(), {"task_text": "x", "video_path": str(make_video(10))}
    rows = [({**request, **fields}, message) for fields, message in table("invalid_parts")]
    for body, message in [*rows, ({**frames_request, "end_s": 1.0}, "video files only")]:
        answer = client.post("/score", json=body)
        assert answer.status_code == 422 and message in answer.json()["detail"]
