"""Strips: some frames of a clip side by side, small, as one JPEG."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rewardfleet.wire.video import sample_indices

#: The most frames of a strip, and the most pixels of a frame's side.
MAX_FRAMES, MAX_SIDE = 4, 96
#: That of the JPEG.
QUALITY = 75

#: An RGB frame, `[H, W, 3]`, uint8.
Frame = NDArray[np.uint8]


def chosen(frames: Sequence[Frame]) -> Sequence[Frame]:
    """Return the frames that a strip has; of them, all are chosen again."""
    return [frames[index] for index in sample_indices(len(frames), MAX_FRAMES)]


def side_by_side(frames: Sequence[Frame]) -> Frame:
    """Return the `chosen` frames as one picture, of each every n-th pixel.

    Args:
        frames: Frames of one size, in order; one or more.
    """
    by = -(-max(frames[0].shape[:2]) // MAX_SIDE)
    small = [
        # Copied in pixels of three bytes, which takes half as long.
        np.ascontiguousarray(each.view("V3")[::by, ::by]).view(np.uint8)
        if each.strides[-1] == 1
        else each[::by, ::by]
        for each in chosen(frames)
    ]
    return np.ascontiguousarray(np.concatenate(small, axis=1))


def strip_of(frames: Sequence[Frame]) -> bytes | None:
    """Return frames as a strip; None if there are none, or `simplejpeg` is not installed."""
    if not frames:
        return None
    try:
        import simplejpeg  # noqa: PLC0415 - optional
    except ModuleNotFoundError:
        return None
    pixels = side_by_side(frames)
    strip: bytes = simplejpeg.encode_jpeg(pixels, quality=QUALITY, colorsubsampling="420")
    return strip


def frames_of(strip: bytes, count: int) -> list[Any]:
    """Return the frames of a strip.

    Args:
        count: How many frames the clip had.
    """
    import simplejpeg  # noqa: PLC0415 - optional

    pixels = simplejpeg.decode_jpeg(strip, colorspace="RGB")
    return np.split(pixels, min(count, MAX_FRAMES), axis=1)
