"""How a camera differs from the library's in shift, scale and levels, and frames without that.

OpenVLA crops its pictures, encoders show a limited range of levels as the full one, and cameras are
moved. The first frame is fitted to the median of the references' frames, weighted by how little
these vary: Gauss-Newton steps fit five numbers, ever sharper, without the pixels that do not fit,
which are robot and objects.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from rewardfleet_server.video.clip.frames import Frame

from .thumbnail import SIDE, Levels

Plane = NDArray[np.float32]  #: `[..., SIDE, SIDE]`

_BLURS = (1.5,) * 6 + (1.0,) * 4 + (0.01,) * 4  # of the steps, in pixels
_CUTOFF, _LEAST_CUTOFF = 30.0, 3.0  # gray levels that pixels may be off, first and last
_FITTED, _BETTER = 0.4, 1.3  # the least share of pixels that must fit, and by how much better
_SHIFT, _LEVELS = 0.7 / SIDE, 8.0  # what does not matter, as a share of the width and in levels
NEAR = 7.0  #: how many times as much can be corrected
_Y, _X = (np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2).astype(np.float32)
_INSIDE = np.pad(np.ones((SIDE - 8, SIDE - 8), np.bool_), 4)  # what is fitted: not the border


class Camera(NamedTuple):
    """How a picture differs from the library's."""

    scale: float = 1.0  #: of what it shows, as a part of what the library's shows
    x: float = 0.0  #: a shift, as a share of the width
    y: float = 0.0
    gain: float = 1.0  #: levels times it plus `offset` are the library's
    offset: float = 0.0

    @property
    def off(self) -> float:
        """How far it is off, at least 1 if that matters; up to `NEAR` it can be corrected."""
        shift = max(abs(self.x), abs(self.y)) + abs(self.scale - 1) / 2
        levels = max(abs(self.offset), abs(255 * (self.gain - 1) + self.offset))
        return max(shift / _SHIFT, levels / _LEVELS)

    def __str__(self) -> str:
        levels = f"levels times {self.gain:.2f} {self.offset:+.0f} are the library's"
        return f"{self.scale:.0%} of its width, shifted by {self.x:.1%}, {self.y:.1%}; {levels}"

    def warped(self, image: Any) -> Any:
        """Return an image `[H, W, ...]` as the library's camera shows it."""
        size = np.array(image.shape[1::-1])
        moved = (size - 1) / 2 * (1 - self.scale) + np.array([self.x, self.y]) * size[0]
        matrix = np.column_stack([self.scale * np.eye(2), moved])
        flags, border = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP, cv2.BORDER_REPLICATE
        return cv2.warpAffine(image, matrix, size.tolist(), flags=flags, borderMode=border)

    def aligned(self, frames: Sequence[Frame]) -> tuple[list[Frame], Plane]:
        """Return frames as the library's camera shows them, and 1 for each pixel that is known."""
        levels = np.clip(np.arange(256) * self.gain + self.offset, 0, 255).astype(np.uint8)
        known = self.warped(np.pad(np.ones((SIDE - 2, SIDE - 2), np.float32), 1)) > 0.99
        return [self.warped(cv2.LUT(frame, levels)) for frame in frames], known.astype(np.float32)


def background_of(scene: Levels) -> Plane:
    """Return the median of frames as `shrink` returns them, and weights: how little they vary."""
    low, median, high = np.percentile(_gray(scene), (10, 50, 90), axis=0).astype(np.float32)
    return np.stack([median, 1 / (1 + (high - low) ** 2)])


def camera_of(first: Levels, background: Plane) -> Camera:
    """Fit a first frame, as `shrink` returns it; the library's camera if no other one fits."""
    (wanted, weight), image = background, _gray(first)[0]
    camera, used, cutoff = Camera(), _INSIDE, _CUTOFF
    for blur in _BLURS:
        target, moved = (cv2.GaussianBlur(each, (0, 0), blur) for each in (wanted, image))
        moved = camera.warped(moved)
        across, down = (cv2.Sobel(moved, cv2.CV_32F, x, 1 - x, scale=1 / 8) for x in (1, 0))
        columns = across, down, across * _X + down * _Y, moved, np.ones_like(moved), target
        weighted = np.stack(columns, axis=-1)[used] * weight[used, None]
        x, y, scale, gain, offset = np.linalg.lstsq(weighted[:, :5], weighted[:, 5])[0].tolist()
        used = _INSIDE & (np.abs(target - gain * moved - offset) < cutoff)
        if gain < 0.5 or used.mean() < _FITTED:
            return Camera()
        scale, x, y = np.array(camera[:3]) + np.array([scale, x / SIDE, y / SIDE]) / gain
        camera, cutoff = Camera(scale, x, y, gain, offset), max(0.8 * cutoff, _LEAST_CUTOFF)
    found, same = (
        np.abs(wanted - each.gain * each.warped(image) - each.offset).clip(0, _CUTOFF) * weight
        for each in (camera, Camera())
    )
    return camera if _BETTER * found.sum() < same.sum() else Camera()


def _gray(pixels: Levels) -> Plane:
    return np.asarray(pixels.reshape(-1, 3, SIDE, SIDE).mean(axis=1, dtype=np.float32))
