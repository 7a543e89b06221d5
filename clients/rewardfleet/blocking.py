"""The same clients for synchronous code: a bridge to the async ones, not a second kind.

```python
with rewardfleet.blocking.RewardFleet(video="http://127.0.0.1:18080") as fleet:
    reward = fleet.video.reward("put the bowl on the plate", frames)
```
"""

import asyncio
import os
import threading
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from . import client
from .clips import ClipLike
from .episode_client import EpisodeClient as AsyncEpisodeClient
from .episode_client import OptionsLike
from .wire.code import CodeRequest, CodeScore
from .wire.episode import EpisodeAnswer, EpisodeRequest, EpisodeScore, TemperaturesAnswer
from .wire.video import VideoHealth, VideoRequest, VideoScore

T = TypeVar("T")

__all__ = ["CodeClient", "EpisodeClient", "RewardFleet", "VideoClient"]


class _Worker:
    """An event loop and its thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(
            target=self.loop.run_forever, name="rewardfleet", daemon=True
        )


class _Loop:
    """An event loop on a thread of its own, so that the caller may be inside another one.

    It starts on first use, and anew in a forked process, where the parent's thread is not.
    """

    def __init__(self) -> None:
        # By process. A parent's event loop stays in the child: to let go of it would unregister
        # the parent's sockets, as both processes share what watches them.
        self._workers: dict[int, _Worker] = {}

    def __reduce__(self) -> tuple[type["_Loop"], tuple[()]]:
        return _Loop, ()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work and wait for it; an interrupt of the wait cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._worker().loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """End the calls under way, do the last work, end the thread."""
        if os.getpid() not in self._workers:
            last.close()
            return
        self.run(_end_calls())
        self.run(last)
        worker = self._workers.pop(os.getpid())
        ending = worker.loop.shutdown_default_executor()
        asyncio.run_coroutine_threadsafe(ending, worker.loop).result()
        worker.loop.call_soon_threadsafe(worker.loop.stop)
        worker.thread.join()
        worker.loop.close()

    def _worker(self) -> _Worker:
        worker = self._workers.get(os.getpid())
        if worker is None:
            made = _Worker()
            # Atomic, where a lock might be held for ever by a thread that a fork left behind.
            worker = self._workers.setdefault(os.getpid(), made)
            if worker is made:
                worker.thread.start()
            else:
                made.loop.close()
        return worker


async def _end_calls() -> None:
    """Cancel what other threads wait for; a loop that stops would leave them waiting for ever."""
    calls = asyncio.all_tasks() - {asyncio.current_task()}
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


class VideoClient:
    """`rewardfleet.VideoClient`, call by call."""

    def __init__(self, loop: _Loop, video: client.VideoClient) -> None:
        self._loop = loop
        self._video = video

    def score(
        self, task_text: str, clip: ClipLike, **options: Unpack[client.VideoOptions]
    ) -> VideoScore:
        """See `rewardfleet.VideoClient.score`."""
        return self._loop.run(self._video.score(task_text, clip, **options))

    def score_batch(self, requests: Sequence[VideoRequest]) -> list[VideoScore]:
        """See `rewardfleet.VideoClient.score_batch`."""
        return self._loop.run(self._video.score_batch(requests))

    def reward(
        self, task_text: str, clip: ClipLike, **options: Unpack[client.VideoOptions]
    ) -> float:
        """See `rewardfleet.VideoClient.reward`."""
        return self._loop.run(self._video.reward(task_text, clip, **options))

    def rewards(self, requests: Sequence[VideoRequest]) -> list[float]:
        """See `rewardfleet.VideoClient.rewards`."""
        return self._loop.run(self._video.rewards(requests))

    def health(self) -> VideoHealth:
        """See `rewardfleet.VideoClient.health`."""
        return self._loop.run(self._video.health())


class CodeClient:
    """`rewardfleet.CodeClient`, call by call."""

    def __init__(self, loop: _Loop, code: client.CodeClient) -> None:
        self._loop = loop
        self._code = code

    def score(
        self, revision: str, tests: client.TestsLike, **options: Unpack[client.CodeOptions]
    ) -> CodeScore:
        """See `rewardfleet.CodeClient.score`."""
        return self._loop.run(self._code.score(revision, tests, **options))

    def score_batch(self, requests: Sequence[CodeRequest]) -> list[CodeScore]:
        """See `rewardfleet.CodeClient.score_batch`."""
        return self._loop.run(self._code.score_batch(requests))

    def reward(
        self, revision: str, tests: client.TestsLike, **options: Unpack[client.CodeOptions]
    ) -> float:
        """See `rewardfleet.CodeClient.reward`."""
        return self._loop.run(self._code.reward(revision, tests, **options))

    def rewards(self, requests: Sequence[CodeRequest]) -> list[float]:
        """See `rewardfleet.CodeClient.rewards`."""
        return self._loop.run(self._code.rewards(requests))


class EpisodeClient:
    """`rewardfleet.EpisodeClient`, call by call."""

    def __init__(self, loop: _Loop, episode: AsyncEpisodeClient) -> None:
        self._loop = loop
        self._episode = episode

    def score(self, item: EpisodeRequest) -> EpisodeScore:
        """See `rewardfleet.EpisodeClient.score`."""
        return self._loop.run(self._episode.score(item))

    def score_batch(
        self,
        items: Sequence[EpisodeRequest],
        options: OptionsLike | None = None,
        *,
        run: str | None = None,
        step: int | None = None,
    ) -> EpisodeAnswer:
        """See `rewardfleet.EpisodeClient.score_batch`."""
        return self._loop.run(self._episode.score_batch(items, options, run=run, step=step))

    def rewards(
        self,
        items: Sequence[EpisodeRequest],
        options: OptionsLike | None = None,
        *,
        run: str | None = None,
        step: int | None = None,
    ) -> list[float]:
        """See `rewardfleet.EpisodeClient.rewards`."""
        return self._loop.run(self._episode.rewards(items, options, run=run, step=step))

    def collect(self, item: EpisodeRequest, **group: Any) -> EpisodeScore:
        """See `rewardfleet.EpisodeClient.collect`; takes the same arguments."""
        return self._loop.run(self._episode.collect(item, **group))

    def temperatures(self, n: int, **schedule: Any) -> TemperaturesAnswer:
        """See `rewardfleet.EpisodeClient.temperatures`; takes the same arguments."""
        return self._loop.run(self._episode.temperatures(n, **schedule))


class RewardFleet:
    """`rewardfleet.RewardFleet`; takes the same arguments."""

    def __init__(self, **options: Any) -> None:
        self._fleet = client.RewardFleet(**options)
        self._loop = _Loop()
        if options.get("video") is not None:
            self.video = VideoClient(self._loop, self._fleet.video)
        if options.get("code") is not None:
            self.code = CodeClient(self._loop, self._fleet.code)
        if options.get("episode") is not None:
            self.episode = EpisodeClient(self._loop, self._fleet.episode)

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
