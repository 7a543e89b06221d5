"""LIBERO: rewards for episodes in a vector of environments, scored while the simulator continues.

`LiberoRewardWrapper` needs Gymnasium, and is imported on first use; the rest needs numpy only.
"""

from typing import TYPE_CHECKING, Any

from rewardfleet.adapters._rows import module_of_trainer

from .config import SUITES as SUITES
from .config import RewardModelConfig as RewardModelConfig
from .frames import Orientation as Orientation
from .rewards import EpisodeReward as EpisodeReward
from .rewards import LiberoRewards as LiberoRewards
from .rewards import MissingRewardError as MissingRewardError
from .rewards import episode_metrics as episode_metrics

if TYPE_CHECKING:
    from .wrapper import LiberoRewardWrapper as LiberoRewardWrapper


def __getattr__(name: str) -> Any:
    if name != "LiberoRewardWrapper":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module_of_trainer("gymnasium", "pip install 'gymnasium>=1.1'")
    from .wrapper import LiberoRewardWrapper  # noqa: PLC0415 - needs Gymnasium

    return LiberoRewardWrapper
