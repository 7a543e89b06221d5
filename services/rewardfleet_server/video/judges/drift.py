"""Drift: whether a judge's scores are still those of its calibration, tested after each block.

What is tested. A policy that learns succeeds more often, which changes the distribution of all
scores of a task and says nothing against the judge. So the success rate is left free: without
drift, the scores of a task are those of its labeled failures and of its labeled successes, in any
mixture, which may change at any time. Then no set of scores is more frequent than it is among the
failures or among the successes, whichever is more. The sets are all intervals between edges of the
file, and what is outside of each, abstentions included: too many scores somewhere, or too few.

How. `limit` of a set is the larger of two upper bounds by Clopper and Pearson, for failures and
for successes; all of them hold together with the confidence of the calibration. A block is 16
scores of a task at least, and ten minutes. Of each block, `1 + bet * (share / limit - 1)` has an
expectation of at most 1 without drift, as the share is a mean, however its scores depend on each
other: those of a group of rollouts, which come together, may all be alike. Scores of a block may
depend on earlier blocks in their success only. The evidence of a set and a bet is multiplied by it
after each block, and then grows by the time since the block before, in days, of which all sets,
bets and tasks together get one day a day. So all evidence minus the time is a supermartingale. When
the evidence of a task reaches 30 days, an alarm is raised and that evidence is reset to 0. Without
drift, a process raises at most one alarm in 30 days in expectation, at any rate of scores and with
any number of tasks.

This is an e-detector by Shiryaev's and Roberts' sum: Shin, Ramdas and Rinaldo, E-detectors: a
nonparametric framework for sequential change detection, 2022, arXiv:2203.03532, whose starts are
weighted by time here. The bets are those of Waudby-Smith and Ramdas, Estimating means of bounded
random variables by betting, 2020, arXiv:2010.09686. A test of exchangeability (Vovk, Testing
randomness online, 2019, arXiv:1906.09256) would take a learning policy for drift.
docs/judges.md says what this one cannot see.
"""

import hashlib
import logging
import time
from collections.abc import Callable
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from rewardfleet.wire.calibration import Distribution, LabelCounts, task_key
from rewardfleet.wire.score import Status
from rewardfleet_server.system.log_throttle import LogThrottle

log = logging.getLogger(__name__)

_ALARM_DAYS = 30.0  #: a process has one false alarm in so many days at most, in expectation
#: Scores of a task that are one observation, and seconds from its first to that of the next one, at
#: least.
BLOCK, _BLOCK_SECONDS = 16, 600.0
#: How much of the evidence is at stake in a block: a small bet sees a small drift, a large one a
#: large drift sooner.
_BETS = np.array([[0.1], [0.3], [0.9]])
_RECENT = 0.1  #: the weight of the last block in the shares that a warning names
#: The label of tasks that have no labels of their own, or too few; characters of the others.
OTHER, _LABEL_LENGTH = "other", 80

Floats = NDArray[np.float64]


