"""The same clients for synchronous code: a bridge to the async ones, not a second kind.

```python
with rewardfleet.blocking.RewardFleet(video="http://127.0.0.1:18080") as fleet:
    reward = fleet.video.reward("put the bowl on the plate", frames)
```
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from . import client

P = ParamSpec("P")
T = TypeVar("T")

__all__ = ["RewardFleet", "VideoClient"]


class _Loop:
    """An event loop on a thread of its own, so that the caller may be inside another one."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="rewardfleet", daemon=True
        )
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work and wait for it; an interrupt of the wait cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def blocking(self, call: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
        """The same call, waited for."""

        def wait_for(*args: P.args, **kwargs: P.kwargs) -> T:
            return self.run(call(*args, **kwargs))

        wait_for.__doc__ = call.__doc__
        return wait_for

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Do the last work and end the thread."""
        if self._loop.is_closed():
            last.close()
            return
        self.run(last)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class VideoClient:
    """`rewardfleet.VideoClient`, call by call."""

    def __init__(self, loop: _Loop, video: client.VideoClient) -> None:
        self.score = loop.blocking(video.score)
        self.score_batch = loop.blocking(video.score_batch)
        self.reward = loop.blocking(video.reward)
        self.rewards = loop.blocking(video.rewards)
        self.health = loop.blocking(video.health)


class RewardFleet:
    """`rewardfleet.RewardFleet`; takes the same arguments."""

    def __init__(self, **options: Any) -> None:
        self._fleet = client.RewardFleet(**options)
        self._loop = _Loop()
        self.video = VideoClient(self._loop, self._fleet.video)

    def close(self) -> None:
        """Close the connections and end the thread."""
        self._loop.close(self._fleet.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
