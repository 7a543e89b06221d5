"""Rewards for tool use under a budget: pure functions over answers and numpy arrays.

```python
from rewardfleet.tool_use import score_answer
from rewardfleet.wire.tools import ToolsOptions
score_answer(response, ground_truth, ToolsOptions()).task
```
"""

from .advantages import advantages
from .answer import GroundTruth, ToolCall, parse_answer, parse_ground_truth
from .correctness import strict_correctness, strict_format
from .lagrange import update, warning_of
from .score import score_answer
from .usage import cost_of, family_by_patterns, usage_of

__all__ = [
    "GroundTruth",
    "ToolCall",
    "advantages",
    "cost_of",
    "family_by_patterns",
    "parse_answer",
    "parse_ground_truth",
    "score_answer",
    "strict_correctness",
    "strict_format",
    "update",
    "usage_of",
    "warning_of",
]
