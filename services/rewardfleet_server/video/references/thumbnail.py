"""Small copies of frames, and by how much they differ where shifts of a few pixels cost nothing."""

from collections.abc import Iterable
from dataclasses import dataclass

import cv2
import numpy as np

from rewardfleet_server.video.frames import Frame

SIDE = 64  #: pixels per side of a thumbnail; a finer one was not more accurate
_REACH = np.ones((5, 5), np.uint8)  # pixels are compared with those up to two pixels away
_UNLIKE = 16  # gray levels from which on a pixel is not as in another thumbnail


@dataclass(frozen=True)
class Thumbnail:
    """A frame at the size of comparison; all arrays are `[64, 64, 3]`, uint8."""

    pixels: Frame
    darkest: Frame  #: the minimum within two pixels of each pixel
    brightest: Frame  #: the maximum within two pixels of each pixel


def make_thumbnail(frame: Frame) -> Thumbnail:
    """Return the thumbnail of an RGB frame `[H, W, 3]`, uint8."""
    resized = cv2.resize(frame, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    pixels = np.ascontiguousarray(np.asarray(resized, np.uint8))
    return Thumbnail(
        pixels,
        np.asarray(cv2.erode(pixels, _REACH), np.uint8),
        np.asarray(cv2.dilate(pixels, _REACH), np.uint8),
    )


def difference(a: Thumbnail, b: Thumbnail) -> Frame:
    """Return by how many gray levels each pixel is outside the other's range within reach.

    It is the maximum over both directions and over the colors: a burner that glows differs only in
    red.
    """
    subtract = cv2.subtract  # saturates at 0, so a pixel inside the range gives 0
    a_outside = cv2.max(subtract(a.pixels, b.brightest), subtract(b.darkest, a.pixels))
    b_outside = cv2.max(subtract(b.pixels, a.brightest), subtract(a.darkest, b.pixels))
    red, green, blue = cv2.split(cv2.max(a_outside, b_outside))
    return np.asarray(cv2.max(cv2.max(red, green), blue), np.uint8)


def change(a: Thumbnail, b: Thumbnail) -> Frame:
    """Return the maximum difference within two pixels of each pixel."""
    return np.asarray(cv2.dilate(difference(a, b), _REACH), np.uint8)


def share_unlike(a: Thumbnail, others: Iterable[Thumbnail]) -> float:
    """Return the share of pixels that are as in none of the others."""
    nearest = np.full((SIDE, SIDE), 255, np.uint8)
    for other in others:
        cv2.min(nearest, difference(a, other), dst=nearest)
    return float(np.mean(nearest >= _UNLIKE))
