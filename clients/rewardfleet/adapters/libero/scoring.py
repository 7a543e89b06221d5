"""Scoring of finished episodes in another thread."""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any

import numpy as np

from rewardfleet.client import RewardFleet
from rewardfleet.event_loop_thread import EventLoopThread
from rewardfleet.service import CALLER_ERRORS
from rewardfleet.timeouts import timeout_at
from rewardfleet.transport import in_thread
from rewardfleet.video import VideoOptions, video_request
from rewardfleet.wire.errors import (
    Abstained,
    DeadlineExceeded,
    InternalError,
    RewardFleetError,
    Unavailable,
)
from rewardfleet.wire.score import abstained
from rewardfleet.wire.video import VideoScore

from .config import RewardModelConfig
from .episode_reward import (
    Episode,
    EpisodeReward,
    EpisodeStatus,
    MissingRewardError,
    RewardStats,
)
from .images import Image
from .temp_videos import TempVideos

log = logging.getLogger(__name__)

#: Seconds by which an episode may exceed the timeout, so that the client can report what it waited
#: for, and ejects a replica that is silent.
_GRACE_SECONDS = 1.0


class EpisodeScoring:
    """Scores episodes, all at once, in the thread of an event loop; and stores what became of them.

    Args:
        config: The service, the request, the timeout and the rewards.
        max_pending: The most episodes whose scores have not arrived, 1 or more.

    Raises:
        ValueError: `temp_video_dir` is not writable.
        ImportError: `keep_temp_video` is set, and OpenCV is not installed.
    """

    def __init__(self, config: RewardModelConfig, max_pending: int) -> None:
        self._config = config
        self._max_pending = max_pending
        self._videos: TempVideos | None = None
        if config.keep_temp_video:
            self._videos = TempVideos(config.temp_video_dir, config.video_fps)
        self._fleet = RewardFleet(
            video=config.endpoint, timeout_s=config.timeout, api_key=config.api_key
        )
        self._loop = EventLoopThread()
        self._closed = False
        self._changed = threading.Condition()  # guards the three below
        self._pending = 0
        self._arrived: list[EpisodeReward] = []
        self._counts: Counter[EpisodeStatus] = Counter()

    @property
    def stats(self) -> RewardStats:
        """The number of episodes so far."""
        with self._changed:
            counts = self._counts
            return RewardStats(
                scored=counts["ok"],
                abstained=counts["abstained"],
                failed=counts["error"],
                discarded=counts["discarded"],
                pending=self._pending,
            )

    def start(self, episode: Episode, frames: Sequence[Image], fps: float) -> None:
        """Start scoring, and return at once unless `max_pending` scores have not arrived.

        Args:
            episode: The episode.
            frames: At most `nframes`, each [H, W, 3], upright.
            fps: Their rate in frames per second.

        Raises:
            RuntimeError: This object is closed.
        """
        if self._closed:
            raise RuntimeError("rewards: closed")
        self._wait_until_pending(self._max_pending - 1, timeout=None)
        with self._changed:
            self._pending += 1
        future = self._loop.start(self._score(episode, frames, fps))
        future.add_done_callback(partial(self._on_done, episode))

    def report(self, episode: Episode, status: EpisodeStatus, problem: str) -> None:
        """Store that an episode has no score, without a request."""
        missing = self._missing(episode, status, problem)
        with self._changed:
            self._arrived.append(missing)
            self._counts[status] += 1

    def collect(self, timeout: float | None) -> list[EpisodeReward]:
        """Return what has arrived; see `LiberoRewards.collect`.

        Raises:
            MissingRewardError: See there.
        """
        self._wait_until_pending(0, timeout)
        with self._changed:
            for position, each in enumerate(self._arrived):
                if self._raises(each):
                    del self._arrived[position]
                    raise MissingRewardError(each) from each.error
            arrived, self._arrived = self._arrived, []
        _warn_of_missing(arrived)
        return arrived

    def close(self) -> None:
        """Cancel what is pending, which becomes an error, and end the thread."""
        self._closed = True
        self._loop.close(self._fleet.aclose())

    async def _score(self, episode: Episode, frames: Sequence[Image], fps: float) -> VideoScore:
        """Send one episode. While it waits for its score, only encoded frames are in memory."""
        config = self._config
        deadline = asyncio.get_running_loop().time() + config.timeout
        options: VideoOptions = {
            "fps": fps,
            "nframes": config.nframes,
            "max_pixels": config.max_pixels,
            "backend": config.backend,
            "backend_kwargs": config.backend_kwargs,
        }
        encode = partial(self._encode, episode, frames, options)
        del frames
        async with timeout_at(deadline + _GRACE_SECONDS):
            images = await in_thread(encode, deadline)
            del encode
            return await self._fleet.video.score(episode.task, images, **options)

    def _encode(
        self, episode: Episode, frames: Sequence[Image], options: VideoOptions
    ) -> list[bytes]:
        clip = np.stack(frames)
        if self._videos is not None:
            name = f"environment{episode.environment:03d}_episode{episode.episode:06d}"
            try:
                self._videos.write(name, clip)
            except OSError as error:  # a file to look at must not cost a reward
                log.warning("keep_temp_video: %s", error)
        return video_request(episode.task, clip, **options).frames_base64 or []

    def _on_done(self, episode: Episode, future: Future[VideoScore]) -> None:
        """Store what became of an episode; runs in the thread of the event loop."""
        reward = self._reward_of(episode, future)
        with self._changed:
            self._pending -= 1
            self._arrived.append(reward)
            self._counts[reward.status] += 1
            self._changed.notify_all()

    def _reward_of(self, episode: Episode, future: Future[VideoScore]) -> EpisodeReward:
        try:
            answer = future.result()
        except BaseException as error:  # noqa: BLE001 - whatever happened, it must be reported
            failure = _failure_of(error, self._config.timeout)
            status: EpisodeStatus = "abstained" if isinstance(failure, Abstained) else "error"
            return self._missing(episode, status, str(failure), error=failure)
        if answer.score is None:
            failure = abstained(answer)
            return self._missing(episode, "abstained", str(failure), error=failure, answer=answer)
        reward = self._config.reward(answer.score)
        return EpisodeReward(*episode, reward, "ok", score=answer.score, answer=answer)

    def _missing(
        self, episode: Episode, status: EpisodeStatus, problem: str, **fields: Any
    ) -> EpisodeReward:
        detail = f"{episode}: {problem}"
        return EpisodeReward(
            *episode, self._config.fallback_reward, status, detail=detail, **fields
        )

    def _wait_until_pending(self, most: int, timeout: float | None) -> None:
        """Wait until at most so many scores have not arrived, or the time has passed."""
        longest = self._config.timeout + 2 * _GRACE_SECONDS  # no episode takes that long
        seconds = longest if timeout is None else min(timeout, longest)
        with self._changed:
            self._changed.wait_for(
                lambda: self._pending <= most, min(seconds, threading.TIMEOUT_MAX)
            )

    def _raises(self, each: EpisodeReward) -> bool:
        has_ended = each.status != "discarded"
        return self._config.fail_on_request_error and has_ended and not each.valid


def _failure_of(error: BaseException, timeout: float) -> RewardFleetError:
    if isinstance(error, RewardFleetError):
        return error
    if isinstance(error, TimeoutError):
        return DeadlineExceeded(f"no score within {timeout:g} s")
    if isinstance(error, CancelledError):
        return Unavailable("closed before the score arrived")
    return InternalError(f"{type(error).__name__}: {error}")


def _warn_of_missing(arrived: Sequence[EpisodeReward]) -> None:
    """Sum up the episodes without a score in one line of the log.

    It is an error if the service refused a request, which the caller must correct.
    """
    missing = [each for each in arrived if not each.valid]
    if missing:
        counts = Counter(each.status for each in missing)
        refused = [each for each in missing if isinstance(each.error, CALLER_ERRORS)]
        log.log(
            logging.ERROR if refused else logging.WARNING,
            "no reward for %d of %d episodes (%s); the first is %s",
            len(missing),
            len(arrived),
            ", ".join(f"{count} {status}" for status, count in counts.items()),
            (refused or missing)[0].detail,
        )
