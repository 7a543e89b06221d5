"""Calls made once a sample, gathered into batches: what trainers that know no batches need."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from .wire.errors import RewardFleetError

ItemT = TypeVar("ItemT")
AnswerT = TypeVar("AnswerT")

#: Answers a batch, one answer or failure an item, in order, by a time of the loop's clock.
Send = Callable[[list[ItemT], float], Awaitable[list[AnswerT | RewardFleetError]]]


@dataclass(eq=False)
class _Batch(Generic[ItemT, AnswerT]):
    """What was asked within one window.

    Attributes:
        calls: Each item, and where its caller waits for the answer.
        deadline: The earliest of the callers'.
        waiting: How many callers are left.
    """

    deadline: float
    calls: list[tuple[ItemT, asyncio.Future[AnswerT]]] = field(default_factory=list)
    waiting: int = 0
    timer: asyncio.TimerHandle | None = None
    task: asyncio.Task[None] | None = None


class Coalescer(Generic[ItemT, AnswerT]):
    """Gathers calls for a moment and sends them together; each caller gets his own answer.

    A caller that is cancelled leaves the others alone; when the last one is, the batch is.

    Args:
        send: Sends a batch.
        window_s: Seconds from a batch's first call to its departure.
        max_items: A batch with so many items departs at once.
    """

    def __init__(self, send: Send[ItemT, AnswerT], *, window_s: float, max_items: int) -> None:
        self._send = send
        self._window_s = window_s
        self._max_items = max_items
        self._open: dict[asyncio.AbstractEventLoop, _Batch[ItemT, AnswerT]] = {}
        self._pending: set[asyncio.Task[None]] = set()

    def __getstate__(self) -> dict[str, Any]:
        """Everything but what is under way: that belongs to this process's event loops."""
        return {**self.__dict__, "_open": {}, "_pending": set()}

    async def submit(self, item: ItemT, deadline: float) -> AnswerT:
        """Have an item answered by `deadline`, a time of the loop's clock.

        Raises:
            RewardFleetError: This item's failure, or the batch's.
        """
        loop = asyncio.get_running_loop()
        batch = self._open.get(loop)
        if batch is None:
            batch = self._open[loop] = _Batch(deadline)
            batch.timer = loop.call_later(self._window_s, self._flush, loop, batch)
        batch.deadline = min(batch.deadline, deadline)
        answer: asyncio.Future[AnswerT] = loop.create_future()
        batch.calls.append((item, answer))
        batch.waiting += 1
        if len(batch.calls) >= self._max_items:
            self._flush(loop, batch)
        try:
            return await answer
        finally:
            batch.waiting -= 1
            if not batch.waiting and batch.task is not None:
                batch.task.cancel()

    def _flush(self, loop: asyncio.AbstractEventLoop, batch: _Batch[ItemT, AnswerT]) -> None:
        del self._open[loop]
        if batch.timer is not None:
            batch.timer.cancel()
        batch.calls = [call for call in batch.calls if not call[1].done()]
        if batch.calls:
            batch.task = loop.create_task(self._answer(batch))
            self._pending.add(batch.task)  # else nothing would hold it
            batch.task.add_done_callback(self._pending.discard)

    async def _answer(self, batch: _Batch[ItemT, AnswerT]) -> None:
        waiting = [answer for _, answer in batch.calls]
        try:
            answers = await self._send([item for item, _ in batch.calls], batch.deadline)
            for future, answer in zip(waiting, answers, strict=True):
                if future.done():
                    continue
                if isinstance(answer, RewardFleetError):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)
        except Exception as error:  # noqa: BLE001 - a bug, which the callers shall hear of
            for future in waiting:
                if not future.done():
                    future.set_exception(error)
        finally:
            for future in waiting:
                future.cancel()  # only what is left when this task was cancelled
