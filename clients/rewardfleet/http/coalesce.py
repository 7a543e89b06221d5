"""Coalescing: single calls collected into batches, for trainers that score one sample per call."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

#: Sends a batch, with a deadline by the loop's clock. Returns one result per item, in order.
SendBatch = Callable[[list[ItemT], float], Awaitable[list[ResultT]]]


@dataclass(eq=False)
class _Batch(Generic[ItemT, ResultT]):
    loop: asyncio.AbstractEventLoop
    deadline: float  #: the earliest deadline of the callers
    items: dict[object, ItemT] = field(default_factory=dict)  #: by caller that waits
    is_full: asyncio.Event = field(default_factory=asyncio.Event)
    #: Waits until the window ends, and returns the result of each caller.
    task: asyncio.Task[dict[object, ResultT]] = field(init=False)


@dataclass(eq=False)
class Coalescer(Generic[ItemT, ResultT]):
    """A collector of single calls, which sends them as batches; each caller gets its own result.

    A caller that is cancelled does not affect the others; the last one cancels its batch. A batch
    is sent `window_s` seconds, above 0, after its first call, or when it has `max_items`.
    """

    send: SendBatch[ItemT, ResultT]
    window_s: float
    max_items: int
    _open: dict[asyncio.AbstractEventLoop, _Batch[ItemT, ResultT]] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        # Pending calls belong to this process's event loops.
        return {**self.__dict__, "_open": {}}

    async def submit(self, item: ItemT, deadline: float) -> ResultT:
        """Return the result of an item, which must be there at `deadline`, by the loop's clock."""
        loop = asyncio.get_running_loop()
        batch = self._open.get(loop)
        if batch is None:
            batch = self._open[loop] = _Batch(loop, deadline)
            batch.task = loop.create_task(self._run(batch))
        batch.deadline = min(batch.deadline, deadline)
        caller = object()
        batch.items[caller] = item
        if len(batch.items) >= self.max_items:
            self._close(batch)
            batch.is_full.set()
        try:
            return (await asyncio.shield(batch.task))[caller]
        finally:
            del batch.items[caller]
            if not batch.items:
                self._close(batch)  # before it ends: the next caller begins another one
                batch.task.cancel()
                await asyncio.gather(batch.task, return_exceptions=True)

    async def _run(self, batch: _Batch[ItemT, ResultT]) -> dict[object, ResultT]:
        """Send a batch when its window ends, without the items of callers that left."""
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.window_s):
                    await batch.is_full.wait()
        finally:
            self._close(batch)
        callers, items = list(batch.items), list(batch.items.values())
        results = await self.send(items, batch.deadline)
        return dict(zip(callers, results, strict=True))

    def _close(self, batch: _Batch[ItemT, ResultT]) -> None:
        if self._open.get(batch.loop) is batch:
            del self._open[batch.loop]
