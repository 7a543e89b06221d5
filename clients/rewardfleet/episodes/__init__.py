"""What episodes are worth: pure functions over numpy arrays, the same for all who reckon.

The episode service, the trainers' adapters and a notebook use these. `measure` and `settle` take
a whole batch of any kinds; the functions below them take arrays.

```python
from rewardfleet.episodes import efficiency
efficiency([1, 1, 0], [100, 500, 20], 500)  # 0.8333, 0.5, 0
```
"""

from .groups import Grouping, all_equal, most_diverse, most_efficient, normalise
from .measure import Measured, measure
from .motion import Trajectories, commanded_path, energy, path_length, smoothness
from .rewards import (
    Running,
    by_length,
    discounted,
    efficiency,
    hybrid,
    shaping,
    success,
    visual,
)
from .settle import Settled, settle
from .similar import clusters, dtw_distances, majority, resampled, resampled_distances
from .temperatures import Schedule, signal_of_diversity, signal_of_success, spread

__all__ = [
    "Grouping",
    "Measured",
    "Running",
    "Schedule",
    "Settled",
    "Trajectories",
    "all_equal",
    "by_length",
    "clusters",
    "commanded_path",
    "discounted",
    "dtw_distances",
    "efficiency",
    "energy",
    "hybrid",
    "majority",
    "measure",
    "most_diverse",
    "most_efficient",
    "normalise",
    "path_length",
    "resampled",
    "resampled_distances",
    "settle",
    "shaping",
    "signal_of_diversity",
    "signal_of_success",
    "smoothness",
    "spread",
    "success",
    "visual",
]
