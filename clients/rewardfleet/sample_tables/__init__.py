"""Tables of the best, worst and suspicious samples of a step, where a trainer logs its metrics."""

import heapq
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable

from rewardfleet.score_log.queue import ScoredQueue
from rewardfleet.score_log.record import Scored

from .sample import Row, Sample, Trackers, sample_of

log = logging.getLogger(__name__)

#: Steps whose tables may still get samples, e.g. of asynchronous rollouts.
_OPEN_STEPS = 4
#: Seconds without a sample after which the table of a step is logged, before the next step begins.
_IDLE_SECONDS = 2.0
#: The most rows of a kind.
_MAX_ROWS = 100


class SampleTables(ScoredQueue):
    """Logs tables of samples to the tracker of the training run, off the training path.

    Trackers are the runs of W&B and MLflow that are active in this process. Neither is imported.
    Give it to `RewardFleet(sample_tables=...)`, or to an adapter.

    A table is logged when the next step begins, after 2 s without a sample, and when the client is
    closed or the process ends. It has the `rows` best and worst samples, those with suspicions, and
    those without a score. The step is that of the request. Without one, each batch is a step.

    A thread does this. Samples are dropped and counted in `dropped` if it is behind, or a tracker
    fails, and training goes on.

    Args:
        rows: The most samples of each kind, in [1, 100].

    Raises:
        ValueError: `rows` is out of range.
    """

    _name = "sample-tables"
    _options = ("_rows",)

    def __init__(self, rows: int = 4) -> None:
        if not 1 <= rows <= _MAX_ROWS:
            raise ValueError(f"rows: give a number in [1, {_MAX_ROWS}], not {rows}")
        self._rows = rows
        self._begin()

    def _begin(self) -> None:
        super()._begin()
        #: By service and step, as scores of services are in different ranges.
        self._tables: defaultdict[str, dict[int, _Table]] = defaultdict(dict)
        self._trackers = Trackers()
        self._last_sample = 0.0
        self._warned = False
        self._error: Exception | None = None

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
                    for error in self._trackers.log(service, step, rows):
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
        #: By kind the ranks and numbers of its samples, the first ones first.
        self._kept: dict[str, list[tuple[float, int]]] = {
            kind: [] for kind in ("suspicious", "worst", "best", "missing")
        }
        self._samples: dict[int, Sample] = {}  #: by number

    def add(self, samples: Iterable[Scored]) -> None:
        """Add those samples that are among the first of a kind; of equal ones, the earlier."""
        new: dict[int, Scored] = {}
        ranked = {kind: [*kept] for kind, kept in self._kept.items()}
        for each in samples:
            self._count -= 1  # so that of equal ranks, the earlier is the larger
            new[self._count] = each
            score: float | None = getattr(each.score, "score", None)
            ranks = {"missing": 0.0} if score is None else {"best": score, "worst": -score}
            if getattr(each.score, "suspicions", ()):
                ranks["suspicious"] = score or 0.0
            for kind, rank in ranks.items():
                ranked[kind].append((rank, self._count))
        kept = {kind: heapq.nlargest(self._rows, each) for kind, each in ranked.items()}
        self.is_changed |= kept != self._kept
        self._kept = kept
        self._samples = {
            number: self._samples.get(number) or sample_of(new[number])
            for number in {number for each in kept.values() for _, number in each}
        }

    def rows(self) -> list[Row]:
        """Return each sample once, with its kinds: those with suspicions first, then the worst."""
        kinds: defaultdict[int, list[str]] = defaultdict(list)
        for kind, kept in self._kept.items():
            for _, number in kept:
                kinds[number].append(kind)
        return [(", ".join(each), self._samples[number]) for number, each in kinds.items()]
