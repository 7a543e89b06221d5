"""Small copies of frames, and by how much they differ where shifts of a pixel cost nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from rewardfleet_server.video.clip.frames import Frame

SIDE = 64  #: pixels per side of a thumbnail; a finer one was not more accurate
_REACH = np.ones((3, 3), np.uint8)  # pixels are compared with those up to one pixel away
_SPREAD = np.ones((5, 5), np.uint8)  # a change counts up to two pixels away
_UNLIKE = 16  # gray levels from which on a pixel is not as in another thumbnail

#: Thumbnails that are compared in one step. Each step gives the interpreter away, and waits for it
#: while other clips are compared; in fewer steps, these would not stay in the processor's cache.
BLOCK = 16

Levels = NDArray[np.uint8]  #: gray levels of one or more thumbnails, `[..., 64, 64]`


@dataclass(frozen=True)
class Thumbnails:
    """Frames at the size of comparison; the arrays are as `shrink` returns them."""

    pixels: Levels
    darkest: Levels  #: the minimum within reach of each pixel
    brightest: Levels  #: the maximum within reach of each pixel

    @classmethod
    def of(cls, pixels: Levels) -> "Thumbnails":
        return cls(pixels, _each_plane(cv2.erode, pixels), _each_plane(cv2.dilate, pixels))

    def widened(self) -> "Thumbnails":
        """Return these with ranges that reach one pixel farther."""
        darkest = _each_plane(cv2.erode, self.darkest)
        return Thumbnails(self.pixels, darkest, _each_plane(cv2.dilate, self.brightest))


def shrink(frames: Sequence[Frame]) -> Levels:
    """Return small copies of RGB frames `[H, W, 3]`, uint8, as their planes: `[N, 3 * 64, 64]`."""
    size = (SIDE, SIDE)
    small = [cv2.resize(frame, size, interpolation=cv2.INTER_AREA) for frame in frames]
    planes = [np.asarray(image, np.uint8).transpose(2, 0, 1) for image in small]
    return np.stack(planes).reshape(len(planes), 3 * SIDE, SIDE)


def make_thumbnails(frames: Sequence[Frame]) -> Thumbnails:
    """Return the thumbnails of RGB frames `[H, W, 3]`, uint8."""
    return Thumbnails.of(shrink(frames))


def _each_plane(operation: Callable[..., Any], pixels: Levels) -> Levels:
    """Apply an operation to all planes at once. It ignores the row between two of them."""
    ignored = 255 if operation is cv2.erode else 0
    rows = np.full((pixels.size // SIDE**2, SIDE + 1, SIDE), ignored, np.uint8)
    rows[:, :SIDE] = pixels.reshape(-1, SIDE, SIDE)
    done = np.asarray(operation(rows.reshape(-1, SIDE), _REACH), np.uint8)
    return done.reshape(rows.shape)[:, :SIDE].reshape(pixels.shape)


def difference(one: Thumbnails, others: Thumbnails) -> Levels:
    """Return by how many gray levels pixels are outside the other's range within reach.

    It is `[others, 64, 64]`, the maximum over both directions and over the colors: a burner that
    glows differs only in red. One is a single thumbnail.
    """
    subtract = cv2.subtract  # saturates at 0, so a pixel inside the range gives 0
    result = np.empty((len(others.pixels), SIDE, SIDE), np.uint8)
    tiled = [np.tile(each[0], (BLOCK, 1)) for each in (one.pixels, one.darkest, one.brightest)]
    for start in range(0, len(result), BLOCK):
        block = slice(start, start + BLOCK)
        others_pixels, others_darkest, others_brightest = (
            each[block].reshape(-1, SIDE)
            for each in (others.pixels, others.darkest, others.brightest)
        )
        pixels, darkest, brightest = (each[: len(others_pixels)] for each in tiled)
        a_outside = cv2.max(subtract(pixels, others_brightest), subtract(others_darkest, pixels))
        b_outside = cv2.max(subtract(others_pixels, brightest), subtract(darkest, others_pixels))
        colors = np.asarray(cv2.max(a_outside, b_outside)).reshape(-1, 3, SIDE, SIDE)
        np.max(colors, axis=1, out=result[block])
    return result


def change(one: Thumbnails, others: Thumbnails) -> Levels:
    """Return the maximum difference within two pixels of each pixel, `[others, 64, 64]`.

    Here, shifts of two pixels cost nothing: a change is the place where something has moved.
    """
    levels = difference(one.widened(), others.widened())
    return np.stack([np.asarray(cv2.dilate(each, _SPREAD), np.uint8) for each in levels])


def share_unlike(one: Thumbnails, others: Thumbnails) -> float:
    """Return the share of pixels that are as in none of the others."""
    return float(np.mean(difference(one, others).min(axis=0) >= _UNLIKE))
