"""Rewards of episodes in a vector of environments, scored while the simulator continues."""

import logging
import threading
from collections import Counter
from collections.abc import Awaitable, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rewardfleet.adapters._rows import RowReward, check_choice, metrics_of
from rewardfleet.wire.errors import (
    CALLER_ERRORS,
    Abstained,
    InternalError,
    RewardFleetError,
    Unavailable,
)
from rewardfleet.wire.score import Status, abstained
from rewardfleet.wire.video import VideoScore

from .config import Config, RewardModelConfig
from .frames import EpisodeRecorder, Orientation, upright_image

log = logging.getLogger(__name__)

#: LIBERO's control rate in Hz.
_CONTROL_HZ = 20.0
#: The least default of `max_pending`, so that `finish` of few environments with short episodes does
#: not wait. One episode is 1 to 2 MB at 16 frames of 256x256.
_LEAST_PENDING = 128
#: Seconds by which an episode may exceed the timeout: its frames are encoded, and the machine may
#: be busy. The client ends each call at the timeout.
_GRACE_SECONDS = 30.0

#: Keys of the configuration that the service gets.
_SENT = {"nframes", "max_pixels", "backend", "backend_kwargs"}

#: Environments by index, in any order, or as a mask, [N]; None means all.
Environments = ArrayLike | None

#: ok: there is a score. abstained: the judge answered without a usable verdict. error: a failure.
#: discarded: the environment was reset before the episode had ended.
EpisodeStatus = Literal["ok", "abstained", "error", "discarded"]


@dataclass(frozen=True, eq=False)
class EpisodeReward:
    """What became of one episode."""

    environment: int  #: index of the environment
    episode: int  #: index of the episode in its environment, counted from 0
    task: str  #: the instruction; empty if it is not a text
    reward: float  #: the reward; unless `valid`, the fallback
    status: EpisodeStatus
    score: float | None = None  #: in [0, 1]
    detail: str = ""  #: why there is no score; names the environment and the episode
    answer: VideoScore | None = field(default=None, repr=False)  #: of the service
    error: RewardFleetError | None = field(default=None, repr=False)  #: of the request

    @property
    def valid(self) -> bool:
        """Whether there is a score."""
        return self.status == "ok"


def episode_metrics(arrived: Sequence[EpisodeReward]) -> dict[str, float]:
    """Return what a trainer logs of the episodes that `collect` returned; none of it is NaN.

    The shares `reward/failed`, `reward/abstained` and `reward/cached`, and the quartiles of the
    scores, `reward/p0` to `reward/p100`. Discarded episodes do not count.
    """
    scores = [
        each.answer or VideoScore.model_construct(score=None, status=Status(each.status))
        for each in arrived
        if each.status != "discarded"
    ]
    return metrics_of(scores)


class MissingRewardError(RewardFleetError):
    """A finished episode has no score. The failure of the request is its `__cause__`."""

    def __init__(self, reward: EpisodeReward) -> None:
        super().__init__(reward.detail)
        self.reward = reward  #: the episode


