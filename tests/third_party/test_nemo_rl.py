"""NeMo-RL's `create_env` and `calculate_rewards`, at the commit in sources.toml."""

import pytest

from ..server.code.conftest import served_code
from .peers import took

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("closes")]


async def test_conversations_get_their_rewards_and_a_failure_ends_the_step():
    pytest.importorskip("torch")
    with served_code() as service:
        found = await took("nemo_rl", str(service.client.base_url).rstrip("/"))
    assert found == {"rewards": [1.0, 0.5, 0.0, 0.5], "down is one of ours": True}
