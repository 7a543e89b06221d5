"""LeRobot: the video service as a reward model."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rewardfleet.arrays import to_array
from rewardfleet.wire.errors import InvalidRequest

from ._rows import RowReward, module_of_trainer

_INSTALL = "pip install 'lerobot>=0.6'"
#: Fields of a request that are settings of the reward model.
_OPTIONS = ("fps", "nframes", "backend")


@functools.cache
def _config_class() -> type:
    base: Any = module_of_trainer("lerobot.configs.rewards", _INSTALL).RewardModelConfig

    @base.register_subclass("rewardfleet")
    @dataclass
    class RewardFleetConfig(base):  # type: ignore[misc] # a class of LeRobot
        """The configuration of the reward model, registered in LeRobot as `rewardfleet`."""

        url: str = "http://127.0.0.1:18080"  #: the base URL of the video service
        #: The key of a batch with frames, [B, T, C, H, W] or [B, C, H, W].
        image_key: str = "observation.images.top"
        task_key: str = "task"  #: the key with the task of each sample, or with one for all
        default_task: str | None = None  #: the task of samples without one
        fps: float | None = None  #: frames per second of the frames
        nframes: int = 16  #: how many frames the judge sees, 1 to 128
        backend: str | None = None  #: the judge; None means the service's default
        #: Whether a reward is 1.0 for a score of at least `success_threshold`, else 0.0; if False,
        #: it is the score.
        binary_reward: bool = True
        success_threshold: float = 0.5  #: in [0, 1]
        #: The reward of a sample without one; None: the error is raised.
        on_failure: float | None = math.nan
        timeout_s: float = 120.0  #: seconds for the samples of a batch

        def validate_features(self) -> None:
            """Accept any features: the batch is checked when it is scored."""

    RewardFleetConfig.__module__, RewardFleetConfig.__qualname__ = __name__, "RewardFleetConfig"
    return RewardFleetConfig


@functools.cache
def _model_class() -> type:
    base: Any = module_of_trainer("lerobot.rewards.pretrained", _INSTALL).PreTrainedRewardModel
    torch = module_of_trainer("torch", _INSTALL)

    class RewardFleetRewardModel(base):  # type: ignore[misc] # a class of LeRobot
        """A reward model without weights, whose rewards are those of the video service.

        Args:
            config: A `RewardFleetConfig`.
            api_key: Sent as a bearer token; it is not saved with the configuration.
        """

        name = "rewardfleet"
        config_class = _config_class()

        def __init__(self, config: Any, *, api_key: str | None = None, **_: Any) -> None:
            super().__init__(config)
            names = ("timeout_s", "on_failure", "binary_reward", "success_threshold")
            options = {name: getattr(config, name) for name in names}
            options |= {"columns": _OPTIONS, "api_key": api_key}
            self._scorer = RowReward("video", config.url, **options)

        def compute_reward(self, batch: Mapping[str, Any]) -> Any:
            """Return the reward of each clip in a batch, a tensor [B] of float32.

            Raises:
                InvalidRequest: The batch has no frames or no tasks, or they are invalid.
                RewardFleetError: There is no reward, and `on_failure` is None.
            """
            config = self.config
            clips = _clips(batch.get(config.image_key), config.image_key)
            tasks = _tasks(batch.get(config.task_key), config.default_task, len(clips))
            columns = {name: [getattr(config, name)] * len(tasks) for name in _OPTIONS}
            columns |= {"clip": [*map(as_uint8, clips)], "task": tasks}
            work = self._scorer.rewards([None] * len(tasks), columns)
            return torch.tensor(self._scorer.loop.run(work), dtype=torch.float32)

    RewardFleetRewardModel.__qualname__ = "RewardFleetRewardModel"
    return RewardFleetRewardModel


def _clips(frames: Any, key: str) -> Any:
    """Return frames as clips, [B, T, 3, H, W]; single frames are clips of one."""
    if frames is None:
        raise InvalidRequest(f"the batch has no {key!r}; set `image_key`")
    if len(frames.shape) not in {4, 5}:
        raise InvalidRequest(f"{key}: give [B, T, 3, H, W] or [B, 3, H, W], not {[*frames.shape]}")
    return frames[:, None] if len(frames.shape) == 4 else frames


def as_uint8(frames: Any) -> Any:
    """Return the frames of a clip, uint8 or floats in [0, 1] as LeRobot has them, as uint8.

    Raises:
        InvalidRequest: The values are of another type or range.
    """
    array = to_array(frames)
    if array.dtype == np.uint8:
        return array
    low, high = (float(array.min()), float(array.max())) if array.size else (0.0, 0.0)
    if not (np.issubdtype(array.dtype, np.floating) and low >= 0 and high <= 1):
        raise InvalidRequest(
            "give frames of uint8 or of floats in [0, 1], without normalization; "
            f"got {array.dtype} in [{low:g}, {high:g}]"
        )
    return np.rint(array * 255).astype(np.uint8)


def _tasks(given: Any, default: str | None, count: int) -> list[str]:
    given = default if given is None else given
    if given is None:
        raise InvalidRequest("the batch has no task; set `task_key` or `default_task`")
    tasks = [given] if isinstance(given, str) else [*given]
    if len(tasks) not in {1, count}:
        raise InvalidRequest(f"{len(tasks)} tasks for {count} clips")
    return tasks * count if len(tasks) == 1 else tasks


def make_rewardfleet_pre_post_processors(
    config: Any,  # noqa: ARG001 - LeRobot's signature
    dataset_stats: Any = None,  # noqa: ARG001 - LeRobot's signature
) -> tuple[Any, Any]:
    """Return LeRobot's pipelines around the model, of a batch and of its rewards: no steps.

    Raises:
        ImportError: LeRobot is not installed.
    """
    processor = module_of_trainer("lerobot.processor", _INSTALL)
    of_rewards = processor.PolicyProcessorPipeline(
        steps=[],
        to_transition=processor.policy_action_to_transition,
        to_output=processor.transition_to_policy_action,
    )
    return processor.PolicyProcessorPipeline(steps=[]), of_rewards


def __getattr__(name: str) -> Any:
    classes = {"RewardFleetConfig": _config_class, "RewardFleetRewardModel": _model_class}
    if name not in classes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return classes[name]()
