"""NeMo-RL (commit 7ea279a): its environment, called as `calculate_rewards` does, and registered.

`tests/third_party/test_nemo_rl.py` runs `create_env` and `calculate_rewards`, on a local Ray.
"""

import json
import pickle
import sys
from types import SimpleNamespace

import pytest

from rewardfleet import InvalidRequest
from rewardfleet.adapters import nemo_rl
from rewardfleet.adapters.nemo_rl import ScoringEnvironment, register

from .conftest import ECHO, SUM, TESTS, install_modules

INFO = {"ground_truth": json.dumps(TESTS)}


def conversation(response: str, *earlier: str) -> list[dict[str, str]]:
    """Return a message log, in which the environment has answered earlier responses."""
    turns = [("user", "Add.")]
    for text in earlier:
        turns += [("assistant", text), ("environment", "Try again.")]
    turns.append(("assistant", response))
    return [{"role": role, "content": text} for role, text in turns]


async def test_the_last_response_of_each_conversation_is_scored(code_url: str):
    torch = pytest.importorskip("torch")
    environment = ScoringEnvironment({"service": "code", "url": code_url})
    texts = [SUM, ECHO, "", "\0"]
    logs = [*map(conversation, texts), conversation(SUM, "no", ECHO)]
    # `calculate_rewards` unpacks the result, and indexes each of its parts by sample.
    observations, metadata, stops, rewards, terminateds, answers = await environment.step(
        logs, [INFO] * 5
    )
    assert rewards.tolist() == [1.0, 0.5, 0.0, 0.0, 1.0] and rewards.dtype == torch.float32
    assert terminateds.tolist() == [1.0] * 5
    assert observations == [{"role": "environment", "content": ""}] * 5
    assert metadata == [INFO] * 5 and stops == [None] * 5 and answers is None
    assert environment.global_post_process_and_metrics({}) == ({}, {})


def test_an_invalid_configuration_is_refused():
    with pytest.raises(InvalidRequest, match="env.rewardfleet: give service and url"):
        ScoringEnvironment({})
    config = {"service": "code", "url": "http://127.0.0.1:18081"}
    with pytest.raises(TypeError, match="num_workers"):
        ScoringEnvironment({**config, "num_workers": 2})


def test_it_is_registered_with_the_python_of_the_training_script(monkeypatch: pytest.MonkeyPatch):
    environments: dict[str, str] = {}
    pythons: dict[str, str] = {}
    modules = {
        "nemo_rl.distributed.ray_actor_environment_registry": {
            "ACTOR_ENVIRONMENT_REGISTRY": pythons,
            "PY_EXECUTABLES": SimpleNamespace(SYSTEM=sys.executable),
        },
        "nemo_rl.environments.utils": {"register_env": environments.__setitem__},
    }
    install_modules(monkeypatch, modules)
    register()
    actor = "rewardfleet.adapters.nemo_rl.Environment"
    assert environments == {"rewardfleet": actor} and pythons == {actor: sys.executable}


@pytest.mark.skipif("nemo_rl" in sys.modules, reason="NeMo-RL is installed")
def test_without_nemo_rl_the_error_says_where_it_is():
    with pytest.raises(ImportError, match=r"is not installed: see https://github.com/NVIDIA-NeMo"):
        register()


@pytest.mark.filterwarnings("ignore")  # of Ray and what it imports
def test_the_actor_class_can_be_sent_to_a_worker():
    cloudpickle = pytest.importorskip("ray.cloudpickle")
    actor = nemo_rl.Environment
    assert nemo_rl.Environment is actor and hasattr(actor, "options")
    sent = pickle.loads(cloudpickle.dumps(actor.__ray_metadata__.modified_class))
    assert hasattr(sent, "step")
