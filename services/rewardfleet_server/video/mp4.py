"""Frames as an mp4 file, for those who take nothing else."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cv2

from .frames import Clip

#: The rate of clips that do not say theirs, in frames a second: LIBERO's control rate.
UNKNOWN_FPS = 20.0


def sampled_fps(clip: Clip) -> float:
    """Return the rate at which a clip's frames play in their true time.

    Every tenth frame of a video of 20 frames a second plays at 2.
    """
    fps = clip.fps or UNKNOWN_FPS
    if len(clip.indices) < 2:
        return fps
    return fps * (len(clip.indices) - 1) / (clip.indices[-1] - clip.indices[0])


@contextmanager
def as_mp4(clip: Clip) -> Iterator[Path]:
    """Write a clip's frames to a temporary mp4 (MPEG-4 part 2); it is gone afterwards. Blocks."""
    height, width = clip.frames[0].shape[:2]
    descriptor, name = tempfile.mkstemp(prefix="rewardfleet-", suffix=".mp4")
    os.close(descriptor)
    path = Path(name)
    try:
        # The codec wants even sides.
        size = (width - width % 2 or 2, height - height % 2 or 2)
        fourcc = cv2.VideoWriter.fourcc(*"mp4v")
        writer = cv2.VideoWriter(name, cv2.CAP_FFMPEG, fourcc, sampled_fps(clip), size)
        if not writer.isOpened():
            raise RuntimeError("no mp4 can be written with this OpenCV")
        for frame in clip.frames:
            bgr = cv2.cvtColor(frame, cv2.COLOR_RGB2BGR)
            writer.write(cv2.resize(bgr, size) if size != (width, height) else bgr)
        writer.release()
        yield path
    finally:
        path.unlink(missing_ok=True)