class LiberoRewards:
    """Records the frames of a vector of environments, and scores episodes when they end.

    `docs/trainers/libero.md` has examples: `record` each step, `finish` where episodes end, `reset`
    where environments are reset, and `collect` what has arrived.

    At most `4 x nframes + 1` frames per environment are in memory, whatever the length of an
    episode. The methods are for one thread. Scores arrive in another, while the simulator works.

    Args:
        config: See `RewardModelConfig.of`.
        tasks: The instruction of each environment. Their number is that of the environments.
        frame_rate: The rate in Hz at which frames are recorded; by default one per control step.
        max_pending: The most episodes whose scores have not arrived, 1 or more; beyond that,
            `finish` waits. None means two per environment, and at least 128.

    Raises:
        ValueError: An argument is not valid, or `enable` is False.
    """

    def __init__(
        self,
        config: Config,
        tasks: Sequence[str],
        *,
        orientation: Orientation = "raw",
        frame_rate: float = _CONTROL_HZ,
        max_pending: int | None = None,
    ) -> None:
        self.config = RewardModelConfig.of(config)
        if not self.config.enable:
            raise ValueError(
                "reward_model.enable is False: set it, or use the environments without this adapter"
            )
        if isinstance(tasks, str) or not len(tasks):
            raise ValueError(f"tasks: give one text per environment, not {tasks!r}")
        check_choice("orientation", orientation, Orientation)
        if not 0 < frame_rate <= 1000:
            raise ValueError(f"frame_rate: give Hz above 0, at most 1000; not {frame_rate}")
        if max_pending is not None and max_pending < 1:
            raise ValueError(f"max_pending: give 1 or more, not {max_pending}")
        self._orientation, self._frame_rate = orientation, frame_rate
        self._max_pending = max_pending or max(2 * len(tasks), _LEAST_PENDING)
        # Of each environment; a recorder is None from the end of its episode to the next reset.
        self._tasks: list[Any] = list(tasks)
        self._recorders: list[EpisodeRecorder | None] = [self._recorder() for _ in tasks]
        self._episodes = np.zeros(len(tasks), np.int64)
        options = self.config.model_dump(include={"api_key", "binary_reward", "success_threshold"})
        options |= {"timeout_s": self.config.timeout, "coalesce_s": 0.0}  # no clip waits for others
        self._scorer = RowReward("video", self.config.endpoint, **options)
        self._closed = False
        self._pending: dict[Future[VideoScore], EpisodeReward] = {}
        self._arrived: list[EpisodeReward] = []

    @property
    def episode(self) -> NDArray[np.int64]:
        """The index of the current or last episode of each environment, [N]."""
        return self._episodes.copy()

    @property
    def recording(self) -> NDArray[np.bool_]:
        """Whether each environment is in an episode, [N]: not between `finish` and `reset`."""
        return np.array([each is not None for each in self._recorders])

    @property
    def pending(self) -> int:
        """The number of episodes whose scores have not arrived."""
        self._receive()
        return len(self._pending)

    def reset(
        self, environments: Environments = None, *, tasks: Sequence[str] | None = None
    ) -> None:
        """Begin a new episode where environments were reset.

        An episode that has frames and was not finished is discarded, and reported.

        Args:
            tasks: Their new instructions, in the same order. None means that they stay.

        Raises:
            ValueError: An index is out of range, or there is another number of tasks.
        """
        indices = self._indices(environments)
        if tasks is not None and (isinstance(tasks, str) or len(tasks) != len(indices)):
            raise ValueError(f"tasks: give {len(indices)}, one per environment; not {tasks!r}")
        for position, index in enumerate(indices):
            recorder = self._recorders[index]
            if recorder is not None and (recorder.count or recorder.problem):
                problem = recorder.problem or f"reset after {recorder.count} frames, not finished"
                self._arrived.append(_without_score(self._current(index), problem, "discarded"))
                recorder = None
            if recorder is None:
                self._episodes[index] += 1
                self._recorders[index] = self._recorder()
            if tasks is not None:
                self._tasks[index] = tasks[position]

    def record(self, frames: Any, environments: Environments = None) -> None:
        """Record one frame per environment. After `finish`, frames are ignored until `reset`.

        An image that cannot be used, or of another size than those before, fails its episode only.

        Args:
            frames: A list, an array or a torch tensor of images; see `upright_image`.

        Raises:
            ValueError: There is another number of frames, or an index is out of range.
        """
        indices = self._indices(environments)
        if len(frames) != len(indices):
            raise ValueError(f"frames: give {len(indices)}, one per environment; not {len(frames)}")
        for index, frame in zip(indices, frames, strict=True):
            recorder = self._recorders[index]
            if recorder is None or recorder.problem is not None:
                continue
            try:
                recorder.add(upright_image(frame, self._orientation))
            except (ValueError, TypeError) as error:  # torch cannot convert every dtype
                recorder.problem = f"frame {recorder.count}: {error}"

    def finish(self, environments: Environments = None) -> None:
        """End episodes whose last frame was recorded, and start scoring all of them.

        It returns at once, unless `max_pending` scores have not arrived.

        Raises:
            ValueError: An index is out of range.
            RuntimeError: This object is closed.
        """
        for index in self._indices(environments):
            recorder, self._recorders[index] = self._recorders[index], None
            if recorder is None:
                self._episodes[index] += 1
                recorder = self._recorder()
                recorder.problem = "finished, but not reset since its last episode ended"
            try:
                clip = recorder.select(self._frame_rate)
            except ValueError as error:
                self._arrived.append(_without_score(self._current(index), str(error)))
                continue
            if self._closed:
                raise RuntimeError("rewards: closed")
            if len(self._pending) >= self._max_pending:
                self._receive(None, until=FIRST_COMPLETED)
            episode = self._current(index)
            self._pending[self._scorer.loop.start(self._score(episode, *clip))] = episode

    def collect(self, timeout: float | None = 0.0) -> list[EpisodeReward]:
        """Return the episodes whose rewards arrived, each once.

        If some have no score, one line of the log sums them up: a warning; an error if the service
        refused a request as invalid or too large, which the caller must correct.

        Args:
            timeout: The most seconds to wait until no episode is pending. None means until each has
                a score or an error, which takes at most the timeout of the configuration.

        Raises:
            MissingRewardError: A finished episode has no score, and `fail_on_request_error` is set,
                or the URL is wrong, or the service stays away. The next call returns the others.
        """
        self._receive(timeout)
        missing = [each for each in self._arrived if each.status in {"abstained", "error"}]
        statuses = {each.status for each in self._arrived}
        is_over = self._scorer.is_patience_over(statuses, is_batch=False)
        if not (self.config.fail_on_request_error or is_over):
            missing = [each for each in missing if each.error and each.error.blames_url]
        if missing:
            self._arrived.remove(missing[0])
            raise MissingRewardError(missing[0]) from missing[0].error
        arrived, self._arrived = self._arrived, []
        if missing := [each for each in arrived if not each.valid]:
            refused = [each for each in missing if isinstance(each.error, CALLER_ERRORS)]
            level = logging.ERROR if refused else logging.WARNING
            numbers = Counter(each.status for each in missing)
            counts = ", ".join(f"{count} {status}" for status, count in numbers.items())
            shown = (len(missing), len(arrived), counts, (refused or missing)[0].detail)
            log.log(level, "no reward for %d of %d episodes (%s); the first is %s", *shown)
        return arrived

    def close(self) -> None:
        """Cancel what is pending, which becomes an error, and end the thread."""
        self._closed = True
        self._scorer.loop.close(self._scorer.fleet.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _recorder(self) -> EpisodeRecorder:
        return EpisodeRecorder(self.config.nframes)

    def _current(self, index: int) -> EpisodeReward:
        """Return the current episode of an environment, as it is without a score."""
        task = self._tasks[index] if isinstance(self._tasks[index], str) else ""
        reward = self.config.reward_coef * self.config.fallback_score
        return EpisodeReward(index, int(self._episodes[index]), task, reward, "error")

    def _indices(self, environments: Environments) -> list[int]:
        """Return different indices in range, from indices or a mask."""
        count = len(self._tasks)
        given = np.arange(count) if environments is None else np.atleast_1d(environments)
        if given.dtype == bool and given.shape == (count,):
            given = np.flatnonzero(given)
        indices: list[int] = given.tolist()
        is_valid = not indices or (given.ndim == 1 and np.issubdtype(given.dtype, np.integer))
        if not is_valid or len({*indices} & {*range(count)}) < len(indices):
            raise ValueError(
                f"environments: give different indices from 0 to {count - 1}, or a mask of "
                f"{count}; not {environments!r}"
            )
        return indices

    async def _score(
        self, episode: EpisodeReward, frames: Sequence[NDArray[np.uint8]], fps: float
    ) -> VideoScore:
        """Send one episode. While it waits for its score, only encoded frames are in memory."""
        options = self.config.model_dump(include=_SENT)
        scoring: Awaitable[VideoScore] = self._scorer.client.score(
            episode.task, frames, fps=fps, **options
        )
        del frames
        return await scoring

    def _result(self, episode: EpisodeReward, future: Future[VideoScore]) -> EpisodeReward:
        try:
            answer = future.result()
        except RewardFleetError as error:
            return _without_score(episode, error)
        except CancelledError:
            return _without_score(episode, Unavailable("closed before the score arrived"))
        except BaseException as error:  # noqa: BLE001 - whatever happened, it must be reported
            return _without_score(episode, InternalError(f"{type(error).__name__}: {error}"))
        if answer.score is None:
            return replace(_without_score(episode, abstained(answer)), answer=answer)
        reward = self.config.reward_coef * self._scorer.client.policy.reward(answer)
        return replace(episode, reward=reward, status="ok", score=answer.score, answer=answer)

    def _receive(self, timeout: float | None = 0.0, until: str = ALL_COMPLETED) -> None:
        """Wait for what is pending, and store what became of the episodes that have ended."""
        longest = self.config.timeout + _GRACE_SECONDS
        seconds = min(longest if timeout is None else timeout, longest, threading.TIMEOUT_MAX)
        done, _ = wait(self._pending, seconds, until)
        for future in [each for each in self._pending if each in done]:
            self._arrived.append(self._result(self._pending.pop(future), future))


def _without_score(
    episode: EpisodeReward, problem: str | RewardFleetError, status: EpisodeStatus = "error"
) -> EpisodeReward:
    error = problem if isinstance(problem, RewardFleetError) else None
    return replace(
        episode,
        status="abstained" if isinstance(error, Abstained) else status,
        detail=f"environment {episode.environment}, episode {episode.episode}: {problem}",
        error=error,
    )
