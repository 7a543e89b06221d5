"""Parts of video files: `start_s` and `end_s`."""

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rewardfleet.wire.errors import InvalidRequest
from rewardfleet_server.video.clip.frames import Clip, DecodeSpec, decode_video, video_cost
from rewardfleet_server.video.clip.video_reader import TimeRange

from ...conftest import LONG_CLIP, Serve, served, table

MakeVideo = Callable[..., Path]


def decoded(path: Path, part: tuple[float, float] | None = None, count: int = 128) -> Clip:
    spec = TimeRange(*part) if part else None
    return decode_video(str(path), DecodeSpec(count, 200_704, part=spec))


@pytest.mark.parametrize(("first", "last"), [(0, 1), (0, 40), (7, 9), (13, 40), (39, 40), (12, 13)])
def test_a_part_has_the_frames_that_are_shown_in_it(make_video: MakeVideo, first: int, last: int):
    path = make_video(40)  # of 20 frames per second, with keyframes
    whole, part = decoded(path), decoded(path, (first / 20, last / 20))
    assert (part.total, part.indices) == (last - first, tuple(range(last - first)))
    assert all(map(np.array_equal, part.frames, whole.frames[first:last]))
    assert part.fps == 20


def test_parts_next_to_each_other_have_each_frame_once():
    """Of a clip with B-frames, with times that are not exact in binary."""
    whole = decoded(LONG_CLIP, count=1)
    times = [0, 3.35, 7.7, 11.05, 1000]
    parts = [decoded(LONG_CLIP, each) for each in itertools.pairwise(times)]
    assert sum(part.total for part in parts) == whole.total
    assert np.array_equal(parts[-1].frames[-1], whole.frames[0])


def test_a_part_costs_what_it_has(make_video: MakeVideo):
    path = str(make_video(40))
    assert video_cost(path, TimeRange(1.0, 1.5)).pixels * 4 == video_cost(path).pixels


def test_a_part_without_frames_is_refused(make_video: MakeVideo):
    with pytest.raises(InvalidRequest, match="no frame from 8 s to 9 s"):
        decoded(make_video(40), (8, 9))


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


@pytest.mark.parametrize(("fields", "message"), table("invalid_parts"))
def test_what_is_no_part_is_refused(
    serve: Serve, make_video: MakeVideo, fields: dict[str, float], message: str
):
    request = {"task_text": "x", "video_path": str(make_video(10))}
    answer = serve().post("/score", json={**request, **fields})
    assert answer.status_code == 422 and message in answer.json()["detail"]


def test_frames_have_no_parts(frames_request: dict[str, object]):
    with served() as client:
        answer = client.post("/score", json={**frames_request, "end_s": 1.0})
    assert answer.status_code == 422 and "video files only" in answer.json()["detail"]
