"""Distinguish success from failure by comparing the end of a clip with labeled rollouts.

This is the judge `reference`; docs/judges.md and docs/benchmarks/libero-judge.md have its limits,
and what was measured. It abstains for another camera, scene or light, which the first frame alone
decides: nothing that a policy does later may turn a failure into a missing reward.

The last frame is compared, at 64x64 pixels, with two sets of reference frames:
  - finished: frames of this task's successful references after their success;
  - other: frames of the same references before their success, the last frames of the task's failed
    references, and the last frames of other tasks' successes (the right object on the wrong
    target).
A difference is the mean of the largest 0.4% of a difference map, because a near miss differs in
one small region. Shifts of about 4 of 256 pixels cost nothing. A region counts less if it moved in
the last eighth of the clip (that is the retreating robot, not the result), or if nothing touched it
since the start. Two numbers give the probability: how much nearer the finished frames are than the
others, and how much of the last frame no finished frame explains. Only the end is compared, so
neither the speed nor the length of a clip matters.
"""

import difflib
import math
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

from rewardfleet.wire.causes import VideoCause
from rewardfleet.wire.video import NearestReference
from rewardfleet_server.system.threads import usable_cores
from rewardfleet_server.video.clip.frames import Frame
from rewardfleet_server.video.judges import Judgment

from .alignment import NEAR, Camera, Plane, background_of, camera_of
from .prepared import Arrays, folder_of, kept, make_folder
from .thumbnail import (
    BLOCK,
    SIDE,
    Levels,
    Thumbnails,
    change,
    difference,
    make_thumbnails,
    share_unlike,
    shrink,
)

#: One difference map per reference frame, `[frames, 64, 64]`, gray levels.
DifferenceMaps: TypeAlias = NDArray[np.float32]

_LARGEST = SIDE * SIDE // 250  # the pixels whose mean is a difference: 0.4% of them
_HALF_WEIGHT = 10.0  # gray levels of change at which a pixel has half of its weight
_WEIGHTS = (np.arange(256) / (np.arange(256) + _HALF_WEIGHT)).astype(np.float32)
_MOVING_SHARE = 1 / 8  # of the clip, at its end, in which what moves is the robot
_SIMILAR_END = 20.0  # gray levels; tasks whose ends differ by less are not compared with each other
_MAX_COMPARED = 300  # characters of an unknown task that are compared with the known ones
_OF_OTHER_TASK = 3  # successes of each other task that clips are compared with
_NO_OTHER = 100.0  # the difference to the other frames if the library has none, in gray levels

# The share of the first frame that may be as in no frame of the task's references. Measured with
# two references: at most 0.08 with their camera and scene, wherever objects and robot are, and at
# least 0.13 with others, or mirrored.
_OTHER_SCENE = 0.09
# When other views are tried, and the part of the distance at which one is much nearer.
_DOUBTFUL, _MUCH_NEARER = 0.03, 1 / 3

# The progress of a reference without `success_frame`: its end is finished, its first part is not,
# and frames between are left out. Shares of its length.
_UNFINISHED_UNTIL, _FINISHED_FROM = 0.6, 0.9

# The frames of a success that clips are compared with. More of them were not more accurate, but
# without the early ones some clips that end early pass.
_FINISHED_FRAMES = 3
_NEAR_THE_END, _EARLY_STEP = 0.7, 3  # one of three frames until this progress, then all
_SCENE_STEP = 6  # one of so many frames shows the scene

# Logistic calibration over 14 tasks of LIBERO, each rollout compared with the library without
# itself, and validated with one task left out at a time. Clips that are cut before their success
# count as failures, with a tenth of the weight. The intercept is 0.6 below the fitted one, because
# rewarding a failure does more harm than missing a success. _NOISE, _FAINT: noise in gray levels.
_INTERCEPT, _PER_LOG_RATIO, _PER_LOG_UNEXPLAINED = 5.45, 3.26, -2.45
_NOISE, _FAINT = 2.0, 5.0


