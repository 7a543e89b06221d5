"""A job: the items of an input, from the first row to the summary."""

import asyncio
import signal
from collections.abc import Callable, Iterator

from .output import Output, Printer
from .records import record_of
from .requests import Item
from .run import Run, Scored
from .summary import Summary

#: Bytes of scores that wait for an earlier item, beyond which no further items are read.
_MAX_WAITING_BYTES = 64 * 2**20


class Job:
    """Scores the items of an input, keeps the scores, and counts them.

    Args:
        run: Scores the items.
        output: Keeps the scores, or prints them.
        on_progress: Called when rows are scored, with how many.
    """

    def __init__(
        self, run: Run, output: Output | Printer, on_progress: Callable[[int], None]
    ) -> None:
        self._run, self._output, self._on_progress = run, output, on_progress
        self.summary = Summary()
        self._again: set[int] = set()

    def load(self, *, retry_failed: bool) -> None:
        """Count what an earlier job has scored.

        Args:
            retry_failed: Whether items that failed are scored again.
        """
        rows = 0
        for record in self._output.records():
            if retry_failed and record["status"] == "error":
                self._again.add(record["row"])
            else:
                self.summary.add(record)
                rows += not record["completion"]
        self._on_progress(rows)

    def score(self, items: Iterator[Item]) -> bool:
        """Score what is not scored yet; return False if SIGINT or SIGTERM ended it before.

        Raises:
            OSError: The output cannot be written.
        """
        left = (
            each for each in items if each.index in self._again or each.index not in self._output
        )
        return asyncio.run(self._score(left))

    async def _score(self, items: Iterator[Item]) -> bool:
        scoring = asyncio.ensure_future(self._run.score(items, self._keep, self._may_read))
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, scoring.cancel)
        try:
            await scoring
        except asyncio.CancelledError:
            return False
        self._output.finish()
        return True

    def _may_read(self) -> bool:
        return self._output.later_bytes < _MAX_WAITING_BYTES

    def _keep(self, scored: list[Scored]) -> None:
        records = [record_of(each.item, each.request_id, each.score) for each in scored]
        self._output.add(records)
        for record in records:
            self.summary.add(record)
        self._on_progress(sum(not each.item.completion for each in scored))
