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

    The arguments and errors are those of `Guard`.
    """
    started = Started(work)
    if started.is_done:
        return started.result
    async with Guard(request, deadline):
        return await started


class Guard:
    """Cancels an `async with` block when the caller of a request disconnects.

    Args:
        request: Its body has been read.
        deadline: Time of the event loop's clock; well after it, the block is cancelled, too.

    Raises:
        ClientDisconnected: The caller disconnected.
        TimeoutError: The block ignored the deadline.
    """

    def __init__(self, request: Request, deadline: float | None) -> None:
        self._request = request
        self._deadline = deadline
        self._watcher: asyncio.Task[None] | None = None
        self._reason: type[Exception] | None = None

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - there is one in a coroutine
        self._task = task
        self._timer = asyncio.get_running_loop().call_later(_WATCH_AFTER_SECONDS, self._start)

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        is_ours = kind is asyncio.CancelledError and self._reason is not None
        if is_ours and self._task.uncancel() == 0 and self._reason is not None:
            raise self._reason from None

    def _start(self) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        try:
            try:
                async with asyncio.timeout_at(self._deadline):
                    await self._disconnect()
            except TimeoutError:
                # From now on: if the event loop was busy at the deadline, the block has its turn.
                async with asyncio.timeout(_OVERDUE_SECONDS):
                    await self._disconnect()
            self._reason = ClientDisconnected
        except TimeoutError:
            self._reason = TimeoutError
        self._task.cancel()

    async def _disconnect(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
