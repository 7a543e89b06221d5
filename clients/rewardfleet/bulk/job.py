"""A job: the items of an input, from the first row to the totals."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from .requests import Item
from .run import Run
from .store import FolderStore, StdoutStore, Totals

_SIGNALS = signal.SIGINT, signal.SIGTERM
#: Bytes of scores that wait for an earlier item, beyond which no further items are read.
_MAX_WAITING_BYTES = 64 * 2**20


async def score_items(
    items: Iterator[Item],
    run: Run,
    opening: AbstractAsyncContextManager[FolderStore | StdoutStore],
    lerobot: Path | None = None,
) -> tuple[bool, Totals]:
    """Score what is not kept yet.

    Args:
        run: Scores the items.
        opening: Keeps the scores, or prints them.
        lerobot: A data set to write a copy of, with the scores as rewards.

    Returns:
        Whether all items were scored before SIGINT or SIGTERM, and the totals.

    Raises:
        ValueError: The output belongs to something else.
        OSError: It cannot be written.
    """
    async with opening as store:
        left = (each for each in items if each.index not in store.kept)

        def may_read() -> bool:
            return store.waiting_bytes < _MAX_WAITING_BYTES

        scoring = asyncio.ensure_future(run.score(left, store.add, may_read))
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, scoring.cancel)
        try:
            await scoring
        except asyncio.CancelledError:
            for number in _SIGNALS:  # a second one ends it without the totals
                loop.remove_signal_handler(number)
            return False, await store.finish(is_complete=False)
        return True, await store.finish(is_complete=True, lerobot=lerobot)
