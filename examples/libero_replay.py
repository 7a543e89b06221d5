"""A stand-in for LIBERO's simulator that replays recorded rollouts, and LIBERO as a Gymnasium env.

`ReplayLibero` has the methods of `libero.libero.envs.OffScreenRenderEnv` that a training loop uses.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import gymnasium
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Rollout:
    """A recorded rollout.

    Attributes:
        path: A video file, upright.
        suite: The suite of its task.
        task: The instruction.
        success: Whether the task was done at the end, according to the simulator.
        frames: Number of frames.
    """

    path: Path
    suite: str
    task: str
    success: bool
    frames: int


def read_rollouts(folder: Path) -> list[Rollout]:
    """Return the rollouts that `manifest.jsonl` in a folder lists."""
    entries = map(json.loads, (folder / "manifest.jsonl").read_text().splitlines())
    return [
        Rollout(
            folder / entry["file"],
            entry["suite"],
            entry["task_text"],
            entry["success"],
            entry["frames"],
        )
        for entry in entries
    ]


class ReplayLibero:
    """Replays rollouts, one per episode; actions have no effect.

    Images are upside down, as LIBERO's camera returns them.

    Args:
        rollouts: In this order, and again from the first.

    Attributes:
        language_instruction: The task of the current episode.
    """

    def __init__(self, rollouts: Sequence[Rollout]) -> None:
        self._rollouts = rollouts
        self._episodes = 0
        self._step = 0
        self._video = cv2.VideoCapture()
        self.language_instruction = rollouts[0].task

    def reset(self) -> dict[str, Any]:
        """Begin the next episode and return its first observation."""
        self._rollout = self._rollouts[self._episodes % len(self._rollouts)]
        self._episodes += 1
        self._step = 0
        self._video.open(str(self._rollout.path))
        self.language_instruction = self._rollout.task
        return self._observation()

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, dict[str, Any]]:  # noqa: ARG002 - LIBERO's signature
        """Return observation, reward, done, info. The last frame of the rollout is done."""
        self._step += 1
        return self._observation(), float(self.check_success()), self._is_last(), {}

    def check_success(self) -> bool:
        """Return whether the task is done."""
        return self._is_last() and self._rollout.success

    def close(self) -> None:
        """Close the video."""
        self._video.release()

    def _is_last(self) -> bool:
        return self._step == self._rollout.frames - 1

    def _observation(self) -> dict[str, Any]:
        read, image = self._video.read()
        if not read:
            raise ValueError(f"{self._rollout.path}: no frame {self._step}; was it done?")
        return {"agentview_image": cv2.cvtColor(image, cv2.COLOR_BGR2RGB)[::-1]}


class LiberoEnv(gymnasium.Env[dict[str, NDArray[np.uint8]], NDArray[np.float32]]):
    """LIBERO's environment, or its stand-in, for Gymnasium: the main camera, and 7 actions.

    `info` has the instruction in `task_descriptions`, and at the end of an episode the simulator's
    `success`.

    Args:
        env: An `OffScreenRenderEnv`, or a `ReplayLibero`.
        max_steps: The most steps of an episode; None means until `env` ends it.
        size: Height and width of the images.
    """

    def __init__(self, env: Any, *, max_steps: int | None = None, size: int = 256) -> None:
        self._env = env
        self._max_steps = max_steps
        self._steps = 0
        image = gymnasium.spaces.Box(0, 255, (size, size, 3), np.uint8)
        self.observation_space = gymnasium.spaces.Dict({"agentview_image": image})
        self.action_space = gymnasium.spaces.Box(-1, 1, (7,))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Reset the simulator."""
        super().reset(seed=seed, options=options)
        self._steps = 0
        observation = self._env.reset()
        return self._image_of(observation), {"task_descriptions": self._env.language_instruction}

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Step the simulator."""
        self._steps += 1
        observation, reward, done, _ = self._env.step(action)
        success = bool(self._env.check_success())
        ended = bool(done) or self._steps == self._max_steps
        info = {"task_descriptions": self._env.language_instruction}
        if ended:
            info["success"] = success
        return self._image_of(observation), reward, ended and success, ended and not success, info

    def close(self) -> None:
        """Close the simulator."""
        self._env.close()

    @staticmethod
    def _image_of(observation: dict[str, Any]) -> dict[str, Any]:
        return {"agentview_image": observation["agentview_image"]}
