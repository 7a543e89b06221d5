"""OpenRLHF's `SingleTurnAgentExecutor`, at the commit in sources.toml, with two URLs."""

import asyncio
import json
from types import SimpleNamespace

import pytest

from ..programs import TESTS, TEXTS
from .peers import Peer, recorded
from .trainers import byte_tokenizer

pytestmark = pytest.mark.slow

PROMPT = "<|im_start|>user\nAdd the numbers of a line.<|im_end|>\n"


@recorded("openrlhf_0_11_0")
async def openrlhf(peer: Peer) -> dict[str, object]:
    """Return the rewards of samples, whose prompts are whole, or only have their last bytes."""
    from openrlhf.utils import agent

    assert not hasattr(agent, "cycle")  # as in later releases, which send no empty lists
    tokenizer = byte_tokenizer()

    async def rewards(url: str, texts: list[str], prompt_tokens: int) -> list[object]:
        executor = agent.SingleTurnAgentExecutor([f"{url}/get_reward"] * 2)

        async def reward(text: str) -> object:
            tokens = tokenizer.encode(text, add_special_tokens=False)

            async def generate(*_: object, **__: object) -> SimpleNamespace:
                output = SimpleNamespace(token_ids=tokens, finish_reason="stop")
                return SimpleNamespace(outputs=[output])

            engine = SimpleNamespace(generate=generate)
            sampling = SimpleNamespace(max_tokens=len(tokens) + 1, logprobs=None)
            longest = prompt_tokens + sampling.max_tokens
            sample = [PROMPT, json.dumps(TESTS), sampling, longest, tokenizer, engine]
            return (await executor.execute(*sample))["reward"]  # a list, or None

        return await asyncio.gather(*map(reward, texts))

    return {
        "whole": await rewards(peer.url, [*TEXTS], len(PROMPT)),
        "truncated": await rewards(peer.url, [*TEXTS], 20),
        "down": await rewards(peer.down_url, [*TEXTS][:1], len(PROMPT)),
    }


async def test_samples_get_their_rewards_also_with_a_truncated_prompt_and_none_without_a_service(
    code_url: str, dead_url: str
):
    assert await openrlhf(code_url, dead_url) == {
        "whole": [[each] for each in TEXTS.values()],
        "truncated": [[each] for each in TEXTS.values()],
        "down": [None],
    }
