"""SkyRL-Agent (commit a956457): its verifier `coder1` and its code interpreter."""

import json
import os
import socket
import sys
from collections.abc import Iterator

import pytest

from ..programs import FENCED, HALF, RIGHT, TESTS, WRONG
from ..server.processes import service_process
from .trainers import PEERS, absent, bare, in_process, needs_clients, needs_peer

pytestmark = [needs_clients, needs_peer("skyrl"), pytest.mark.slow]


@pytest.fixture
def server() -> Iterator[str]:
    """Return an address of this machine with a service on port 8080, as `coder1` has no other."""
    address = f"127.8.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
    with socket.socket() as probe:
        if probe.connect_ex((address, 8080)) == 0:
            pytest.skip("another program has port 8080")
    with service_process("code", "--host", address, "--port", "8080"):
        yield address


@in_process
def used(server: str, texts: list[str], programs: list[str]) -> dict[str, list[object]]:
    """Return the rewards of texts, and what the model reads as the output of programs."""
    sys.path.insert(0, str(PEERS / "skyrl/skyrl-agent"))
    # Its own modules import the whole agent, search engines and browsers.
    for package in ("", ".tools", ".tasks", ".tasks.verifiers"):
        bare(f"skyrl_agent{package}")
    absent("litellm")
    sys.modules["json5"] = json  # which the arguments of the calls below are as well
    os.environ |= {"CODER1_EXEC": "sandboxfusion", "SANDBOX_FUSION_SERVERS": server}
    os.environ["SANDBOX_FUSION_URL"] = f"http://{server}:8080"
    from skyrl_agent.tasks.verifiers.coder1 import compute_score
    from skyrl_agent.tools.sandbox_fusion import CodeInterpreter

    pairs = [(each["stdin"], each["stdout"]) for each in TESTS["cases"]]
    inputs, outputs = zip(*pairs, strict=True)
    truth = json.dumps({"inputs": inputs, "outputs": outputs})
    scores = [compute_score(text, truth, {}) for text in texts]
    tool = CodeInterpreter()
    return {
        "rewards": [each["score"] for each in scores],
        "outputs": [tool.call(json.dumps({"code": program})) for program in programs],
    }


def test_coder1_and_the_code_interpreter_use_the_service(server: str):
    fenced = [f"```python\n{each}\n```" for each in (RIGHT, HALF, WRONG)]
    found = used(server, [FENCED, *fenced, "Hm."], ["print(1 + 1)", "1 + 1"])
    assert found["rewards"] == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert found["outputs"] == ["2\n", "2\n"]


def test_without_a_service_the_reward_is_0_and_the_model_reads_no_output():
    assert used("127.8.0.0", [FENCED], ["print(1 + 1)"]) == {
        "rewards": [0.0],
        "outputs": ["no stdout here"],
    }
