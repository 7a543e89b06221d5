"""The configuration of LIBERO rewards, and the examples for RLinf."""

import json
import math

import pytest
from omegaconf import OmegaConf

from rewardfleet.adapters.libero import SUITES, RewardModelConfig

from ..conftest import DATA, table
from .libero_envs import ROOT

EXAMPLES = ROOT / "examples" / "rlinf"


def test_the_defaults_are_those_of_the_original_integration():
    """It does not have the first three, and has the next two beside its `reward_model`."""
    fields = RewardModelConfig.of({}).model_dump()
    assert math.isnan(fields.pop("fallback_score"))
    assert fields == json.loads((DATA / "adapters" / "libero_defaults.json").read_text())
    assert "hunter2" not in repr(RewardModelConfig.of({"api_key": "hunter2"}))


def test_an_endpoint_may_end_in_score():
    for given, stored in {
        "http://h:1/score": "http://h:1",
        "http://h:1/score/": "http://h:1",
        "http://h:1/video": "http://h:1/video",
        ("http://h:1/score", "http://h:2"): ("http://h:1", "http://h:2"),
    }.items():
        assert RewardModelConfig.of({"endpoint": given}).endpoint == stored


def test_of_the_configuration_of_an_environment_the_keys_about_rewards_are_read():
    environment = {"simulator_type": "libero", "max_episode_steps": 512, "reward_coef": 5}
    environment |= {"task_suite_name": "LIBERO_10", "use_rel_reward": True}
    environment["reward_model"] = {"enable": True, "timeout": 3, "backend_kwargs": None}
    config = RewardModelConfig.of(environment)
    assert (config.enable, config.timeout, config.backend_kwargs) == (True, 3, {})
    assert (config.reward_coef, config.use_rel_reward) == (5, True)
    assert config.task_suite_name == "libero_10"
    assert RewardModelConfig.of({"reward_model": None}).enable is False


def test_nodes_of_omegaconf_are_read_and_what_is_not_needed_is_not_resolved():
    options = {"score_mode": "auto", "stop": ["a", "b"]}
    env = {
        "reward_coef": "${coefficient}",
        "video_cfg": {"video_base_dir": "${runner.logger.log_path}/video"},
        "reward_model": {"endpoint": ["http://h:1/score", "http://h:2"], "backend_kwargs": options},
    }
    config = RewardModelConfig.of(OmegaConf.create({"coefficient": 3.0, "env": env}).env)
    assert (config.reward_coef, config.endpoint) == (3.0, ("http://h:1", "http://h:2"))
    assert config.backend_kwargs == options


def test_an_unknown_key_or_a_wrong_value_is_named():
    for given, message in table("libero_configs"):
        with pytest.raises(ValueError, match=message):
            RewardModelConfig.of(given)


def test_an_unknown_suite_is_refused_with_all_names():
    with pytest.raises(ValueError, match="no suite 'libero_spacial'") as failure:
        RewardModelConfig.of({"task_suite_name": "libero_spacial"})
    assert all(name in str(failure.value) for name in SUITES)


@pytest.mark.parametrize("suite", sorted({*SUITES} - {"libero_100"}))
def test_each_suite_has_an_example_for_rlinf(suite):
    assert len([*EXAMPLES.glob("*.yaml")]) == len(SUITES) - 1
    environment = OmegaConf.load(EXAMPLES / f"{suite}.yaml")
    config = RewardModelConfig.of(environment)
    assert config.task_suite_name == suite
    assert config.enable and config.fail_on_request_error
    original = {*RewardModelConfig.model_fields} - {"fallback_score", "blocking", "api_key"}
    next_to_it = {"reward_coef", "use_rel_reward", "task_suite_name"}
    assert environment["reward_model"].keys() == original - next_to_it, "what that RLinf reads"
    assert environment["max_episode_steps"] >= 200
