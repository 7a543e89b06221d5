"""The `reference` judge: was a rollout a success, judged by labelled rollouts of the same task.

What it is: a stand-in until a VLM is configured. It needs no GPU and no model, and works for a
fixed camera and for tasks that have at least one successful reference (a few are better).
What it is not: it does not understand the task, and knows only what the references show. Another
camera, another scene, or a valid way of ending that no reference shows all read as failure.
It looks only at how a clip ends: what is hidden at the end, it cannot judge.

How it works. The last frame is compared, in 64x64 pixels, with two sides:
  - the finished side: moments of this task's successful references after they had succeeded;
  - the other side: moments of the same references before that, ends of the task's failed
    references, and ends of other tasks' successes (the right object on the wrong target).
A difference is the mean of its worst 0.4 % of places, for a near miss differs in one small place.
Shifts of about 8 of 256 pixels cost nothing. What still moves as the clip ends counts less: that
is the retreating robot, not the result; so does what nobody has touched since the start. Two
numbers give the probability: how much nearer the finished side is than the other one, and how much
of the last frame no finished moment explains. Only the end is compared, so neither the speed nor
the length of a clip matters.

Measured on LIBERO (14 tasks; 32 shipped references; 16 frames a clip; threshold 0.5):
  - the 38 remaining clips: AUROC 1.00 (14 successes: the interval says little), 1 of 24 failures
    called a success; ten random libraries, calibrated without the judged task: AUROC 0.98
    [0.97, 0.99], the worst of them 0.97, 5 % false positives, recall 94 %;
  - 143 fresh rollouts (other starts, speeds and ways to fail): AUROC 0.95 [0.91, 0.97], 5 % false
    positives, recall 77 %; on the last 50 of them, made after its comparison was settled, 0.93
    [0.85, 1.00], 12 % false positives (2 of 17), recall 76 %.
Weakest where a success ends with the robot in a pose that no reference shows (recall), where the
object is out of sight, at a clip that stops just before the success, and at one that ends in mid
motion. A library without `success_frame`: AUROC 0.95 and 0.93.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

from rewardfleet_server.video.frames import Frame

Maps: TypeAlias = NDArray[np.float32]  # one difference a place, [moments, side, side]

SIDE = 64  # comparison size: finer saw no more, as near misses differ by more than its pixels
REACH = np.ones((5, 5), np.uint8)  # a pixel may be found up to two pixels away
WORST = SIDE * SIDE // 250  # the places that make up a difference: 0.4 % of them
LEVEL = 10.0  # grey levels of motion, or of change since the start, at which a place counts half
SHARES = (np.arange(256) / (np.arange(256) + LEVEL)).astype(np.float32)
ALIKE = 10.0  # grey levels: two tasks that end this alike are no evidence against each other
UNRELATED = 100.0  # difference to the other side where the library has nothing there

# Where a reference does not say when it succeeded: its end is finished, its first part is not,
# and what lies between is left out.
UNFINISHED_UNTIL, FINISHED_FROM = 0.6, 0.9

# Logistic calibration over all 14 tasks of the LIBERO clips and many random libraries; validated
# with a whole task left out. Failures weigh 1.5 times successes:
# a reward for a failure does more harm than a missed one. NOISE: grey levels that mean nothing.
INTERCEPT, PER_LOG_RATIO, PER_UNEXPLAINED, NOISE = 0.66, 2.14, 0.049, 2.0


@dataclass(frozen=True)
class Comparison:
    """What the judge found. Both numbers are None where it abstains; `text` says why."""

    probability: float | None
    progress: float | None
    text: str


@dataclass(frozen=True)
class View:
    """A small picture, and the darkest and brightest value within reach of each of its pixels."""

    pixels: Frame
    darkest: Frame
    brightest: Frame


@dataclass(frozen=True)
class Moment:
    """One frame of a reference. `progress` is 1 from its success on; None: not known."""

    file: str
    label: str
    view: View
    touched: Frame  # grey levels of change since the start of its rollout, within reach
    progress: float | None


@dataclass(frozen=True)
class Reference:
    """A labelled rollout of a library. `success_frame`: the first frame that shows the success."""

    file: str
    task_text: str
    success: bool
    success_frame: int | None
    views: tuple[View, ...]
    frame_count: int

    @property
    def last(self) -> Moment:
        label = "success" if self.success else "failure"
        return self._moment(f"{label} of '{self.task_text}', end", self.views[-1], None)

    def moments(self) -> list[Moment]:
        """The views of a success whose side is known, in order."""
        step = 1 / max(1, len(self.views) - 1)
        if self.success_frame is None:
            until, done = UNFINISHED_UNTIL, FINISHED_FROM
            reached = FINISHED_FROM
        else:
            reached = min(1.0, self.success_frame / max(1, self.frame_count - 1))
            until, done = reached - step, min(1.0, reached + step)
        moments = []
        for index, view in enumerate(self.views):
            time = 1.0 if index == len(self.views) - 1 else index * step
            if time >= done:
                moments.append(self._moment("success, finished", view, 1.0))
            elif time <= until:
                label = f"success, {time / reached:.0%} of the way"
                moments.append(self._moment(label, view, time / reached))
        return moments

    def _moment(self, label: str, view: View, progress: float | None) -> Moment:
        return Moment(self.file, label, view, _within_reach(view, self.views[0]), progress)


@dataclass(frozen=True)
class Library:
    """Labelled rollouts, and the sha256 of manifest and files, for cache keys."""

    references: tuple[Reference, ...]
    fingerprint: str


class Comparer:
    """Compares clips with the references of a library. Pure and synchronous; safe to share."""

    def __init__(self, library: Library) -> None:
        by_task: dict[str, list[Reference]] = {}
        for reference in library.references:
            by_task.setdefault(normal_task(reference.task_text), []).append(reference)
        self._tasks = {
            task: _Task.of(own, [r for r in library.references if normal_task(r.task_text) != task])
            for task, own in by_task.items()
            if any(reference.success for reference in own)
        }

    def compare(self, task_text: str, frames: Sequence[Frame]) -> Comparison:
        """Compare a clip's frames (RGB, any size, evenly spread, the last included)."""
        task = self._tasks.get(normal_task(task_text))
        if task is None:
            return Comparison(None, None, f"No successful reference of the task '{task_text}'.")
        if len(frames) == 0:
            return Comparison(None, None, "The clip has no frames.")
        return task.compare(frames)


