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

from .conftest import install_modules

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
    with pytest.raises(ValueError, match="success_threshold"):
        model_of("http://127.0.0.1:18080", success_threshold=2)


def test_a_batch_without_frames_or_tasks_or_with_others_is_invalid(installed):
    pytest.importorskip("torch")
    frames = np.zeros((2, 4, 3, 8, 8), np.uint8)
    for batch, message in (
        ({}, "no 'observation.images.top'; set `image_key`"),
        ({KEY: frames}, "set `task_key` or `default_task`"),
        ({KEY: frames, "task": [TASK] * 3}, "3 tasks for 2 clips"),
        (
            {KEY: frames - 0.5, "task": TASK},
            r"floats in \[0, 1\], without normalization; got float",
        ),
        ({KEY: frames[0, 0], "task": TASK}, r"give \[B, T, 3, H, W\] or .*, not \[3, 8, 8\]"),
        ({KEY: frames[:, :, :1], "task": TASK}, r"got uint8 \[4, 1, 8, 8\]"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            model_of("http://127.0.0.1:18080").compute_reward(batch)


def test_floats_become_the_bytes_that_they_were():
    frames = np.random.default_rng(0).integers(0, 256, (4, 3, 8, 6), np.uint8)
    for given in (frames, np.float32(frames) / 255, frames / 255):
        assert np.array_equal(as_uint8(given), frames)
    nothing = np.full((1, 3, 2, 2), math.nan)
    for given in (frames / 100, -np.float32(frames), np.int64(frames), nothing):
        with pytest.raises(InvalidRequest, match="without normalization"):
            as_uint8(given)


@pytest.mark.skipif("lerobot" in sys.modules, reason="LeRobot is installed")
def test_without_lerobot_the_error_names_the_command():
    with pytest.raises(ImportError, match=r"is not installed: pip install 'lerobot>=0.6'"):
        _ = lerobot.RewardFleetConfig