@dataclass(frozen=True)
class ReferenceFrame:
    file: str
    label: str  #: describes the frame in a judgment's text
    pixels: Levels  #: `[1, 3 * 64, 64]`, see `shrink`
    #: How much each pixel changed since the start of the rollout, `[1, 64, 64]`, gray levels.
    touched: Levels
    progress: float | None  #: in [0, 1], and 1 from the success on; None if unknown


class DecodedReference(NamedTuple):
    #: Of frames, evenly spread, the last included; thumbnails would take three times the memory.
    pixels: Levels
    #: How much each pixel changed since the first frame, `[frames, 64, 64]`, gray levels.
    touched: Levels
    frame_count: int  #: how many frames the rollout has


@dataclass(frozen=True)
class Reference:
    """A labeled rollout of a library. Its frames are decoded when they are first needed."""

    file: str  #: its name in the library
    task_text: str
    success: bool  #: whether the task was done at the end
    #: Index of the first frame that shows the success, or None if unknown.
    success_frame: int | None
    decode: Callable[[], DecodedReference]  #: decodes its frames, once

    @property
    def pixels(self) -> Levels:
        return self.decode().pixels

    @property
    def last(self) -> ReferenceFrame:
        """The last frame; its progress is None."""
        label = "success" if self.success else "failure"
        return self._frame(f"{label} of '{self.task_text}', end", -1, None)

    def frames(self) -> list[ReferenceFrame]:
        """Return frames of a success whose progress is known: those that clips may end like."""
        step = 1 / max(1, len(self.pixels) - 1)
        if self.success_frame is None:
            until, done, reached = _UNFINISHED_UNTIL, _FINISHED_FROM, _FINISHED_FROM
        else:
            reached = min(1.0, self.success_frame / max(1, self.decode().frame_count - 1))
            until, done = reached - step, min(1.0, reached + step)
        times = [index * step for index in range(len(self.pixels) - 1)] + [1.0]
        finished = [index for index, time in enumerate(times) if time >= done]
        spread = np.linspace(0, len(finished) - 1, min(_FINISHED_FRAMES, len(finished)))
        frames = [
            self._frame(f"success, {time / reached:.0%} of the way", index, time / reached)
            for index, time in enumerate(times)
            if time <= until and (time >= _NEAR_THE_END * reached or index % _EARLY_STEP == 0)
        ]
        ends = (finished[round(place)] for place in spread)
        return frames + [self._frame("success, finished", index, 1.0) for index in ends]

    def _frame(self, label: str, index: int, progress: float | None) -> ReferenceFrame:
        pixels, touched, _ = self.decode()
        return ReferenceFrame(self.file, label, pixels[[index]], touched[[index]], progress)


@dataclass(frozen=True)
class Library:
    references: tuple[Reference, ...]
    fingerprint: str  #: SHA-256 of manifest and files, in hex, for cache keys


