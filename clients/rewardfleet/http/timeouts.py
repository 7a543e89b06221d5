"""`asyncio.timeout` and `asyncio.timeout_at`, which Python 3.10 does not have."""

import asyncio
import sys

if sys.version_info >= (3, 11):
    from asyncio import Timeout, timeout, timeout_at
else:
    from types import TracebackType

    from typing_extensions import Self

    class Timeout:
        """A context that is cancelled at a time of the event loop's clock.

        Raises:
            TimeoutError: That time came first.
        """

        _timer: asyncio.TimerHandle
        _task: asyncio.Task[object]

        def __init__(self, when: float) -> None:
            self._when = when
            self._expired = False

        def when(self) -> float:
            """Return the time at which it is cancelled."""
            return self._when

        def expired(self) -> bool:
            """Return whether it was cancelled."""
            return self._expired

        def reschedule(self, when: float) -> None:
            """Change that time."""
            self._timer.cancel()
            self._when = when
            self._timer = asyncio.get_running_loop().call_at(when, self._expire)

        async def __aenter__(self) -> Self:
            task = asyncio.current_task()
            assert task is not None  # noqa: S101 - an `async with` runs in a task
            self._task = task
            self._timer = asyncio.get_running_loop().call_at(self._when, self._expire)
            return self

        async def __aexit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            traceback: TracebackType | None,
        ) -> None:
            self._timer.cancel()
            if self._expired and kind is asyncio.CancelledError:
                raise TimeoutError from error

        def _expire(self) -> None:
            self._expired = True
            self._task.cancel()

    def timeout_at(when: float) -> Timeout:
        """Return a context that is cancelled at a time of the event loop's clock."""
        return Timeout(when)

    def timeout(delay: float) -> Timeout:
        """Return a context that is cancelled after some seconds."""
        return Timeout(asyncio.get_running_loop().time() + delay)


__all__ = ["Timeout", "timeout", "timeout_at"]