@dataclass(frozen=True)
class _Task:
    """One task's two sides, `finished` and `other`, as one list of moments."""

    moments: tuple[Moment, ...]
    finished: NDArray[np.bool_]
    successes: int
    failures: int
    other_tasks: int

    @classmethod
    def of(cls, own: list[Reference], foreign: list[Reference]) -> "_Task":
        successes = [reference for reference in own if reference.success]
        failures = [reference for reference in own if not reference.success]
        moments = [moment for reference in successes for moment in reference.moments()]
        finished = [moment for moment in moments if moment.progress == 1.0]
        elsewhere = _ends_elsewhere(finished, foreign)
        moments += [reference.last for reference in failures] + elsewhere
        is_finished = np.array([moment.progress == 1.0 for moment in moments])
        return cls(tuple(moments), is_finished, len(successes), len(failures), len(elsewhere))

    def compare(self, frames: Sequence[Frame]) -> Comparison:
        maps = self._maps(frames)
        differences = _worst(maps)
        ratio, unexplained = self._evidence(maps, differences)
        logit = INTERCEPT + PER_LOG_RATIO * ratio - PER_UNEXPLAINED * unexplained
        probability = 1 / (1 + math.exp(-logit))
        return Comparison(
            probability, self._progress(differences), self._text(differences, unexplained)
        )

    def _maps(self, frames: Sequence[Frame]) -> Maps:
        """Differences of the last frame to every moment, place by place.

        A place counts less where the clip still moves, and where neither rollout has changed since
        its start: things that nobody touched lie a little differently in every rollout.
        """
        last, first = view_of(frames[-1]), view_of(frames[0])
        # With fewer than four frames the one before is too long ago to tell what still moves.
        lag = max(1, round(0.08 * len(frames)))
        before = view_of(frames[-1 - lag]) if len(frames) > 3 else last
        still = 1 - _share(_within_reach(last, before))
        touched = _within_reach(last, first)
        if len(frames) == 1:  # no start to compare with: any place may have been touched
            touched[:] = 255
        maps = []
        for moment in self.moments:
            weight = np.multiply(still, _share(np.maximum(touched, moment.touched)))
            maps.append(_smooth(_difference(last, moment.view) * weight))
        return np.stack(maps)

    def _evidence(self, maps: Maps, differences: NDArray[np.float32]) -> tuple[float, float]:
        """How much nearer the finished side is (log ratio), and what no finished moment explains.

        The second takes each place from the finished moment that explains it best: the robot may
        have retreated as in one of them while the object lies as in another.
        """
        nearest = differences[self.finished].min()
        other = differences[~self.finished].min(initial=UNRELATED)
        unexplained = _worst(maps[self.finished].min(axis=0, keepdims=True))[0]
        return math.log((other + NOISE) / (nearest + NOISE)), float(unexplained)

    def _progress(self, differences: NDArray[np.float32]) -> float:
        """Mean progress of the successes' moments, the nearest ones weighing most."""
        known = [i for i, moment in enumerate(self.moments) if moment.progress is not None]
        progress = np.array([self.moments[i].progress for i in known], np.float64)
        weight = np.exp((differences[known].min() - differences[known]) / NOISE)
        return float(np.average(progress, weights=weight))

    def _text(self, differences: NDArray[np.float32], unexplained: float) -> str:
        def nearest(side: NDArray[np.bool_]) -> str:
            index = int(np.where(side, differences, np.inf).argmin())
            moment = self.moments[index]
            return f"{moment.file} ({moment.label}) at {differences[index]:.1f}"

        other = nearest(~self.finished) if not self.finished.all() else "none in the library"
        return (
            f"Compared how the clip ends with {self.successes} successes and {self.failures} "
            f"failures of this task and {self.other_tasks} successes of other tasks. "
            f"Nearest finished moment: {nearest(self.finished)} grey levels. "
            f"Nearest other moment: {other}. "
            f"Left unexplained by all finished moments: {unexplained:.1f}."
        )


