"""Work that may be done at once, without what is needed to wait for it.

A timer and a guard for each request would cost as much as looking its score up in memory.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any, Generic, TypeVar

T = TypeVar("T")

#: Seconds before a request is watched: most responses, cache hits first, are ready sooner.
_WATCH_AFTER_SECONDS = 0.01
#: Seconds after the deadline was noticed. Handlers keep the deadline themselves, item by item.
_OVERDUE_SECONDS = 2.0


class ClientDisconnected(Exception):
    """The caller disconnected before the response was ready."""


class DeadlinePassed(TimeoutError):
    """Work was cancelled, as it was not done by its deadline."""


class Started(Generic[T]):
    """Work that has run, in the current task, until it had to wait for something, or has failed.

    If it is not done by then, await it once, in the same task: it goes on as if it had been awaited
    from its beginning.
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
    """Return the result of `work`, which is cancelled if it is not done by the deadline, if any.

    That is a time of the event loop's clock, after which it raises DeadlinePassed.
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


async def guarded(
    receive: Callable[[], Awaitable[Mapping[str, Any]]], deadline: float | None, work: Awaitable[T]
) -> T:
    """Return the result of `work`, which is cancelled when the caller of a request disconnects.

    The body of the request has been read. Well after the deadline, a time of the event loop's
    clock, `work` is cancelled, too. Raises ClientDisconnected, or TimeoutError for that deadline.
    """
    started = Started(work)
    if started.is_done:
        return started.result
    loop, limit = asyncio.get_running_loop(), asyncio.timeout(None)
    begun: list[asyncio.Handle | asyncio.Task[None]] = []
    has_disconnected = False

    async def watch() -> None:
        nonlocal has_disconnected
        while (await receive())["type"] != "http.disconnect":
            pass
        has_disconnected = True
        limit.reschedule(loop.time())

    def start_watching() -> None:
        begun.append(loop.create_task(watch()))

    def allow_a_turn() -> None:  # if the event loop was busy at the deadline
        limit.reschedule(loop.time() + _OVERDUE_SECONDS)

    begun.append(loop.call_later(_WATCH_AFTER_SECONDS, start_watching))
    if deadline is not None:
        begun.append(loop.call_at(deadline, allow_a_turn))
    try:
        async with limit:
            return await started
    except TimeoutError:
        if limit.expired() and has_disconnected:
            raise ClientDisconnected from None
        raise
    finally:
        for each in begun:
            each.cancel()
