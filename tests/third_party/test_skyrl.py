"""SkyRL-Agent's verifier `coder1` and its code interpreter, at the commit in sources.toml."""

import json
import os
import sys

import pytest

from ..programs import FENCED, HALF, RIGHT, TESTS, WRONG
from .peers import Peer, recorded
from .trainers import absent, bare

pytestmark = pytest.mark.slow


@recorded("skyrl")
def skyrl(peer: Peer) -> dict[str, list[object]]:
    """Return the rewards of texts, and what the model reads as the output of programs."""
    # Its own modules import the whole agent, search engines and browsers.
    for package in ("", ".tools", ".tasks", ".tasks.verifiers"):
        bare(f"skyrl_agent{package}")
    absent("litellm")
    sys.modules["json5"] = json  # which the arguments of the calls below are as well
    os.environ |= {"CODER1_EXEC": "sandboxfusion", "SANDBOX_FUSION_SERVERS": "coder1.invalid"}
    from skyrl_agent.tasks.verifiers.coder1 import compute_score
    from skyrl_agent.tools.sandbox_fusion import CodeInterpreter

    cases = TESTS["cases"]
    truth = {f"{name}puts": [each[f"std{name}"] for each in cases] for name in ("in", "out")}

    def used(url: str, texts: list[str], programs: list[str]) -> dict[str, list[object]]:
        # `coder1` sends its requests to port 8080 only.
        os.environ |= {"http_proxy": url, "no_proxy": "127.0.0.1"}
        tool = CodeInterpreter()
        tool.sandbox_url = url
        return {
            "rewards": [compute_score(each, json.dumps(truth), {})["score"] for each in texts],
            "outputs": [tool.call(json.dumps({"code": each})) for each in programs],
        }

    fenced = [f"```python\n{each}\n```" for each in (RIGHT, HALF, WRONG)]
    up = used(peer.url, [FENCED, *fenced, "Hm."], ["print(1 + 1)", "1 + 1"])
    return {"up": up, "down": used(peer.down_url, [FENCED], ["print(1 + 1)"])}


async def test_without_a_service_the_reward_is_0_and_the_model_reads_no_output(
    code_url: str, dead_url: str
):
    assert await skyrl(code_url, dead_url) == {
        "up": {"rewards": [1.0, 1.0, 0.0, 0.0, 0.0], "outputs": ["2\n", "2\n"]},
        "down": {"rewards": [0.0], "outputs": ["no stdout here"]},
    }