class ReferenceMatcher:
    """Compares clips with the references of a library, which are prepared once. Threads share it.

    If a clip of the library is damaged, ValueError.
    """

    def __init__(self, library: Library) -> None:
        references, folder = library.references, folder_of(library.fingerprint)
        tasks = sorted({normalize_task(each.task_text) for each in references if each.success})

        def prepare(words: str) -> _Task:
            return _Task(kept(folder, words, lambda: _arrays_of(words, references)))

        with ThreadPoolExecutor(usable_cores()) as threads:
            if not folder.is_dir():  # else all clips were intact when it was made
                list(threads.map(lambda each: each.decode(), references))
            make_folder(folder)
            self._tasks = dict(zip(tasks, threads.map(prepare, tasks), strict=True))

    def compare(self, task_text: str, frames: Sequence[Frame]) -> Judgment:
        """Compare the frames of a clip with the references of its task.

        Args:
            frames: RGB, `[H, W, 3]`, uint8, of any size, evenly spread, the last one included.

        Returns:
            The probability of success as the score, with the details `success` and `progress`.
            `scene_distance` is the share of the first frame that is as in no frame of the task's
            references. It abstains if that is large in a clip, whatever follows, or less mirrored;
            if the library has no successful reference of the task; and if there are no frames.
        """
        words = normalize_task(task_text)
        if words not in self._tasks:
            return Judgment(None, self._unknown(task_text), cause=VideoCause.NO_REFERENCE)
        if len(frames) == 0:
            return Judgment(None, "The clip has no frames.", cause=VideoCause.TOO_FEW_FRAMES)
        task = self._tasks[words]
        first = shrink(frames[:1])
        distance = share_unlike(Thumbnails.of(first), task.scene)
        is_other, details = distance > _OTHER_SCENE, {"scene_distance": distance}
        views = _views(frames[0]) if distance > _DOUBTFUL else []
        shares = [(share_unlike(make_thumbnails([each]), task.scene), name) for name, each in views]
        share, view = min(shares, default=(1.0, ""))
        view = view if share <= min(_OTHER_SCENE, distance * _MUCH_NEARER) else ""
        camera = Camera() if is_other else camera_of(first, task.background)
        # The only frame may be the last one. A policy can hide the scene in it, and not mirror it.
        if view or (is_other and len(frames) > 1) or camera.off > NEAR:
            other = "another camera, scene or light" if is_other else f"another camera: {camera}"
            text = (
                f"{distance:.0%} of the first frame is as in no frame of this task's references, "
                f"where {_OTHER_SCENE:.0%} are accepted: {view or other}."
            )
            return Judgment(None, text, details, cause=VideoCause.UNKNOWN_SCENE)
        judgment = task.compare(*((frames,) if camera.off < 1 else camera.aligned(frames)))
        text = judgment.text + ("" if camera.off < 1 else f" The clip was aligned: {camera}.")
        return replace(judgment, text=text, details={**judgment.details, **details})

    def _unknown(self, task_text: str) -> str:
        words = normalize_task(task_text[:_MAX_COMPARED])
        nearest = difflib.get_close_matches(words, self._tasks, 1, cutoff=0)
        known = [f"The nearest known task is '{each}'." for each in nearest]
        return " ".join([f"No successful reference of the task '{task_text}'.", *known])


