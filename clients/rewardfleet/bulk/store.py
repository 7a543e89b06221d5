"""What becomes of items: they are read in groups, scored, kept or printed, and counted."""

import asyncio
import itertools
import json
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from rewardfleet.wire.episode import MAX_EPISODES

from .arrow import json_text
from .output import Lines, Output, Printer, records_of
from .requests import Item, RequestBuilder, group_of
from .rows import Row
from .run import Run, ScoredItem
from .summary import Summary


def in_groups(read: Callable[[], Iterator[Row]], builder: RequestBuilder) -> Iterator[Item]:
    """Return items so that those of a group follow one another, groups as their first items do.

    They are read as they are if they do so already, else from a temporary file. Some 60 bytes of
    memory are taken for each.

    Args:
        read: Returns the rows; called twice.
    """
    hashes = (hash(group_of(row) or (index,)) for index, row in enumerate(read()))
    groups = np.fromiter(hashes, np.int64)
    _, firsts, codes = np.unique(groups, return_index=True, return_inverse=True)
    first = firsts[codes]  # of its group, for each item
    if (first[1:] >= first[:-1]).all():
        return builder.items(read())
    lines = Lines()
    for item in builder.items(read()):
        values = (item.uid, item.error, item.group, item.row.place, item.row.fields)
        lines.put([(item.index, json_text(values).encode() + b"\n")])

    def item_at(index: int) -> Item:
        uid, error, group, place, fields = json.loads(lines.get(index))
        return Item(int(index), Row(place, fields), uid=uid, error=error, group=group)

    return map(item_at, np.argsort(first, kind="stable"))


def groups_of(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Yield groups whose items follow one another; an item without a group is one by itself.

    A group that no request can have becomes single items, with an error.
    """
    for group, members in itertools.groupby(items, lambda item: item.group):
        first = [*itertools.islice(members, MAX_EPISODES + 1)] if group is not None else []
        if 0 < len(first) <= MAX_EPISODES:
            yield first
            continue
        for item in itertools.chain(first, members):
            if group is not None:
                item.error = f"the group {group[:60]} has more than {MAX_EPISODES:,} episodes"
            yield [item]


class Store:
    """Keeps or prints scores, and counts them. Blocks; use it in one thread at a time.

    Args:
        output: Where they are kept or printed. What it has is counted.
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
