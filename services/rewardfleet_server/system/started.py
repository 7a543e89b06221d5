"""Work that may be done at once, without what is needed to wait for it.

A timer and a guard for each request would cost as much as looking its score up in memory.
"""

import asyncio
from collections.abc import Awaitable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class DeadlinePassed(TimeoutError):
    """Work was cancelled, as it was not done by its deadline."""


class Started(Generic[T]):
    """Work that has run, in the current task, until it had to wait for something.

    If it is not done by then, await it once, in the same task: it goes on as if it had been awaited
    from its beginning.

    Raises:
        Exception: Whatever it raises until then.
    """

    def __init__(self, work: Awaitable[T]) -> None:
        self._steps = work.__await__()
        self._awaited: Any = None
        self.is_done = False  #: whether it had to wait for nothing
        self.result: T  #: what it returned, if it is done
        try:
            self._awaited = self._steps.send(None)
        except StopIteration as end:
            self.is_done, self.result = True, end.value

    def __await__(self) -> Generator[Any, Any, T]:
        awaited, self._awaited = self._awaited, None
        try:
            while True:
                try:
                    sent = yield awaited
                except BaseException as error:  # noqa: BLE001 - e.g. a cancellation, which it handles
                    awaited = self._steps.throw(error)
                else:
                    awaited = self._steps.send(sent)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            del awaited  # a future holds its failure, whose traceback holds this frame: a cycle


async def finish_by(deadline: float | None, work: Awaitable[T]) -> T:
    """Return the result of `work`, which is cancelled if it is not done by the deadline.

    Args:
        deadline: Time of the event loop's clock; None for no limit.
        work: What to do.

    Raises:
        DeadlinePassed: It was cancelled.
    """
    started = Started(work)
    if started.is_done:
        return started.result
    limit = asyncio.timeout_at(deadline)
    try:
        async with limit:
            return await started
    except TimeoutError:
        if limit.expired():
            raise DeadlinePassed from None
        raise
