"""SimpleVLA-RL's `RayTrainer.fit`, at the commit in sources.toml, with the changes of its page."""

import pytest

from .peers import took

pytestmark = pytest.mark.slow


async def test_successes_get_their_efficiency_and_a_failed_environment_does_not_count():
    pytest.importorskip("torch")
    found = await took("simplevla", "")
    assert found["temperatures"] == [0.6, 0.7, 0.8, 0.9]
    # A success after 2 and after all 8 steps, a failure, and a row that fills up the batch.
    assert found["rewards"] == pytest.approx([0.8, 0.5, 0.0, 0.0])
    assert found["advantages"] == pytest.approx([0.9073, 0.1650, -1.0722, 0.0], abs=1e-3)
