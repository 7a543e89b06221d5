"""NeMo-RL (commit 7ea279a): its environment, as it is configured and registered.

`tests/third_party/test_nemo_rl.py` has the calls of `create_env` and `calculate_rewards`, and
`test_completion_text.py` the forms of conversations.
"""

import pickle
import sys
from types import SimpleNamespace

import pytest

from rewardfleet import InvalidRequest
from rewardfleet.adapters import nemo_rl
from rewardfleet.adapters.nemo_rl import ScoringEnvironment, register

from .conftest import install_modules


def test_an_invalid_configuration_is_refused():
    with pytest.raises(InvalidRequest, match="env.rewardfleet: give service and url"):
        ScoringEnvironment({})
    config = {"service": "code", "url": "http://127.0.0.1:18081"}
    with pytest.raises(TypeError, match="num_workers"):
        ScoringEnvironment({**config, "num_workers": 2})


def test_it_is_registered_with_the_python_of_the_training_script(monkeypatch: pytest.MonkeyPatch):
    environments: dict[str, str] = {}
    pythons: dict[str, str] = {}
    executables = SimpleNamespace(SYSTEM=sys.executable)
    registry = {"ACTOR_ENVIRONMENT_REGISTRY": pythons, "PY_EXECUTABLES": executables}
    modules = {"nemo_rl.distributed.ray_actor_environment_registry": registry}
    modules["nemo_rl.environments.utils"] = {"register_env": environments.__setitem__}
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
