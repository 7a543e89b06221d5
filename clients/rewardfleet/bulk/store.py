"""What becomes of scores: they are kept or printed, and counted."""

import asyncio
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from .groups import groups_of
from .output import Output, Printer
from .records import records_of
from .requests import Item, RequestBuilder
from .run import Run, ScoredItem
from .summary import Summary


class Store:
    """Keeps or prints scores, and counts them. Blocks; use it in one thread at a time.

    Args:
        output: Where they are kept or printed. What it has is counted.
        builder: Built their requests.
        retry_failed: Whether failures in the output are scored again.
    """

    def __init__(
        self, output: Output | Printer, builder: RequestBuilder, *, retry_failed: bool = False
    ) -> None:
        self._output, self._builder = output, builder
        self.summary = Summary()
        self._kept = bytearray()  # by row, whether an earlier command has kept it
        self._is_stale = False  # the summary has scores that were replaced
        for record in output.records():
            if not (retry_failed and record["status"] == "error"):
                row = record["row"]
                self._kept.extend(bytes(max(0, row + 1 - len(self._kept))))
                self._kept[row] = True
                self.summary.add(record)

    def __contains__(self, row: int) -> bool:
        return row < len(self._kept) and bool(self._kept[row])

    def add(self, scored: Sequence[ScoredItem]) -> None:
        """Keep or print scores.

        Raises:
            OSError: They cannot be written.
        """
        records = records_of(scored, self._builder)
        self._output.add(records)
        for record in records:
            if record["row"] in self:  # its group is scored again
                self._is_stale = True
            else:
                self.summary.add(record)

    def finish(self, *, is_complete: bool) -> None:
        """Count what is replaced, and write the parts if all items are scored.

        Raises:
            OSError: They cannot be written.
        """
        if is_complete:
            self._output.finish()
        if self._is_stale:
            self.summary = Summary()
            for record in self._output.records():
                self.summary.add(record)


async def score_items(
    items: Iterator[Item], run: Run, store: Store, on_progress: Callable[[Summary], None]
) -> bool:
    """Score what is not kept yet, and what is of a group with that.

    Args:
        items: Those of a group follow one another.
        run: Scores the items.
        store: Keeps the scores, or prints them.
        on_progress: Called when scores are kept, and at first.

    Returns:
        Whether all items were scored before SIGINT or SIGTERM.

    Raises:
        OSError: The output cannot be written.
    """
    on_progress(store.summary)
    left = (group for group in groups_of(items) if any(each.index not in store for each in group))
    loop = asyncio.get_running_loop()
    # One thread: it adds what it has begun to before it finishes.
    with ThreadPoolExecutor(1, thread_name_prefix="keep-scores") as thread:

        async def keep(scored: Sequence[ScoredItem]) -> None:
            await loop.run_in_executor(thread, store.add, scored)
            on_progress(store.summary)

        scoring = asyncio.ensure_future(run.score(left, keep))
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, scoring.cancel)
        try:
            await scoring
            is_complete = True
        except asyncio.CancelledError:
            for number in (signal.SIGINT, signal.SIGTERM):  # a second one ends it without totals
                loop.remove_signal_handler(number)
            is_complete = False
        await loop.run_in_executor(thread, lambda: store.finish(is_complete=is_complete))
    return is_complete
