"""Rewards of episodes: pure functions over numpy arrays.

The episode service, the adapters for trainers, and notebooks all use them. A batch of any kinds
flows through `validate_batch`, `compute_rewards` and `aggregate`; `score_episodes` calls all three.
The other functions take arrays:

```python
from rewardfleet.episodes import efficiency
efficiency([1, 1, 0], [100, 500, 20], 500)  # 0.8333, 0.5, 0
```
"""

from .aggregate import BatchResult, aggregate, score_episodes
from .clustering import dtw_distances, majority_vote, resample, resampled_distances, single_linkage
from .groups import Grouping, all_equal, leave_one_out, most_diverse, most_efficient, normalize
from .kinds import Rewards, compute_rewards
from .motion import Trajectories, commanded_path, low_energy, short_path, smoothness
from .rewards import by_length, discounted, efficiency, hybrid, shaping, success, visual
from .running import RunningMeanStd
from .temperatures import TemperatureBin, TemperatureSchedule, by_temperature, spread_temperatures
from .validation import check_episode, validate_batch

__all__ = [
    "BatchResult",
    "Grouping",
    "Rewards",
    "RunningMeanStd",
    "TemperatureBin",
    "TemperatureSchedule",
    "Trajectories",
    "aggregate",
    "all_equal",
    "by_length",
    "by_temperature",
    "check_episode",
    "commanded_path",
    "compute_rewards",
    "discounted",
    "dtw_distances",
    "efficiency",
    "hybrid",
    "leave_one_out",
    "low_energy",
    "majority_vote",
    "most_diverse",
    "most_efficient",
    "normalize",
    "resample",
    "resampled_distances",
    "score_episodes",
    "shaping",
    "short_path",
    "single_linkage",
    "smoothness",
    "spread_temperatures",
    "success",
    "validate_batch",
    "visual",
]
