"""slime's `batched_async_rm`, at the commit in sources.toml, with the code service."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from ..programs import FENCED, HALF, TESTS
from .peers import Peer, recorded

pytestmark = [pytest.mark.slow, pytest.mark.slice]


@recorded("slime")
def slime(peer: Peer) -> dict[str, Any]:
    """`batched_async_rm` of samples with `rm-type: remote_rm`."""
    from slime.rollout import rm_hub
    from slime.utils.types import Sample

    waits: list[float] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)

    # Its ten attempts would take 151 s or more.
    rm_hub.asyncio = SimpleNamespace(sleep=wait, gather=asyncio.gather)

    async def rewards(url: str, responses: list[str], label: object) -> list[float]:
        args = SimpleNamespace(custom_rm_path=None, rm_type="remote_rm", rm_url=f"{url}/slime")
        samples = [Sample(prompt="Add.", response=each, label=label) for each in responses]
        return await rm_hub.batched_async_rm(args, samples)

    async def failure(url: str, label: object) -> list[object]:
        waits.clear()
        try:
            return [await rewards(url, [FENCED], label)]
        except Exception as error:
            return [type(error).__name__, len(waits) + 1]

    async def run() -> dict[str, Any]:
        tests = json.dumps(TESTS)
        found = {
            "rewards": await rewards(peer.url, [FENCED, HALF, "", f"{HALF}<|im_end|>"], tests),
            "label that is no test": await failure(peer.url, "three"),
            "down": await failure(peer.down_url, tests),
        }
        await rm_hub._get_shared_session().close()
        return found

    return asyncio.run(run())


async def test_samples_get_their_rewards_and_a_failure_raises_after_ten_attempts(
    code_url: str, dead_url: str
):
    assert await slime(code_url, dead_url) == {
        "rewards": [1.0, 0.5, 0.0, 0.5],
        "label that is no test": ["ClientResponseError", 10],
        "down": ["ClientConnectorError", 10],
    }
