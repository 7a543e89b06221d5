"""verl-agent's loop of episodes and its advantages, at the commit in sources.toml."""

import pytest

from .peers import took

pytestmark = pytest.mark.slow


async def test_a_missing_reward_is_dropped_by_the_filter_or_has_no_advantage():
    pytest.importorskip("torch")
    found = await took("verl_agent", "")
    filtered, within_groups = found["filtered"], found["within groups"]
    # The reward is at the second of two tokens. Groups: 1, 0, missing; 1, 1, missing.
    assert filtered["rewards"] == [[0, 1, 0], [0, 0, 0], [0, 1, 0], [0, 1, 0]]
    assert filtered["advantages"] == [0.5, -0.5, 0, 0]
    assert within_groups["advantages"] == [0.5, -0.5, 0, 0, 0, 0]
    assert within_groups["reward_valid"] == [True, True, False, True, True, False]
