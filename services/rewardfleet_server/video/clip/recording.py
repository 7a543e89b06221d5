"""Faults of a recording, found in all of a clip's frames before any judge.

No policy makes the frames of a recorder that is off by one, of an environment that has reset itself
or of a renderer that fails; mostly they are the last ones, which decide. A cut is a step in which
the pattern changes, whatever the light, more than in the four steps before and after it, and where
nothing has moved in these. After a reset, the picture is the first one, or is near it. What was
measured is in docs/benchmarks/recordings.md. To stand still is no fault, as a policy may wait.
"""

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
_SUSPECTS, _SUSPECT, _NOISE = 8, 1.0, 0.3  # steps that are examined: their difference stands out
_LEAST, _PATTERN_NOISE = 0.015, 0.01  # a change that is seen, and one that is added beside a step
# How far the first scene is after a reset, or nearly one, and before it, as a part of the step.
_BACK, _NEARLY_BACK, _AWAY = 0.4, 0.85, 0.7
_STANDS_OUT, _CHANGED, _NEW = 1.6, 0.5, 0.01  # the least change of a cut, and what must be new
_REACH = np.ones((15, 15), np.uint8)  # what moves is not new so near
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
    """A fault of a recording."""

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
    for index in np.argsort(-out)[:_SUSPECTS].tolist():
        if out[index] >= _SUSPECT and index + 1 not in {fault.frame for fault in faults}:
            faults += _cut(pictures, steps, index)
    return sorted(faults, key=lambda fault: fault.frame)


def _cut(pictures: Sequence[Gray], steps: NDArray[Any], index: int) -> list[Fault]:
    """Return the fault between picture `index` and the next one, if there is one."""
    after, reach = pictures[index + 1], _BESIDE.size // 2
    changed = _patterns(pictures[index], after)
    change = changed.mean()
    if change < _LEAST or len(pictures) < _FEWEST:
        return []
    back = _patterns(pictures[0], after).mean() / change
    if back <= _BACK and _patterns(pictures[0], pictures[index]).mean() >= _AWAY * change:
        return [Fault(_RESET, index + 1, is_end=True)]
    beside = {*range(max(0, index - reach), min(len(steps), index + reach + 1))} - {index}
    near = np.zeros_like(after)  # where something moves in these steps
    for each in sorted(beside, key=lambda each: -steps[each]):  # the likeliest ones first
        other = _patterns(*pictures[each : each + 2])
        if _STANDS_OUT * (other.mean() + _PATTERN_NOISE) > change:
            return []
        near |= other > _CHANGED / 2
    if index and back <= _NEARLY_BACK:
        return [Fault(_RESET, index + 1, is_end=True)]
    is_new = (changed > _CHANGED) & (cv2.dilate(near, _REACH) == 0)
    return [Fault(_CUT, index + 1)] if is_new.mean() >= _NEW else []


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
