"""What becomes of scores: they are kept or printed, and counted.

With a folder, a process of its own does this on another core; see `keeper.py`.
"""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from .groups import groups_of
from .keeper import Kept, Progress, Store
from .output import Printer
from .records import encode_scores
from .requests import Item
from .run import Run, ScoredItem

#: Seconds in which the process ends once it has written what it has received.
_END_SECONDS = 60.0
#: Bytes of an answer; the first one names the rows that are scored already.
_MAX_ANSWER = 2**28


class StdoutStore:
    """Prints scores, in this process.

    Args:
        columns: Of a record; see `columns_of`.
        on_progress: Called when scores are printed.
    """

    def __init__(self, columns: Sequence[str], on_progress: Callable[[Progress], None]) -> None:
        self._store = Store(Printer(columns))
        self._on_progress = on_progress
        self.kept = Kept()

    async def add(self, scored: Sequence[ScoredItem]) -> None:
        """Print scores."""
        self._store.add(encode_scores(scored))
        self._on_progress(self._store.progress)

    async def finish(self, *, is_complete: bool, lerobot: Path | None = None) -> Progress:  # noqa: ARG002 - for folders
        """Return the totals."""
        return self._store.finish(is_complete=is_complete)


class FolderStore:
    """Keeps scores in a folder, by a process of its own; see `folder_store`."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        kept: Kept,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._process, self.kept, self._on_progress = process, kept, on_progress
        self._totals = asyncio.create_task(self._read())

    async def add(self, scored: Sequence[ScoredItem]) -> None:
        """Send scores, which are kept soon; wait while the process has many to keep.

        Raises:
            OSError: What was sent before cannot be written.
        """
        await self._send(encode_scores(scored))

    async def finish(self, *, is_complete: bool, lerobot: Path | None = None) -> Progress:
        """Wait until all scores are kept, and return the totals; see `Store.finish`.

        Raises:
            OSError: They cannot be written.
        """
        last = {"is_complete": is_complete, "lerobot": lerobot and str(lerobot)}
        await self._send(json.dumps(last).encode())
        return await self._totals

    async def _send(self, line: bytes) -> None:
        if self._totals.done():
            self._totals.result()
        assert self._process.stdin is not None  # noqa: S101 - a pipe
        self._process.stdin.write(line + b"\n")
        try:
            await self._process.stdin.drain()
        except ConnectionError:
            await self._totals  # why it has ended
            raise

    def close(self) -> None:
        """Stop waiting for answers."""
        if not self._totals.cancel() and not self._totals.cancelled():
            self._totals.exception()  # it was raised already, or another one was before it

    async def _read(self) -> Progress:
        while True:
            kind, value = await _answer(self._process)
            if kind == "totals":
                return Progress(**value)
            self._on_progress(Progress(**value))


@asynccontextmanager
async def folder_store(
    opening: Mapping[str, Any], on_progress: Callable[[Progress], None]
) -> AsyncIterator[FolderStore]:
    """Run the process that keeps scores, for the block.

    Args:
        opening: The arguments of `Output`, and `retry_failed`: whether rows that failed are scored
            again.
        on_progress: Called when scores are kept, and at first.

    Raises:
        ValueError: The folder has the scores of another input, or something else, or is in use.
        OSError: It cannot be read or written.
    """
    process = await asyncio.create_subprocess_exec(
        # -P: what lies in the working directory must not be imported.
        *(sys.executable, "-P", "-m", "rewardfleet.bulk.keeper"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        limit=_MAX_ANSWER,
        start_new_session=True,  # Ctrl-C ends the scoring first
    )
    assert process.stdin is not None  # noqa: S101 - a pipe
    store = None
    try:
        process.stdin.write(json.dumps(opening).encode() + b"\n")
        store = FolderStore(process, Kept(**(await _answer(process))[1]), on_progress)
        yield store
    finally:
        if store is not None:
            store.close()
        process.stdin.close()
        # Else asyncio reports that the pipe of a process that was killed is broken.
        with suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(process.stdin.wait_closed(), _END_SECONDS)
        try:
            await asyncio.wait_for(process.wait(), _END_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()


async def _answer(process: asyncio.subprocess.Process) -> tuple[str, Any]:
    """Return the next answer of the process: what it is, and its value."""
    assert process.stdout is not None  # noqa: S101 - a pipe
    line = await process.stdout.readline()
    if not line:
        raise OSError("the process that keeps the scores was killed; the same command goes on")
    kind, value = json.loads(line)
    if kind == "OSError":
        raise OSError(value)
    if kind == "ValueError":
        raise ValueError(value)
    return kind, value


async def score_items(
    items: Iterator[Item],
    run: Run,
    opening: AbstractAsyncContextManager[FolderStore | StdoutStore],
    lerobot: Path | None = None,
) -> tuple[bool, Progress]:
    """Score what is not kept yet, and what is of a group with that.

    Args:
        items: Those of a group follow one another.
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
        left = (
            group
            for group in groups_of(items)
            if any(each.index not in store.kept for each in group)
        )
        scoring = asyncio.ensure_future(run.score(left, store.add))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, scoring.cancel)
        try:
            await scoring
        except asyncio.CancelledError:
            for number in (signal.SIGINT, signal.SIGTERM):  # a second one ends it without totals
                loop.remove_signal_handler(number)
            return False, await store.finish(is_complete=False)
        return True, await store.finish(is_complete=True, lerobot=lerobot)
