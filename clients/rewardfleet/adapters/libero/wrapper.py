"""A Gymnasium vector wrapper with rewards of the video service."""

from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from numpy.typing import NDArray

from rewardfleet.arrays import to_array

from .config import Config
from .rewards import EpisodeReward, LiberoRewards

Mask = NDArray[np.bool_]

#: One text per environment, the name of an entry of the observations or of `info` that has them,
#: or a function of both.
Tasks = Sequence[str] | str | Callable[[Any, dict[str, Any]], Sequence[str]]


class LiberoRewardWrapper(VectorWrapper[Any, Any, Any, Any, Any]):
    """A vector of environments whose rewards come from the video service.

    The simulator's rewards are dropped. A step has the reward 0.0, or, if it ends an episode, NaN
    until `collect` returns the reward, as `step` does not wait. With `blocking`, `step` waits and
    returns it. All autoreset modes of Gymnasium are supported. `info` gets `reward_episode`,
    `reward_pending` and `reward_valid`, each [N]; `docs/trainers/libero.md` describes them.

    Args:
        env: The environments. Their `metadata` names the autoreset mode, as Gymnasium requires.
        config: See `RewardModelConfig.of`.
        tasks: See `Tasks`.
        frames: Where the images are in an observation: a path such as `pixels/image`, or a function
            of an observation, which is one of all environments, or a final one of one environment.
        options: `orientation`, `frame_rate` and `max_pending` of `LiberoRewards`.

    Raises:
        ValueError: An argument is not valid, or the autoreset mode is unknown.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        config: Config,
        tasks: Tasks,
        *,
        frames: str | Callable[[Any], Any] = "agentview_image",
        **options: Any,
    ) -> None:
        super().__init__(env)
        mode = env.metadata.get("autoreset_mode")
        try:
            self._mode = AutoresetMode(mode)
        except ValueError:
            kinds = f"an AutoresetMode ({', '.join(each.value for each in AutoresetMode)})"
            raise ValueError(f'metadata["autoreset_mode"]: not {kinds}: {mode!r}') from None
        self._tasks, self._frames = tasks, frames
        #: What records and scores; it has `pending`.
        self.rewards = LiberoRewards(config, [""] * env.num_envs, **options)
        #: Environments that Gymnasium resets in the next step.
        self._resets_next = np.zeros(env.num_envs, bool)
        #: Episodes that arrived while a blocking step waited for others.
        self._left: list[EpisodeReward] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset environments, all or those of `options["reset_mask"]`; see `VectorEnv.reset`.

        Episodes that had not ended are discarded, and `collect` reports them.
        """
        mask = (options or {}).get("reset_mask")  # the environment removes it
        mask = np.ones(self.num_envs, bool) if mask is None else np.array(mask, bool)
        observations, info = self.env.reset(seed=seed, options=options)
        self._begin(mask, observations, info)
        self._resets_next[mask] = False
        none = np.zeros(self.num_envs, bool)
        return observations, _described(info, self.rewards.episode, none, ~none)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments, and start scoring the episodes that ended.

        Raises:
            MissingRewardError: With `blocking`, as in `LiberoRewards.collect`.
        """
        observations, _, terminated, truncated, info = self.env.step(actions)
        self._begin(self._resets_next, observations, info)
        done = to_array(terminated).astype(bool) | to_array(truncated).astype(bool)
        done &= self.rewards.recording
        episodes = self.rewards.episode
        was_reset = done & (self._mode is AutoresetMode.SAME_STEP)
        self._record(~was_reset & ~self._resets_next, observations)
        self._record_final(was_reset, info)
        self.rewards.finish(done)
        self._begin(was_reset, observations, info)
        self._resets_next = done & (self._mode is AutoresetMode.NEXT_STEP)
        step_rewards = np.where(done, np.nan, 0.0)
        pending, valid = done.copy(), ~done
        if self.rewards.config.blocking and done.any():
            for each in self.rewards.collect(timeout=None):
                index = each.environment
                if not done[index] or each.episode != episodes[index]:
                    self._left.append(each)
                    continue
                step_rewards[index], valid[index], pending[index] = each.reward, each.valid, False
        info = _described(info, episodes, pending, valid)
        return observations, step_rewards, terminated, truncated, info

    def collect(self, timeout: float | None = 0.0) -> list[EpisodeReward]:
        """Return what has arrived, by (environment, episode); see `LiberoRewards.collect`.

        A blocking `step` returns the rewards itself; then, this returns discarded episodes.
        """
        arrived = self._left + self.rewards.collect(timeout)
        self._left = []
        return arrived

    def close(self, **kwargs: Any) -> None:
        """Cancel pending scores, and close the environments."""
        self.rewards.close()
        super().close(**kwargs)

    def _begin(self, mask: Mask, observations: Any, info: dict[str, Any]) -> None:
        """Begin episodes with their first frames."""
        if mask.any():
            tasks, count = self._current_tasks(observations, info), self.num_envs
            if len(tasks) != count:
                raise ValueError(f"tasks: give {count}, one per environment; not {len(tasks)}")
            self.rewards.reset(mask, tasks=list(compress(tasks, mask)))
            self._record(mask, observations)

    def _current_tasks(self, observations: Any, info: dict[str, Any]) -> Sequence[str]:
        if not isinstance(self._tasks, str):
            return self._tasks(observations, info) if callable(self._tasks) else self._tasks
        entries = dict(observations) if isinstance(observations, Mapping) else {}
        entries = {**info, **entries, **info}  # those of `info` come first, and win
        if self._tasks not in entries:
            raise ValueError(f"tasks: no {self._tasks!r} among {', '.join(map(str, entries))}")
        tasks: Sequence[str] = entries[self._tasks]
        return tasks

    def _record(self, mask: Mask, observations: Any) -> None:
        if mask.any():
            self.rewards.record(list(compress(self._images_of(observations), mask)), mask)

    def _record_final(self, mask: Mask, info: dict[str, Any]) -> None:
        """Record the last frames of episodes whose observations are already of the next ones."""
        final = info.get("final_obs")
        if isinstance(final, Mapping):  # one of all environments, unlike in Gymnasium's own vectors
            self._record(mask, final)
            return
        ended = [None] * mask.sum() if final is None else compress(final, mask)
        images = [None if each is None else self._images_of(each) for each in ended]
        self.rewards.record(images, mask)

    def _images_of(self, observation: Any) -> Any:
        if callable(self._frames):
            return self._frames(observation)
        for name in self._frames.split("/"):
            if not isinstance(observation, Mapping) or name not in observation:
                got = list(observation) if isinstance(observation, Mapping) else type(observation)
                raise ValueError(f"frames: no {self._frames!r} in an observation with {got}")
            observation = observation[name]
        return observation


def _described(
    info: dict[str, Any], episodes: NDArray[np.int64], pending: Mask, valid: Mask
) -> dict[str, Any]:
    own = {"reward_episode": episodes, "reward_pending": pending, "reward_valid": valid}
    return {**info, **own}
