"""Calls that are pending for long are logged before a trainer looks hung.

One line for all calls of a client, at most every minute: how many are pending, and what the oldest
one waits for.
"""

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

#: Pages and users name it.
log = logging.getLogger("rewardfleet.pending")

#: A call that is pending for so many seconds is logged.
_LOG_AFTER_SECONDS = 30.0
_LOG_EVERY_SECONDS = 60.0


@dataclass(eq=False, kw_only=True)
class PendingCall:
    """A call, over all its attempts. Times are those of the event loop's clock."""

    service: str  #: e.g. `video`
    path: str
    item_count: int = 1
    started: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    deadline: float
    attempts: int = 0  #: how many times a replica was acquired for it
    url: str = ""  #: the replica that has it; empty while it waits for capacity, or for a retry
    request_id: str = ""  #: the id of the last request that was answered; empty if there was none


@dataclass(eq=False)
class _Watch:
    timer: asyncio.TimerHandle = field(init=False)
    calls: dict[PendingCall, None] = field(default_factory=dict)  #: in the order of their begin


class PendingCalls:
    """The pending calls of a client. While there are none, no timer runs."""

    def __init__(self) -> None:
        # By process: a child has no calls of its parent, whose event loop it does not run.
        self._watches: dict[tuple[int, asyncio.AbstractEventLoop], _Watch] = {}
        self._next_line = 0.0

    def __getstate__(self) -> dict[str, Any]:
        return {"_watches": {}, "_next_line": 0.0}

    @contextmanager
    def watching(self, call: PendingCall) -> Iterator[None]:
        """Watch a call that begins now, until it ends."""
        loop = asyncio.get_running_loop()
        key = os.getpid(), loop
        watch = self._watches.get(key)
        if watch is None:
            watch = self._watches[key] = _Watch()
            watch.timer = loop.call_later(_LOG_AFTER_SECONDS, self._check, loop, watch)
        watch.calls[call] = None
        try:
            yield
        finally:
            del watch.calls[call]
            if not watch.calls:
                watch.timer.cancel()
                del self._watches[key]

    def _check(self, loop: asyncio.AbstractEventLoop, watch: _Watch) -> None:
        """Log the oldest call if it is pending for long, and check again later."""
        now = loop.time()
        oldest = next(iter(watch.calls))
        due = max(oldest.started + _LOG_AFTER_SECONDS, self._next_line)
        if now >= due:
            log.warning(_line(list(watch.calls), oldest, now))
            self._next_line = due = now + _LOG_EVERY_SECONDS
        watch.timer = loop.call_at(due, self._check, loop, watch)


def _line(calls: list[PendingCall], oldest: PendingCall, now: float) -> str:
    items = sum(call.item_count for call in calls)
    where = f"at {oldest.url}" if oldest.url else "waiting for a replica"
    return (
        f"pending calls: {len(calls)} (items: {items}); the oldest: {oldest.service} {oldest.path} "
        f"(items: {oldest.item_count}), since {now - oldest.started:.0f} s, attempt "
        f"{oldest.attempts} {where}, {max(oldest.deadline - now, 0):.0f} s left; "
        "`rewardfleet status --inflight` shows what the services do"
    )
