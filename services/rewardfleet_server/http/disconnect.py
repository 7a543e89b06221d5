"""Work is cancelled when its caller disconnects."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request

#: Seconds before a request is watched: most answers, cache hits first, are ready sooner.
_WATCH_AFTER_SECONDS = 0.01


class ClientDisconnected(Exception):
    """The caller disconnected before the response was ready."""


@asynccontextmanager
async def cancel_on_disconnect(request: Request) -> AsyncIterator[None]:
    """Cancel the block when the caller of a request, whose body has been read, disconnects.

    Raises:
        ClientDisconnected: The caller did.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None  # noqa: S101 - there is one in a coroutine
    watcher: asyncio.Task[None] | None = None
    disconnected = False

    async def watch() -> None:
        nonlocal disconnected
        while (await request.receive())["type"] != "http.disconnect":
            pass
        disconnected = True
        task.cancel()

    def start() -> None:
        nonlocal watcher
        watcher = loop.create_task(watch())

    timer = loop.call_later(_WATCH_AFTER_SECONDS, start)
    try:
        yield
    except asyncio.CancelledError:
        if disconnected and task.uncancel() == 0:
            raise ClientDisconnected from None
        raise
    finally:
        timer.cancel()
        if watcher is not None:
            watcher.cancel()
