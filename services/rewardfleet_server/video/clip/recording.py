"""Faults of a recording, found in all of a clip's frames before any judge.

No policy makes the frames of a recorder that is off by one, of an environment that has reset itself
or of a renderer that fails; mostly they are the last ones, which decide. A cut is a step that
stands out from the four before and after it, that motion does not explain, and in which there is
something new where nothing moves. After a reset, the picture is near the first one. What was
measured is in docs/benchmarks/recordings.md. To stand still is no fault, as a policy may wait.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

_SIDE = 64  # the most pixels per side of a picture; scaling finds no more, and takes longer
_BESIDE = np.array([[1, 1, 1, 1, 0, 1, 1, 1, 1]], np.uint8)  # the steps that one is compared with
_FEWEST = 33  # frames in which a step tells something: sampled ones are often fewer, and far apart
_SUSPECTS, _LATE, _NOISE = 13, 5, 0.3  # steps that are examined, and how many are the last ones
_STANDS_OUT, _LATE_STANDS_OUT, _LEAST = 1.0, 0.6, 0.01  # what steps must have, and seen changes
_CHANGED, _REACH = 0.5, np.ones((7, 7), np.uint8)  # a changed pixel; what moves is not new so near
_LEAST_SIDE = 12  # of pictures in which motion is found, in pixels
_CHANGES_MORE = 1.2  # than the steps beside it, whatever the light, if the first scene is not back
_NEARLY_BACK, _FARTHEST = 0.85, 1.3  # of the step: the first scene after a reset; if late, at most
# A logistic regression of half of DROID and LIBERO: offset, what one of the last steps adds, weight
# of how far the first scene is, and of logarithms: stands out, motion leaves unexplained, is new.
_OFFSET, _IS_LATE, _OF_BACK, _OF_OUT, _OF_UNEXPLAINED, _OF_NEW = 12.1, 4.8, -4.2, 5.0, 8.3, 1.8
_WINDOW, _FAINT = (5, 5), 9.0  # in which patterns are compared, and the variance of none
# Deviations of a blank frame and of another one that neighbors share, and their share in noise.
_FLAT, _PICTURE, _LOST = 3.0, 12.0, 0.3
_REPEATS, _UNCHANGED = 5, 0.6  # of a last frame; the share of equal pixels if there is no noise
_GAP_S, _GAP_STEPS = 1.0, 10.0  # missing time, in seconds and in frames

# A word, a colon, and what it means.
_CUT = "cut: the picture jumps, as to a frame of another episode"
_RESET = "reset: the first scene returns, as in the next episode"
_BLANK = "blank: there is no picture"
_FROZEN = "frozen: the last picture is repeated, in a clip that has noise"
_GAP = "gap: the file has no frame for a second or more before it"

Gray = NDArray[np.uint8]  #: gray levels of a frame or a small picture, `[H, W]`


class Fault(NamedTuple):
    kind: str  #: one of those above
    frame: int  #: the first one that it concerns
    is_end: bool = False  #: whether the frames before it are a clip of their own


@dataclass
class Recording:
    """Looks for faults of a clip while it is decoded."""

    trims: bool = False  #: whether a clip ends before a reset or a blank end
    faults: Sequence[Fault] = ()  #: those that were found, in order

    @property
    def is_trimmed(self) -> bool:
        """Whether the frames from the first fault on are left out."""
        return self.trims and bool(self.faults) and self.faults[0].is_end

    def check(self, pictures: Sequence[Gray], indices: Sequence[int], *times: float) -> int | None:
        """Look for faults in small pictures; return how many of the source are left if trimmed."""
        found = find_faults(pictures, *times)
        self.faults = [fault._replace(frame=indices[fault.frame]) for fault in found]
        return indices[found[0].frame - 1] + 1 if self.is_trimmed else None


def small_picture(frame: Gray) -> Gray:
    """Return every nth pixel of a frame, `[H, W]` or `[H, W, 3]`, as a gray picture."""
    down, across = (-(-side // _SIDE) for side in frame.shape[:2])
    small = frame[down // 2 :: down, across // 2 :: across].copy()
    return small if small.ndim == 2 else np.asarray(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY))


def find_faults(pictures: Sequence[Gray], *seconds: float) -> list[Fault]:
    """Return the faults of a clip in order, from `small_picture` of frames, and their times."""
    if len(pictures) < 2:
        return []
    steps = np.array([cv2.norm(a, b, cv2.NORM_L1) for a, b in pairwise(pictures)], np.float32)
    steps /= pictures[0].size
    waits = np.diff(seconds if len(seconds) == len(pictures) else (0, 0))
    gaps = np.flatnonzero(waits >= max(_GAP_S, _GAP_STEPS * float(np.median(waits)))).tolist()
    faults = [Fault(_GAP, each + 1) for each in gaps] + _frozen(pictures, steps)
    faults += _blank(pictures, steps) if steps.max() > _FLAT else []  # else no picture is lost
    out = steps / (cv2.dilate(steps[None], _BESIDE)[0] + _NOISE)
    is_compared = len(pictures) >= _FEWEST and min(pictures[0].shape) >= _LEAST_SIDE
    excess = out - np.where(np.arange(-len(out), 0) < -_LATE, _STANDS_OUT, _LATE_STANDS_OUT)
    for index in np.argsort(-excess)[: _SUSPECTS * is_compared].tolist():
        if excess[index] >= 0 and index + 1 not in {fault.frame for fault in faults}:
            faults += _cut(pictures, out, index)
    return sorted(faults, key=lambda fault: fault.frame)


def _cut(pictures: Sequence[Gray], out: NDArray[Any], index: int) -> list[Fault]:
    """Return the fault between picture `index` and the next one, if there is one."""
    before, after, reach = *pictures[index : index + 2], _BESIDE.size // 2
    is_late, changed = index >= len(out) - _LATE, _patterns(before, after)
    if (change := changed.mean()) < _LEAST:
        return []
    back, is_new = _patterns(pictures[0], after).mean() / change, changed > _CHANGED
    back = min(back, _FARTHEST) if is_late else back  # a robot may end far from its start
    score = _OFFSET + _IS_LATE * is_late + _OF_BACK * back + _OF_OUT * math.log(out[index] + 0.1)
    if score + _OF_NEW * math.log(is_new.mean() + 0.001) < 0:  # no cut, whatever else is found
        return []
    left = _patterns(_moved(before, after), after).mean() / change
    score += _OF_UNEXPLAINED * math.log(left + 0.01)
    for each in {*range(max(0, index - reach), min(len(out), index + reach + 1))} - {index}:
        other = _patterns(*pictures[each : each + 2])
        is_new &= cv2.dilate((other > _CHANGED / 2).astype(np.uint8), _REACH) == 0
        is_lamp = back > _NEARLY_BACK and change < _CHANGES_MORE * (other.mean() + _LEAST)
        if is_lamp or score + _OF_NEW * math.log(is_new.mean() + 0.001) < 0:
            return []
    if out[index] < _STANDS_OUT and not is_new.any():  # as in noise
        return []
    is_back = index > 0 and bool(back <= _NEARLY_BACK)
    return [Fault(_RESET if is_back else _CUT, index + 1, is_end=is_back)]


def _moved(before: Gray, after: Gray) -> Gray:
    """Return the picture before a step with its pixels moved to where they are after it."""
    flow = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_FAST)
    flow.setFinestScale(0)
    shifts = flow.calc(after, before, np.zeros((*after.shape, 2), np.float32))
    y, x = np.indices(after.shape, np.float32) + np.moveaxis(shifts, 2, 0)[::-1]
    return np.asarray(cv2.remap(before, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE))


def _patterns(one: Gray, other: Gray) -> NDArray[np.float32]:
    """Return by how much the pattern around each pixel differs, in [0, 2], whatever the light."""
    a, b = one.astype(np.float32), other.astype(np.float32)
    mean_a, mean_b, aa, bb, ab = (cv2.blur(each, _WINDOW) for each in (a, b, a * a, b * b, a * b))
    variances = np.maximum(aa - mean_a * mean_a, 0), np.maximum(bb - mean_b * mean_b, 0)
    alike = (ab - mean_a * mean_b + _FAINT) / (np.sqrt(variances[0] * variances[1]) + _FAINT)
    return np.asarray((1 - alike) * (np.maximum(*variances) > 2 * _FAINT))


def _blank(pictures: Sequence[Gray], steps: NDArray[Any]) -> list[Fault]:
    """Return the first frame without a picture, if the one beside it has one."""
    at = np.unique(np.add.outer(np.flatnonzero(steps > _FLAT), (0, 1)))
    near = np.stack([pictures[index] for index in at])
    spread = (each[:, ::4, ::4].reshape(len(at), -1) for each in (near, np.roll(near, -1, axis=2)))
    one, next_to = (each - each.mean(axis=1, keepdims=True, dtype=np.float32) for each in spread)
    shared, own = np.mean(one * next_to, axis=1), np.mean(one * one, axis=1)
    blank = shared < np.maximum(_FLAT**2, _LOST * own)
    first = int(blank.argmax())
    beside = first - 1 if first else int((~blank).argmax())  # a picture that is lost at once
    if not blank[first] or blank[beside] or shared[beside] < max(_PICTURE**2, shared.max() / 4):
        return []
    frame = int(at[first]) if first else 0  # those before the first step are like it
    return [Fault(_BLANK, frame, is_end=first > 0 and bool(blank[first:].all()))]


def _frozen(pictures: Sequence[Gray], steps: NDArray[Any]) -> list[Fault]:
    """Return whether the last picture is repeated exactly, and frames before it have noise."""
    last = int(np.flatnonzero(steps)[-1]) + 1 if steps.any() else 0
    spread = np.linspace(0, last - 1, 2 * _REPEATS, dtype=int)
    if last < len(spread) or len(steps) - last < _REPEATS:
        return []
    unchanged = max((pictures[each] == pictures[each + 1]).mean() for each in spread)
    return [Fault(_FROZEN, last)] if unchanged < _UNCHANGED else []