class _Task:
    """The reference frames of one task, from `_arrays_of`."""

    def __init__(self, arrays: Arrays) -> None:
        self.names = arrays["names"].tolist()  # of the frames: the file, and a description
        self.thumbnails = Thumbnails.of(arrays["pixels"])
        self.touched: Levels = arrays["touched"]
        self.progress: NDArray[np.float64] = arrays["progress"]  # NaN if unknown
        self.finished: NDArray[np.bool_] = self.progress == 1.0
        self.counts = arrays["counts"]  # how many rollouts these are, for people
        self.scene = Thumbnails.of(arrays["scene"])  #: frames of the task's references
        self.background: Plane = arrays["background"]  #: what these have in common

    def compare(self, frames: Sequence[Frame], known: Plane | None = None) -> Judgment:
        """Compare the end of a clip with the references, in all pixels or in known ones."""
        while len(frames) > 2 and np.array_equal(frames[-1], frames[-2]):
            frames = frames[:-1]  # a repeated frame does not show what moved before
        maps = self._difference_maps(frames) * (1 if known is None else known)
        differences = _max_difference(maps)
        # What no finished frame explains, if each pixel is taken from the one that explains it
        # best: the robot may have retreated as in one of them while the object is as in another.
        unexplained = float(_max_difference(maps[self.finished].min(axis=0, keepdims=True))[0])
        probability = self._probability(differences, unexplained)
        details = {"success": probability, "progress": self._progress(differences)}
        nearest = self._nearest(differences)
        text = self._text(nearest, unexplained)
        return Judgment(probability, text, details, references=nearest)

    def _difference_maps(self, clip: Sequence[Frame]) -> DifferenceMaps:
        """Return the weighted differences of the last frame to every reference frame.

        A pixel weighs less if the clip still moves there, or if neither rollout changed there since
        its start: objects that were not touched start at other positions in every rollout.
        """
        last, first = make_thumbnails(clip[-1:]), make_thumbnails(clip[:1])
        still = 1 - _weight(_movement(clip, last))
        touched = change(last, first)
        if len(clip) == 1:  # there is no start to compare with: any pixel may have changed
            touched[:] = 255
        levels = difference(last, self.thumbnails)
        maps = np.empty(levels.shape, np.float32)
        for start in range(0, len(maps), BLOCK):
            block = slice(start, start + BLOCK)
            changed = np.maximum(touched, self.touched[block])
            weighted = _weight(changed.reshape(-1, SIDE)).reshape(changed.shape)
            weighted *= still
            weighted *= levels[block]
            for each, blurred in zip(weighted, maps[block], strict=True):
                cv2.blur(each, (3, 3), dst=blurred)
        return maps

    def _probability(self, differences: NDArray[np.float32], unexplained: float) -> float:
        nearest = float(differences[self.finished].min())
        other = float(differences[~self.finished].min(initial=_NO_OTHER))
        logit = (
            _INTERCEPT
            + _PER_LOG_RATIO * math.log((other + _NOISE) / (nearest + _NOISE))
            + _PER_LOG_UNEXPLAINED * math.log(unexplained + _FAINT)
        )
        return 1 / (1 + math.exp(-logit))

    def _progress(self, differences: NDArray[np.float32]) -> float:
        """Return the mean progress of the frames, where near ones weigh more."""
        known = ~np.isnan(self.progress)
        nearness = np.exp((differences[known].min() - differences[known]) / _NOISE)
        return float(np.average(self.progress[known], weights=nearness))

    def _nearest(self, differences: NDArray[np.float32]) -> list[NearestReference]:
        """Return the nearest finished frame and, if there is one, the nearest other frame."""
        found = []
        for finished in (True, False):
            candidates = np.flatnonzero(self.finished == finished)
            if len(candidates):
                index = candidates[differences[candidates].argmin()]
                (file, label), distance = self.names[index], float(differences[index])
                found.append(
                    NearestReference(file=file, frame=label, finished=finished, distance=distance)
                )
        return found

    def _text(self, nearest: Sequence[NearestReference], unexplained: float) -> str:
        shown = [f"{each.file} ({each.frame}) at {each.distance:.1f}" for each in nearest]
        finished, other = [*shown, "none in the library"][:2]
        return (
            f"Compared how the clip ends with {self.counts}. "
            f"Nearest finished frame: {finished} gray levels. "
            f"Nearest other frame: {other}. "
            f"Not explained by any finished frame: {unexplained:.1f}."
        )


def _arrays_of(words: str, references: Sequence[Reference]) -> Arrays:
    own = [each for each in references if normalize_task(each.task_text) == words]
    foreign = [each for each in references if normalize_task(each.task_text) != words]
    successes = [reference for reference in own if reference.success]
    failures = [reference for reference in own if not reference.success]
    frames = [frame for reference in successes for frame in reference.frames()]
    finished = [frame for frame in frames if frame.progress == 1.0]
    other_ends = _ends_of_other_tasks(own, finished, foreign)
    frames += [reference.last for reference in failures] + other_ends
    counts = (
        f"{len(successes)} successes and {len(failures)} failures of this task and "
        f"{len(other_ends)} successes of other tasks"
    )
    scene = np.concatenate([reference.pixels[::_SCENE_STEP] for reference in own])
    return {
        "names": np.array([(frame.file, frame.label) for frame in frames]),
        "pixels": np.concatenate([frame.pixels for frame in frames]),
        "touched": np.concatenate([frame.touched for frame in frames]),
        "progress": np.array([frame.progress for frame in frames], np.float64),
        "scene": scene,
        "background": background_of(scene),
        "counts": np.array(counts),
    }


