"""LeRobot 0.6.1: its reward model, found by the rules of its factory.

The stand-ins below have what the adapter uses of its classes. LeRobot itself is run in
tests/third_party/test_lerobot.py.
"""

import math
import sys
from typing import ClassVar

import numpy as np
import pytest

from rewardfleet import InvalidRequest
from rewardfleet.adapters import lerobot
from rewardfleet.adapters.lerobot import as_uint8
from rewardfleet_server.testing import FakeJudge

from .conftest import UNREACHABLE, install_modules

KEY = "observation.images.top"
TASK = "put the bowl on the plate"


class RewardModelConfig:
    registered: ClassVar[dict[str, type]] = {}

    @classmethod
    def register_subclass(cls, name: str):
        return lambda subclass: cls.registered.setdefault(name, subclass)


class PreTrainedRewardModel:
    def __init__(self, config: object) -> None:
        assert isinstance(config, RewardModelConfig)
        self.config = config

    def __init_subclass__(cls) -> None:
        assert cls.config_class and cls.name


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch):
    modules = {
        "lerobot.configs.rewards": {"RewardModelConfig": RewardModelConfig},
        "lerobot.rewards.pretrained": {"PreTrainedRewardModel": PreTrainedRewardModel},
    }
    install_modules(monkeypatch, modules)
    monkeypatch.setattr(RewardModelConfig, "registered", {})
    yield
    lerobot._config_class.cache_clear()
    lerobot._model_class.cache_clear()


def model_of(url: object, **options: object):
    return lerobot.RewardFleetRewardModel(lerobot.RewardFleetConfig(url=str(url), **options))


def test_the_names_are_those_that_the_factory_looks_for(installed):
    config = lerobot.RewardFleetConfig
    assert RewardModelConfig.registered == {"rewardfleet": config}
    assert config.__module__ == "rewardfleet.adapters.lerobot"
    assert lerobot.RewardFleetConfig is config
    with pytest.raises(AttributeError, match="RewardFleetPolicy"):
        _ = lerobot.RewardFleetPolicy


def test_clips_of_a_batch_get_rewards(installed, serve):
    torch = pytest.importorskip("torch")
    model = model_of(serve(FakeJudge()).base_url)
    assert model.name == "rewardfleet" and model.config_class is lerobot.RewardFleetConfig
    batch = {KEY: torch.rand(2, 5, 3, 32, 32), "task": [TASK, "turn on the stove"]}
    rewards = model.compute_reward(batch)
    assert rewards.shape == (2,) and rewards.dtype == torch.float32
    assert set(rewards.tolist()) <= {0.0, 1.0}
    assert model.compute_reward({KEY: batch[KEY][:, 0], "task": TASK}).shape == (2,)


def test_a_missing_reward_is_nan_or_raised(installed, lost_url: str):
    torch = pytest.importorskip("torch")
    batch = {KEY: torch.rand(2, 4, 3, 32, 32)}
    model = model_of(lost_url, default_task=TASK, timeout_s=0.3)
    assert model.compute_reward(batch).isnan().all()
    with pytest.raises(UNREACHABLE):
        model_of(lost_url, default_task=TASK, timeout_s=0.3, on_failure=None).compute_reward(batch)
    with pytest.raises(ValueError, match="success_threshold"):
        model_of(lost_url, success_threshold=2)
    assert math.isnan(lerobot.RewardFleetConfig().on_failure)


def test_a_batch_without_frames_or_tasks_is_invalid(installed):
    pytest.importorskip("torch")
    model = model_of("http://127.0.0.1:18080")
    with pytest.raises(InvalidRequest, match="no 'observation.images.top'; set `image_key`"):
        model.compute_reward({})
    frames = np.zeros((2, 4, 3, 8, 8), np.uint8)
    with pytest.raises(InvalidRequest, match="set `task_key` or `default_task`"):
        model.compute_reward({KEY: frames})
    with pytest.raises(InvalidRequest, match="3 tasks for 2 clips"):
        model.compute_reward({KEY: frames, "task": [TASK] * 3})


def test_frames_of_another_shape_or_range_are_invalid(installed):
    torch = pytest.importorskip("torch")
    model = model_of("http://127.0.0.1:18080", default_task=TASK)
    for frames, message in [
        (torch.randn(1, 2, 3, 8, 8), r"floats in \[0, 1\], without normalization; got float32"),
        (torch.zeros(3, 8, 8), r"give \[B, T, 3, H, W\] or .*, not \[3, 8, 8\]"),
        (torch.zeros(1, 2, 1, 8, 8), r"got uint8 \[2, 1, 8, 8\]"),
    ]:
        with pytest.raises(InvalidRequest, match=message):
            model.compute_reward({KEY: frames})


def test_floats_become_the_bytes_that_they_were():
    frames = np.random.default_rng(0).integers(0, 256, (4, 3, 8, 6), np.uint8)
    for given in (frames, np.float32(frames) / 255, frames / 255):
        assert np.array_equal(as_uint8(given), frames)
    for given in (
        frames / 100,
        -np.float32(frames),
        np.int64(frames),
        np.full((1, 3, 2, 2), math.nan),
    ):
        with pytest.raises(InvalidRequest, match="without normalization"):
            as_uint8(given)


@pytest.mark.skipif("lerobot" in sys.modules, reason="LeRobot is installed")
def test_without_lerobot_the_error_names_the_command():
    with pytest.raises(ImportError, match=r"is not installed: pip install 'lerobot>=0.6'"):
        _ = lerobot.RewardFleetConfig
