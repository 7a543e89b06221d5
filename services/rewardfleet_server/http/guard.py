"""A handler is cancelled when its caller disconnects, or when it ignores its deadline."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.requests import Request

from rewardfleet_server.system.started import Started

T = TypeVar("T")

#: Seconds before a request is watched: most responses, cache hits first, are ready sooner.
_WATCH_AFTER_SECONDS = 0.01
#: Seconds after the deadline was noticed. Handlers keep the deadline themselves, item by item.
_OVERDUE_SECONDS = 2.0


class ClientDisconnected(Exception):
    """The caller disconnected before the response was ready."""


async def guarded(request: Request, deadline: float | None, work: Awaitable[T]) -> T:
    """Return the result of `work`, which is cancelled when the caller of a request disconnects.

    Args:
        request: Its body has been read.
        deadline: Time of the event loop's clock; well after it, `work` is cancelled, too.
        work: What to do.

    Raises:
        ClientDisconnected: The caller disconnected.
        TimeoutError: The work ignored the deadline.
    """
    started = Started(work)
    if started.is_done:
        return started.result
    loop, limit = asyncio.get_running_loop(), asyncio.timeout(None)
    begun: list[asyncio.Handle | asyncio.Task[None]] = []
    has_disconnected = False

    async def watch() -> None:
        nonlocal has_disconnected
        while (await request.receive())["type"] != "http.disconnect":
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
