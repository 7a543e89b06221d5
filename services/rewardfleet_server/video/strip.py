"""The small pictures of the score log."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import cv2

from rewardfleet.score_log.strip import MAX_FRAMES, MAX_SIDE, strip_of
from rewardfleet.wire.errors import RewardFleetError

from .frames import Frame, decode_video
from .sources import VideoFiles
from .video_reader import TimeRange

#: Seconds that decoding a clip for a page may take.
_SECONDS = 20.0


def small_strip(frames: Sequence[Frame]) -> bytes | None:
    """Return the frames that a judge has seen as a strip; None if there are none."""
    return strip_of(frames, _shrink)


def strip_of_file(files: VideoFiles, request: Mapping[str, Any]) -> bytes | None:
    """Return frames of the clip of a request as a strip; None if it cannot be read here.

    Args:
        files: What may be read.
        request: The fields of a request that names a path.
    """
    stop = threading.Event()
    timer = threading.Timer(_SECONDS, stop.set)
    start, end = request.get("start_s"), request.get("end_s")
    part = None if start is end is None else TimeRange(start or 0.0, end or float("inf"))
    timer.start()
    try:
        with files.open(request["video_path"]) as (path, _):
            clip = decode_video(
                path, count=MAX_FRAMES, max_pixels=MAX_SIDE**2, stop=stop, part=part
            )
    except (RewardFleetError, TimeoutError):
        return None
    finally:
        timer.cancel()
    return small_strip(clip.frames)


def _shrink(frame: Frame, by: int) -> Frame:
    height, width = frame.shape[:2]
    size = max(width // by, 1), max(height // by, 1)
    # By area takes three times as long.
    return cv2.resize(frame, size, interpolation=cv2.INTER_LINEAR)  # type: ignore[return-value] # of its type
