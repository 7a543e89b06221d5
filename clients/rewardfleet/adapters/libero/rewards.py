"""Rewards of episodes in a vector of environments, scored while the simulator continues."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Self

from .config import RewardModelConfig, check_suite
from .episode_reward import Episode, EpisodeReward, RewardStats
from .images import Orientation, check_orientation, upright_image
from .recorder import EpisodeRecorder
from .scoring import EpisodeScoring

log = logging.getLogger(__name__)

#: LIBERO's control rate in Hz.
CONTROL_HZ = 20.0
#: The least default of `max_pending`, so that `finish` of few environments with short episodes does
#: not wait. One episode is 1 to 2 MB at 16 frames of 256x256.
_LEAST_PENDING = 128
#: The longest text of a task.
_MAX_TASK = 4096


@dataclass
class _Environment:
    """The current episode of one environment.

    Attributes:
        task: The instruction, as it was given.
        recorder: The episode's frames; None from its end to the next reset.
        suite_problem: Why no episode of this environment can be scored, or None.
        episode: The index of the episode.
        problem: Why this episode cannot be scored, or None.
    """

    task: Any
    recorder: EpisodeRecorder | None
    suite_problem: str | None
    episode: int = 0
    problem: str | None = None


class LiberoRewards:
    """Records the frames of a vector of environments, and scores episodes when they end.

    ```python
    with LiberoRewards({"enable": True}, tasks) as rewards:
        rewards.record(images)            # at every step, and after a reset
        rewards.finish(done)              # starts scoring, and returns
        rewards.reset(done)               # where environments are reset
        arrived = rewards.collect()       # what has arrived so far
    ```

    At most `4 x nframes + 1` frames per environment are in memory, whatever the length of an
    episode. The methods are for one thread. Scores arrive in another, while the simulator works.

    Args:
        config: See `RewardModelConfig.of`.
        tasks: The instruction of each environment. Their number is that of the environments.
        orientation: What was done to the images.
        suites: The suite of all environments, or of each; None means that of `config`. In a list,
            only the environments with an unknown suite get errors.
        frame_rate: The rate in Hz at which frames are recorded; by default one per control step.
        max_pending: The most episodes whose scores have not arrived, 1 or more; beyond that,
            `finish` waits. None means two per environment, and at least 128.

    Raises:
        ValueError: An argument is not valid, or `enable` is False.
        ImportError: `keep_temp_video` is set, and OpenCV is not installed.
    """

    def __init__(
        self,
        config: RewardModelConfig | Mapping[str, Any],
        tasks: Sequence[str],
        *,
        orientation: Orientation = "raw",
        suites: str | Sequence[str] | None = None,
        frame_rate: float = CONTROL_HZ,
        max_pending: int | None = None,
    ) -> None:
        self.config = RewardModelConfig.of(config)
        if not self.config.enable:
            raise ValueError(
                "reward_model.enable is False: set it, or use the environments without this adapter"
            )
        if isinstance(tasks, str) or not len(tasks):
            raise ValueError(f"tasks: give one text per environment, not {tasks!r}")
        check_orientation(orientation)
        if not 0 < frame_rate <= 1000:
            raise ValueError(f"frame_rate: give Hz above 0, at most 1000; not {frame_rate}")
        if max_pending is not None and max_pending < 1:
            raise ValueError(f"max_pending: give 1 or more, not {max_pending}")
        self._orientation = orientation
        self._frame_rate = frame_rate
        suites = self.config.task_suite_name if suites is None else suites
        self._environments = [
            _Environment(task, self._recorder(), problem)
            for task, problem in zip(tasks, _suite_problems(suites, len(tasks)), strict=True)
        ]
        default = max(2 * len(tasks), _LEAST_PENDING)
        self._scoring = EpisodeScoring(self.config, max_pending or default)

    @property
    def episode(self) -> NDArray[np.int64]:
        """The index of the current or last episode of each environment, [N]."""
        return np.array([each.episode for each in self._environments])

    @property
    def recording(self) -> NDArray[np.bool_]:
        """Whether each environment is in an episode, [N]: not between `finish` and `reset`."""
        return np.array([each.recorder is not None for each in self._environments])

    @property
    def stats(self) -> RewardStats:
        """The number of episodes so far, by what became of them."""
        return self._scoring.stats

    def reset(
        self, environments: ArrayLike | None = None, *, tasks: Sequence[str] | None = None
    ) -> None:
        """Begin a new episode where environments were reset.

        An episode that has frames and was not finished is discarded, and reported.

        Args:
            environments: Indices, or a mask, [N]. None means all.
            tasks: Their new instructions, in the same order. None means that they stay.

        Raises:
            ValueError: An index is out of range, or there is another number of tasks.
        """
        indices = self._indices(environments)
        if tasks is not None and (isinstance(tasks, str) or len(tasks) != len(indices)):
            raise ValueError(f"tasks: give {len(indices)}, one per environment; not {tasks!r}")
        for position, index in enumerate(indices):
            state = self._environments[index]
            if state.recorder is not None and (state.recorder.count or state.problem):
                problem = (
                    state.problem or f"reset after {state.recorder.count} frames, not finished"
                )
                self._scoring.report(self._current(index), "discarded", problem)
                state.recorder = None
            if state.recorder is None:
                state.episode += 1
                state.recorder = self._recorder()
            state.problem = None
            if tasks is not None:
                state.task = tasks[position]

    def record(self, frames: Any, environments: ArrayLike | None = None) -> None:
        """Record one frame per environment. After `finish`, frames are ignored until `reset`.

        An image that cannot be used, or of another size than those before, fails its episode only.

        Args:
            frames: A list, an array or a torch tensor of images; see `upright_image`.
            environments: Indices, in the same order, or a mask, [N]. None means all.

        Raises:
            ValueError: There is another number of frames, or an index is out of range.
        """
        indices = self._indices(environments)
        if len(frames) != len(indices):
            raise ValueError(f"frames: give {len(indices)}, one per environment; not {len(frames)}")
        for position, index in enumerate(indices):
            state = self._environments[index]
            if state.recorder is None or state.problem is not None:
                continue
            try:
                state.recorder.add(upright_image(frames[position], self._orientation))
            except (ValueError, TypeError) as error:  # torch cannot convert every dtype
                state.problem = f"frame {state.recorder.count}: {error}"

    def finish(self, environments: ArrayLike | None = None) -> None:
        """End episodes whose last frame was recorded, and start scoring all of them.

        It returns at once, unless `max_pending` scores have not arrived.

        Args:
            environments: Indices, or a mask, [N]. None means all.

        Raises:
            ValueError: An index is out of range.
            RuntimeError: This object is closed.
        """
        for index in self._indices(environments):
            state = self._environments[index]
            problem = self._problem_of(state)
            recorder, state.recorder = state.recorder, None
            if recorder is None:
                state.episode += 1
            if recorder is None or problem is not None:
                reason = problem or "finished, but not reset since its last episode ended"
                self._scoring.report(self._current(index), "error", reason)
                continue
            self._scoring.start(self._current(index), *recorder.select(self._frame_rate))

    def collect(self, timeout: float | None = 0.0) -> list[EpisodeReward]:
        """Return the episodes whose rewards arrived, in this order. Each is returned once.

        If some have no score, one line of the log sums them up: a warning; an error if the service
        refused a request as invalid or too large, which the caller must correct.

        Args:
            timeout: The most seconds to wait until no episode is pending. None means until each has
                a score or an error, which takes at most the timeout of the configuration.

        Raises:
            MissingRewardError: A finished episode has no score, and `fail_on_request_error` is set.
                The next call returns the others.
        """
        return self._scoring.collect(timeout)

    def close(self) -> None:
        """Cancel what is pending, which becomes an error, and end the thread."""
        self._scoring.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _recorder(self) -> EpisodeRecorder:
        return EpisodeRecorder(self.config.nframes)

    def _current(self, index: int) -> Episode:
        state = self._environments[index]
        return Episode(index, state.episode, state.task if isinstance(state.task, str) else "")

    def _indices(self, environments: ArrayLike | None) -> list[int]:
        """Return different indices in range, from indices or a mask."""
        count = len(self._environments)
        if environments is None:
            return list(range(count))
        given = np.atleast_1d(np.asarray(environments))
        if given.dtype == bool and given.shape == (count,):
            given = np.flatnonzero(given)
        indices: list[int] = given.tolist()
        is_valid = not indices or (given.ndim == 1 and np.issubdtype(given.dtype, np.integer))
        if not is_valid or not {*indices} <= {*range(count)} or len({*indices}) < len(indices):
            raise ValueError(
                f"environments: give different indices from 0 to {count - 1}, or a mask of "
                f"{count}; not {environments!r}"
            )
        return indices

    @staticmethod
    def _problem_of(state: _Environment) -> str | None:
        """Return why an episode cannot be scored, or None."""
        if problem := state.suite_problem or state.problem:
            return problem
        if state.recorder is not None and not state.recorder.count:
            return "no frames were recorded"
        if not isinstance(state.task, str) or not 0 < len(state.task) <= _MAX_TASK:
            return f"its task is not a text of 1 to {_MAX_TASK} characters: {state.task!r:.80}"
        return None


def score_episodes(
    config: RewardModelConfig | Mapping[str, Any],
    tasks: Sequence[str],
    clips: Sequence[Any],
    *,
    orientation: Orientation = "raw",
    suites: str | Sequence[str] | None = None,
    frame_rate: float = CONTROL_HZ,
) -> list[EpisodeReward]:
    """Score complete episodes, all at once, and wait for the rewards.

    Args:
        config: As in `LiberoRewards`, like the other options.
        tasks: The instruction of each episode.
        clips: The frames of each episode; see `upright_image`.
        orientation: What was done to the frames.
        suites: The suite of all episodes, or of each.
        frame_rate: The rate of the frames in Hz.

    Returns:
        One per episode, in the same order; `environment` is its index.

    Raises:
        ValueError: An argument is not valid, or there is another number of clips than tasks.
        MissingRewardError: As in `LiberoRewards.collect`.
    """
    if len(clips) != len(tasks):
        raise ValueError(f"clips: give {len(tasks)}, one per task; not {len(clips)}")
    with LiberoRewards(
        config,
        tasks,
        orientation=orientation,
        suites=suites,
        frame_rate=frame_rate,
        max_pending=len(tasks) or None,
    ) as rewards:
        for index, clip in enumerate(clips):
            for frame in clip if hasattr(clip, "__len__") else [clip]:
                rewards.record([frame], [index])
        rewards.finish()
        return sorted(rewards.collect(timeout=None), key=lambda each: each.environment)


def _suite_problems(suites: str | Sequence[str] | None, count: int) -> list[str | None]:
    """Return why each environment has no suite of LIBERO, or None.

    Raises:
        ValueError: The suite of all environments is unknown, or there is another number of suites.
    """
    if suites is None or isinstance(suites, str):
        if suites is not None:
            check_suite(suites)
        return [None] * count
    if len(suites) != count:
        raise ValueError(f"suites: give one, or {count}, one per environment; not {suites!r}")
    problems: list[str | None] = []
    for name in suites:
        try:
            check_suite(name)
            problems.append(None)
        except ValueError as error:
            problems.append(str(error))
    if unknown := [index for index, problem in enumerate(problems) if problem]:
        log.warning("environments %s get no rewards: %s", unknown, problems[unknown[0]])
    return problems
