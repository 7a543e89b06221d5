"""CTRL's `RayPPOTrainer.fit`, at the commit in sources.toml, with the changes of its page."""

import pytest

from ..server.code.conftest import served_code
from .peers import took

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("closes")]


async def test_critiques_get_the_pass_rates_of_revisions_and_a_missing_reward_no_advantage():
    pytest.importorskip("torch")
    with served_code() as service:
        found = await took("ctrl", str(service.client.base_url).rstrip("/"))
    # The last critique is empty: no token of it has an advantage.
    assert found["up"]["rewards"] == [1.0, 0.5, 0.0, 0.0]
    assert found["up"]["advantages"] == pytest.approx([1.3056, 0.2611, -0.7833, 0.0], abs=1e-3)
    assert found["down, NaN"] == [0.0] * 4
    assert found["down"] == "raised"