class DriftWatch:
    """Compares the scores of a judge with its calibration's, for each task that has enough labels.

    Scores of other tasks are compared with the labels of all tasks together.

    Args:
        distribution: Of the calibration.
        confidence: That all limits hold.
        now: Returns seconds of a clock that does not jump.
    """

    def __init__(
        self,
        distribution: Distribution,
        confidence: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._place = distribution.place
        self._throttle = LogThrottle(log)
        self._edges = [0.0, *distribution.edges, 1.0]
        counts = {**distribution.tasks, "": distribution.overall}
        sets = _sets(len(distribution.edges) + 1)
        error = (1 - confidence) / (2 * len(sets) * len(counts))
        weight = 1 / (len(sets) * len(_BETS) * len(counts))
        #: The tasks with a metric of their own, by key; the other ones are last.
        self.tasks = {
            key: _TaskWatch(_label(key), sets, _limits(each, sets, error), weight, now)
            for key, each in counts.items()
        }

    def add(self, raw: float | None, task_text: str) -> None:
        """Count a raw score, or None for an abstention. It takes a microsecond or two."""
        watch = self.tasks.get(task_key(task_text)) or self.tasks[""]
        most = watch.add(self._place(raw))
        if most is not None:
            self._throttle("%s", self._warning(watch, most))

    def _warning(self, watch: "_TaskWatch", most: int) -> str:
        is_inside = watch.sets[most, -1] == 0
        bins = np.flatnonzero(watch.sets[most] == float(is_inside))
        where = "abstentions"
        if len(bins) < len(self._edges) - 1:
            low, high = self._edges[bins[0]], self._edges[bins[-1] + 1]
            where = f"raw scores {'from' if is_inside else 'not from'} {low:g} to {high:g}"
        return (
            f"drift: {watch.recent[most]:.0%} of the last scores of the task {watch.label!r} are "
            f"{where}, at most {watch.limits[most]:.0%} of the calibration's failures or successes"
        )


class _TaskWatch:
    """The scores of a task, and the evidence that they have drifted."""

    def __init__(
        self, label: str, sets: Floats, limits: Floats, weight: float, now: Callable[[], float]
    ) -> None:
        self.label, self.sets, self.limits = label, sets, limits
        self.results = {Status.OK: 0, Status.ABSTAINED: 0}
        self.evidence = 0.0  #: in [0, 1): an alarm is at 1
        self.alarms = 0
        self.recent = np.zeros(len(sets))  #: the share of each set in the last blocks
        self._per_second = weight / (_ALARM_DAYS * 86_400)
        self._now = now
        self._last: float | None = None  # when the block before ended
        self._began = 0.0
        self._counts = np.zeros(sets.shape[1])
        self._size = 0
        self._by_set = np.zeros((len(_BETS), len(sets)))

    def add(self, place: int) -> int | None:
        """Count a score; return the set with the most evidence if there is an alarm."""
        now, most = self._now(), None
        if self._size >= BLOCK and now >= self._began + _BLOCK_SECONDS:
            most = self._end_block(now)
        if not self._size:
            self._began = now
        is_abstention = place == len(self._counts) - 1
        self.results[Status.ABSTAINED if is_abstention else Status.OK] += 1
        self._counts[place] += 1
        self._size += 1
        return most

    def _end_block(self, now: float) -> int | None:
        shares = self.sets @ (self._counts / self._size)
        self._counts[:] = self._size = 0
        self.recent += (_RECENT if self._last is not None else 1.0) * (shares - self.recent)
        # What is added is not at stake before the next block, so that no block sets its own stake.
        added = 0.0 if self._last is None else (now - self._last) * self._per_second
        self._last = now
        self._by_set *= 1 + _BETS * (shares / self.limits - 1)
        self._by_set += added
        self.evidence = float(self._by_set.sum())
        if self.evidence < 1:
            return None
        most = int(self._by_set.sum(axis=0).argmax())
        self.alarms += 1
        self.evidence = 0.0
        self._by_set[:] = 0
        return most


def _sets(bins: int) -> Floats:
    """Return all intervals of bins and what is outside of each, `[S, bins + 1]`, as 0 and 1."""
    inside = np.zeros((bins * (bins + 1) // 2, bins + 1))
    for row, (low, high) in zip(inside, combinations(range(bins + 1), 2), strict=True):
        row[low:high] = 1
    return np.concatenate([inside, 1 - inside])


def _limits(counts: LabelCounts, sets: Floats, error: float) -> Floats:
    """Return the upper bounds on the share of each set, of which one fails with that error."""
    from scipy.special import betaincinv  # noqa: PLC0415 - takes a tenth of a second

    def bounds(of: list[int]) -> Floats:
        found, total = sets @ np.array(of, float), sum(of)
        bound = betaincinv(found + 1, np.maximum(total - found, 1), 1 - error)
        return np.where(found < total, bound, 1.0)

    return np.maximum(bounds(counts.failures), bounds(counts.successes))


def _label(key: str) -> str:
    """Return a task as the value of a label: short, and another one for each task."""
    if not key:
        return OTHER
    if len(key) <= _LABEL_LENGTH and key != OTHER:
        return key
    digest = hashlib.sha256(key.encode(errors="replace")).hexdigest()[:8]
    return f"{key[: _LABEL_LENGTH - 10]}… {digest}"
