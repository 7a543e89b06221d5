"""The small pictures of the score log."""

from collections.abc import Sequence

import cv2

from rewardfleet.score_log.strip import strip_of

from .frames import Frame


def small_strip(frames: Sequence[Frame]) -> bytes | None:
    """Return the frames that a judge has seen as a strip; None if there are none."""
    return strip_of(frames, _shrink)


def _shrink(frame: Frame, by: int) -> Frame:
    height, width = frame.shape[:2]
    size = max(width // by, 1), max(height // by, 1)
    # By area takes three times as long.
    return cv2.resize(frame, size, interpolation=cv2.INTER_LINEAR)  # type: ignore[return-value] # of its type
