"""Coalescing: single calls collected into batches, for trainers that score one sample per call."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from rewardfleet.wire.errors import RewardFleetError

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

#: Sends a batch, with a deadline by the loop's clock. Returns one result or failure per item, in
#: order.
SendBatch = Callable[[list[ItemT], float], Awaitable[list[ResultT | RewardFleetError]]]


@dataclass(eq=False)
class _Window(Generic[ItemT, ResultT]):
    """The calls of one window."""

    deadline: float  #: the earliest deadline of the callers
    #: Each item, and the future that its caller awaits.
    calls: list[tuple[ItemT, asyncio.Future[ResultT]]] = field(default_factory=list)
    waiting: int = 0  #: how many callers still wait
    timer: asyncio.TimerHandle | None = None  #: ends the window
    task: asyncio.Task[None] | None = None  #: sends the batch, once the window has ended


class Coalescer(Generic[ItemT, ResultT]):
    """A collector of single calls, which sends them as batches; each caller gets its own result.

    A caller that is cancelled does not affect the others. A batch is cancelled with its last
    caller.

    Args:
        window_s: Seconds, above 0, from a batch's first call until it is sent.
        max_items: A batch with so many items is sent at once.
    """

    def __init__(self, send: SendBatch[ItemT, ResultT], *, window_s: float, max_items: int) -> None:
        self._send = send
        self._window_s = window_s
        self._max_items = max_items
        self._open: dict[asyncio.AbstractEventLoop, _Window[ItemT, ResultT]] = {}
        self._pending: set[asyncio.Task[None]] = set()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without pending calls: they belong to this process's event loops."""
        return {**self.__dict__, "_open": {}, "_pending": set()}

    async def submit(self, item: ItemT, deadline: float) -> ResultT:
        """Add an item to the open batch and return its result.

        Args:
            deadline: When the result must be there, by the loop's clock.

        Raises:
            RewardFleetError: The failure of this item, or of its batch.
        """
        loop = asyncio.get_running_loop()
        batch = self._open.get(loop)
        if batch is None:
            batch = self._open[loop] = _Window(deadline)
            batch.timer = loop.call_later(self._window_s, self._flush, loop, batch)
        batch.deadline = min(batch.deadline, deadline)
        result: asyncio.Future[ResultT] = loop.create_future()
        batch.calls.append((item, result))
        batch.waiting += 1
        if len(batch.calls) >= self._max_items:
            self._flush(loop, batch)
        try:
            return await result
        finally:
            batch.waiting -= 1
            if not batch.waiting and batch.task is not None:
                batch.task.cancel()
                await asyncio.gather(batch.task, return_exceptions=True)

    def _flush(self, loop: asyncio.AbstractEventLoop, batch: _Window[ItemT, ResultT]) -> None:
        """Close a batch's window and send it, without the items of callers that left."""
        del self._open[loop]
        if batch.timer is not None:
            batch.timer.cancel()
        batch.calls = [call for call in batch.calls if not call[1].done()]
        if batch.calls:
            batch.task = loop.create_task(self._run(batch))
            self._pending.add(batch.task)  # an event loop holds only weak references to tasks
            batch.task.add_done_callback(self._pending.discard)

    async def _run(self, batch: _Window[ItemT, ResultT]) -> None:
        """Send a batch and give each caller its result."""
        futures = [future for _, future in batch.calls]
        try:
            results = await self._send([item for item, _ in batch.calls], batch.deadline)
            for future, result in zip(futures, results, strict=True):
                if future.done():
                    continue
                if isinstance(result, RewardFleetError):
                    future.set_exception(result)
                else:
                    future.set_result(result)
        except Exception as error:  # noqa: BLE001 - a bug, which is raised to the callers
            for future in futures:
                if not future.done():
                    future.set_exception(error)
        finally:
            for future in futures:
                future.cancel()  # has an effect only if this task was cancelled
