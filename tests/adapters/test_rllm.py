"""rLLM 0.3.0.pre (commit 9beb6e0): its evaluator and its reward function.

The stand-ins below have the fields of its types; `tests/third_party/test_rllm.py` runs its
engines with the types themselves.
"""

import dataclasses
import json
import sys
from types import SimpleNamespace

import pytest

from rewardfleet import Abstained
from rewardfleet.adapters.rllm import evaluator

from .conftest import ECHO, SUM, TESTS, install_modules

TASK = SimpleNamespace(id="0", instruction="Add.", metadata={"tests": json.dumps(TESTS)})


@pytest.fixture
def rllm(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = ("metadata", dict, dataclasses.field(default_factory=dict))
    fields = ["reward", "is_correct", "signals", metadata]
    output = dataclasses.make_dataclass("EvalOutput", fields)
    signal = dataclasses.make_dataclass("Signal", ["name", "value"])
    reward = dataclasses.make_dataclass("RewardOutput", ["reward", "metadata", "is_correct"])
    modules = {
        "rllm.eval.types": {"EvalOutput": output, "Signal": signal},
        "rllm.rewards.reward_types": {"RewardOutput": reward},
    }
    install_modules(monkeypatch, modules)


def episode(*steps: str, output: object = None, **artifacts: object) -> SimpleNamespace:
    """Return an episode of one trajectory whose steps have these responses of the model."""
    made = [SimpleNamespace(output=None, model_response=text) for text in steps]
    trajectory = SimpleNamespace(output=output, steps=made)
    return SimpleNamespace(artifacts=artifacts, trajectories=[trajectory])


def test_an_episode_is_scored_by_the_metadata_of_its_task(rllm, code_url: str):
    reward = evaluator("code", code_url)
    output = reward.evaluate(TASK, episode(answer=SUM))
    assert (output.reward, output.is_correct) == (1.0, True)
    signals = {each.name: each.value for each in output.signals}
    assert signals.pop("reward/cached") in (0.0, 1.0)
    assert signals == {"reward/failed": 0.0, "reward/abstained": 0.0, "reward/pass_rate": 1.0}
    half = reward.evaluate(TASK.metadata, episode(output=ECHO))  # as older evaluators are called
    assert (half.reward, half.is_correct) == (0.5, False)
    assert evaluator("code", code_url, correct_from=0.5).evaluate(TASK, episode(ECHO)).is_correct


def test_the_answer_is_found_where_rllm_looks_for_it(rllm, code_url: str):
    reward = evaluator("code", code_url)
    called = episode("no", SUM, "")  # the last turn called a tool
    for each in (episode("no", output=ECHO, answer=SUM), episode("no", output=SUM), called):
        assert reward.evaluate(TASK, each).reward == 1.0
    for each in (SimpleNamespace(artifacts={}, trajectories=[]), episode()):
        with pytest.raises(Abstained, match="no_answer"):
            reward.evaluate(TASK, each)


@pytest.mark.slow
def test_a_failure_that_is_replaced_is_marked(rllm, lost_url: str):
    replaced = evaluator("code", lost_url, timeout_s=0.3, on_failure=0.25)
    output = replaced.evaluate(TASK, episode(answer=SUM))
    assert (output.reward, output.is_correct) == (0.25, False)
    signals = {each.name: each.value for each in output.signals}
    assert signals == {"reward/failed": 1.0, "reward/abstained": 0.0, "reward/cached": 0.0}


@pytest.mark.skipif("rllm" in sys.modules, reason="rLLM is installed")
def test_without_rllm_the_error_names_the_command(code_url: str):
    with pytest.raises(ImportError, match=r"rllm.eval.types is not installed: pip install 'rllm"):
        evaluator("code", code_url).evaluate(TASK, episode(answer=SUM))