def _ends_elsewhere(finished: Iterable[Moment], foreign: Iterable[Reference]) -> list[Moment]:
    """Ends of other tasks' successes, without the tasks that end as this one does (paraphrases)."""
    finished = list(finished)
    ends = [(normal_task(r.task_text), r.last) for r in foreign if r.success]
    alike = {
        task
        for task, end in ends
        if any(
            _worst(_smooth(_difference(end.view, own.view))[None])[0] < ALIKE for own in finished
        )
    }
    return [end for task, end in ends if task not in alike]


def normal_task(task_text: str) -> str:
    """Task texts are the same but for case, spaces and punctuation."""
    return " ".join(re.findall(r"\w+", task_text.casefold()))


def shrink(frame: NDArray[Any]) -> Frame:
    return np.asarray(cv2.resize(frame, (SIDE, SIDE), interpolation=cv2.INTER_AREA), np.uint8)


def view_of(frame: Frame) -> View:
    pixels = np.ascontiguousarray(shrink(frame))
    return View(
        pixels,
        np.asarray(cv2.erode(pixels, REACH), np.uint8),
        np.asarray(cv2.dilate(pixels, REACH), np.uint8),
    )


def _difference(a: View, b: View) -> Frame:
    """Grey levels, at each place, by which either picture leaves what the other has within reach.

    Of the colours the worst one counts: a burner that glows differs in red only.
    """
    subtract = cv2.subtract  # saturates: what is inside the range gives 0
    a_outside = cv2.max(subtract(a.pixels, b.brightest), subtract(b.darkest, a.pixels))
    b_outside = cv2.max(subtract(b.pixels, a.brightest), subtract(a.darkest, b.pixels))
    red, green, blue = cv2.split(cv2.max(a_outside, b_outside))
    return np.asarray(cv2.max(cv2.max(red, green), blue), np.uint8)


def _within_reach(a: View, b: View) -> Frame:
    return np.asarray(cv2.dilate(_difference(a, b), REACH), np.uint8)


def _share(levels: Frame) -> NDArray[np.float32]:
    """Grey levels as a share of all that could matter: 0 at 0, half at LEVEL, near 1 far above."""
    return SHARES[levels]


def _smooth(difference: NDArray[Any]) -> NDArray[np.float32]:
    return np.asarray(cv2.blur(np.asarray(difference, np.float32), (3, 3)))


def _worst(maps: Maps) -> NDArray[np.float32]:
    """The mean of each map's worst places."""
    flat = maps.reshape(len(maps), -1)
    return np.asarray(np.partition(flat, -WORST, axis=1)[:, -WORST:].mean(axis=1))
