"""Tables of the best, worst and suspicious samples of a step, where a trainer logs its metrics."""

import heapq
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextvars import copy_context
from typing import Any

from rewardfleet.score_log.queue import ScoredQueue
from rewardfleet.score_log.record import Scored

from .sample import Sample, sample_of
from .trackers import Row, Trackers

log = logging.getLogger(__name__)

#: Steps whose tables may still get samples, e.g. of asynchronous rollouts.
_OPEN_STEPS = 4
#: Seconds without a sample after which the table of a step is logged, before the next step begins.
_IDLE_SECONDS = 2.0
#: The most rows of a kind.
_MAX_ROWS = 100


class SampleTables(ScoredQueue):
    """Logs tables of samples to the tracker of the training run, off the training path.

    Trackers are the runs of W&B, MLflow and trackio that are active in this process, and a
    TensorBoard writer. None of them is imported. Give it to `RewardFleet(sample_tables=...)`, or to
    an adapter.

    A table is logged when the next step begins, after 2 s without a sample, and when the client is
    closed or the process ends. It has the `rows` best and worst samples, those with suspicions, and
    those without a score. The step is that of the request. Without one, each batch is a step.

    A thread does this. Samples are dropped and counted in `dropped` if it is behind, or a tracker
    fails, and training goes on.

    Args:
        rows: The most samples of each kind, in [1, 100].
        tensorboard: A `SummaryWriter` of torch or tensorboardX, which the caller closes.

    Raises:
        ValueError: `rows` is out of range.
    """

    _name = "sample-tables"
    _options = ("_rows", "_tensorboard")

    def __init__(self, rows: int = 4, *, tensorboard: Any = None) -> None:
        if not 1 <= rows <= _MAX_ROWS:
            raise ValueError(f"rows: give a number in [1, {_MAX_ROWS}], not {rows}")
        self._rows, self._tensorboard = rows, tensorboard
        self._begin()

    def _begin(self) -> None:
        super()._begin()
        #: By service and step, as scores of services are in different ranges.
        self._tables: defaultdict[str, dict[int, _Table]] = defaultdict(dict)
        self._trackers = Trackers(self._tensorboard)
        self._context = copy_context()
        self._last_sample = 0.0
        self._warned = False
        self._error: Exception | None = None

    def add(self, scored: Callable[[], Iterable[Scored]], *, items: int = 1, size: int = 0) -> None:
        self._context = copy_context()  # it has the run of trackio
        super().add(scored, items=items, size=size)

    def _work(self, *, closing: bool) -> None:
        for scored, items in self._taken():
            try:
                self._collect(scored, items)
            except Exception as error:  # noqa: BLE001 - of an item that is unlike all that were tested
                self._failed(items, error)
            self._last_sample = time.monotonic()
        if closing or time.monotonic() - self._last_sample > _IDLE_SECONDS:
            self._log_changed()
        if not self._warned and any(self.dropped.values()):
            self._warned = True
            message = "samples are missing in the tables of the run: %s; further ones are counted"
            log.warning(message, dict(self.dropped), exc_info=self._error)

    def _collect(self, scored: Callable[[], Iterable[Scored]], items: int) -> None:
        by_step: defaultdict[int | None, list[Scored]] = defaultdict(list)
        for each in scored():
            step = getattr(each.request, "step", None) if each.step is None else each.step
            by_step[step].append(each)
        for step, samples in by_step.items():
            tables = self._tables[samples[0].service]
            newest = max(tables, default=-1)
            counted = newest + 1 if items > 1 else max(newest, 0)
            self._table_of(counted if step is None else step, tables).add(samples)

    def _table_of(self, step: int, tables: "dict[int, _Table]") -> "_Table":
        if step not in tables:
            self._log_changed()
            tables[step] = _Table(self._rows)
            while len(tables) > _OPEN_STEPS:
                del tables[next(iter(tables))]
        return tables[step]

    def _log_changed(self) -> None:
        for service, tables in self._tables.items():
            for step, table in tables.items():
                if table.is_changed:
                    table.is_changed = False
                    rows = table.rows()
                    for error in self._context.run(list, self._trackers.log(service, step, rows)):
                        self._failed(len(rows), error)

    def _failed(self, items: int, error: Exception) -> None:
        self.dropped["failed"] += items
        self._error = error


class _Table:
    """The samples of a step that its table shows."""

    def __init__(self, rows: int) -> None:
        self.is_changed = False
        self._rows = rows
        self._count = 0
        #: By kind a heap of rank, order and sample; the first is the one that another replaces.
        self._kept: dict[str, list[tuple[float, int, Sample]]] = {
            kind: [] for kind in ("best", "worst", "suspicious", "missing")
        }

    def add(self, samples: Iterable[Scored]) -> None:
        """Add those samples that are among the first of a kind; of equal ones, the earlier."""
        ranked: defaultdict[str, list[tuple[float, int, Scored]]] = defaultdict(list)
        for each in samples:
            self._count += 1
            score: float | None = getattr(each.score, "score", None)
            ranks = {"missing": 0.0} if score is None else {"best": score, "worst": -score}
            if getattr(each.score, "suspicions", ()):
                ranks["suspicious"] = score or 0.0
            for kind, rank in ranks.items():
                ranked[kind].append((rank, -self._count, each))
        found: dict[int, Sample] = {}
        for kind, new in ranked.items():
            kept = self._kept[kind]
            for rank, order, each in heapq.nlargest(self._rows, new):
                if len(kept) == self._rows and kept[0][:2] > (rank, order):
                    break
                found[order] = found.get(order) or sample_of(each)
                heapq.heappush(kept, (rank, order, found[order]))
                self.is_changed = True
            while len(kept) > self._rows:
                heapq.heappop(kept)

    def rows(self) -> list[Row]:
        """Return each sample once, with its kinds: those with suspicions first, then the worst."""
        found: dict[int, tuple[list[str], Sample]] = {}
        for kind in ("suspicious", "worst", "best", "missing"):
            for _, order, sample in sorted(self._kept[kind], reverse=True):
                found.setdefault(order, ([], sample))[0].append(kind)
        return [(", ".join(kinds), sample) for kinds, sample in found.values()]