def _views(image: Frame) -> list[tuple[str, Frame]]:
    """Return what an image may be, with what mends that, and the image that it would be of."""
    adapter = "set orientation='{}' of LiberoRewards, or send image[{}]"
    halves = [half for axis in (0, 1) for half in np.array_split(image, 2, axis)]
    return [
        (f"it is mirrored; {adapter.format('rotated', ':, ::-1')}", image[:, ::-1]),
        (f"it is upside down; {adapter.format('raw', '::-1')}", image[::-1]),
        ("it is rotated; send image[::-1, ::-1]", image[::-1, ::-1]),
        *((f"it is rotated; send numpy.rot90(image, {n})", np.rot90(image, n)) for n in (1, 3)),
        ("it is BGR; send image[..., ::-1]", image[..., ::-1]),
        *(("it has two views; send one of them", half) for half in halves),
    ]


def _movement(clip: Sequence[Frame], last: Thumbnails) -> Levels:
    """Return how much each pixel changed in the last eighth of a clip, `[64, 64]`, gray levels."""
    if len(clip) < 4:  # the previous one is too old to show what still moves
        return np.zeros((SIDE, SIDE), np.uint8)
    count = max(1, round(_MOVING_SHARE * len(clip)))
    return np.asarray(change(last, make_thumbnails(clip[-1 - count : -1])).max(axis=0))


def _ends_of_other_tasks(
    own: Iterable[Reference], finished: Iterable[ReferenceFrame], foreign: Iterable[Reference]
) -> list[ReferenceFrame]:
    """Return last frames of other tasks' successes in this scene, except of tasks that end alike.

    Those are paraphrases of this task, and no evidence against it.
    """
    starts = Thumbnails.of(np.concatenate([reference.pixels[:1] for reference in own]))
    known = Thumbnails.of(np.concatenate([frame.pixels for frame in finished]))
    by_task: dict[str, list[Reference]] = {}
    for reference in foreign:
        others = by_task.setdefault(normalize_task(reference.task_text), [])
        if reference.success and len(others) < _OF_OTHER_TASK:
            others.append(reference)
    ends = []
    for others in by_task.values():
        starting = ((each, Thumbnails.of(each.pixels[:1])) for each in others)
        last = [r.last for r, start in starting if share_unlike(start, starts) <= _OTHER_SCENE]
        maps = (difference(Thumbnails.of(frame.pixels), known) for frame in last)
        if all(_max_difference(np.asarray(m, np.float32)).min() >= _SIMILAR_END for m in maps):
            ends += last
    return ends


def normalize_task(task_text: str) -> str:
    """Return the words of a task's text in lower case, without punctuation."""
    return " ".join(re.findall(r"\w+", task_text.casefold()))


def _weight(levels: Levels) -> NDArray[np.float32]:
    """Return weights in [0, 1): 0 at 0 gray levels, 1/2 at `_HALF_WEIGHT`, near 1 far above."""
    return np.asarray(cv2.LUT(levels, _WEIGHTS))


def _max_difference(maps: DifferenceMaps) -> NDArray[np.float32]:
    """Return the mean of the largest 0.4% of each map, `[frames]`, in gray levels."""
    # The largest pixels are in the columns with the largest maxima, of which few are searched.
    columns = maps.reshape(len(maps), _LARGEST, -1)
    largest = np.argpartition(columns.max(axis=1), -_LARGEST, axis=1)[:, None, -_LARGEST:]
    searched = np.take_along_axis(columns, largest, axis=2).reshape(len(maps), -1)
    return np.asarray(np.partition(searched, -_LARGEST, axis=1)[:, -_LARGEST:].mean(axis=1))
