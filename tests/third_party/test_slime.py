"""slime's `batched_async_rm`, at the commit in sources.toml, with the code service."""

import pytest

from ..server.code.conftest import served_code
from .peers import took

pytestmark = [pytest.mark.slow, pytest.mark.slice]


async def test_samples_get_their_rewards_and_a_failure_raises_after_ten_attempts():
    with served_code() as service:
        found = await took("slime", str(service.client.base_url).rstrip("/"))
    assert found == {
        "rewards": [1.0, 0.5, 0.0, 0.5],
        "label that is no test": ["ClientResponseError", 10],
        "down": ["ClientConnectorError", 10],
    }
