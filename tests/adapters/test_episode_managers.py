"""The reward managers of verl-agent and SimpleVLA-RL, on verl's DataProto or a stand-in for it.

Without torch, numpy arrays stand in for tensors, as the few functions used have the same names.
"""

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from rewardfleet.adapters.simplevla import (
    RobRewardManager,
    at_temperatures,
    forward_test_time_rl,
    sample_temperatures,
)
from rewardfleet.adapters.verl_agent import EpisodeRewardManager, reward_manager_of

try:
    import torch
except ModuleNotFoundError:
    torch = SimpleNamespace(
        float32=np.float32,
        float64=np.float64,
        zeros_like=np.zeros_like,
        as_tensor=lambda values, dtype=None, device=None: np.asarray(values, dtype),
    )


@pytest.fixture(autouse=True)
def _torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)


@dataclass
class StandIn:
    """The two fields of a DataProto that reward managers read."""

    batch: dict
    non_tensor_batch: dict = field(default_factory=dict)


def proto(tensors: dict, others: dict | None = None):
    """Return a real DataProto if verl is installed, else a stand-in."""
    tensors = {name: torch.as_tensor(np.asarray(values)) for name, values in tensors.items()}
    others = {name: np.array(values, dtype=object) for name, values in (others or {}).items()}
    try:
        from verl import DataProto  # noqa: PLC0415 - where it is installed
    except ModuleNotFoundError:
        return StandIn(tensors, others)
    return DataProto.from_dict(tensors=tensors, non_tensors=others)


class Tokenizer:
    """Records its calls, and decodes tokens to their numbers."""

    def __init__(self) -> None:
        self.decoded: list[tuple[list[int], bool]] = []

    def decode(self, tokens, skip_special_tokens=True) -> str:
        self.decoded.append(([int(token) for token in tokens], skip_special_tokens))
        return " ".join(str(int(token)) for token in tokens)


#: Prompts of two tokens, padded on the left; responses of four, on the right.
MASKS = [[1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0]]


def rollouts(**others: object):
    tensors = {
        "prompts": np.full((4, 2), 7),
        "responses": np.arange(16).reshape(4, 4),
        "attention_mask": MASKS,
    }
    fields = {
        "episode_rewards": [10.0, 6.0, 5.0, 5.0],
        "episode_lengths": [5, 3, 1, 1],
        "data_source": ["alfworld"] * 4,
        **others,
    }
    return proto(tensors, fields)


def as_list(tensor) -> list:
    return np.asarray(tensor).tolist()


def test_the_reward_is_at_the_last_valid_token_and_nowhere_else():
    rewards = EpisodeRewardManager(None, 0)(rollouts())
    assert as_list(rewards) == [[0, 0, 0, 10], [0, 6, 0, 0], [0] * 4, [0] * 4]
    assert rewards.dtype == torch.float32
    assert rewards.device == rollouts().batch["responses"].device


def test_rows_without_a_response_get_no_reward_and_are_reported(caplog: pytest.LogCaptureFixture):
    """The manager of verl-agent writes their reward at the last token, by the index -1."""
    answer = EpisodeRewardManager(None, 0)(rollouts(), return_dict=True)
    assert as_list(answer["reward_tensor"])[2:] == [[0] * 4, [0] * 4]
    assert answer["reward_extra_info"] == {"reward_placed": [True, True, False, False]}
    assert "rows [2, 3]" in caplog.text


def test_rewards_can_be_divided_by_the_length():
    rewards = EpisodeRewardManager(None, 0, normalize_by_length=True)(rollouts())
    assert as_list(rewards)[:2] == [[0, 0, 0, 2], [0, 2, 0, 0]]
    with pytest.raises(ValueError, match="above 0"):
        EpisodeRewardManager(None, 0, True)(rollouts(episode_lengths=[1, 0, 1, 1]))
    with pytest.raises(ValueError, match="row 1 is nan"):
        EpisodeRewardManager(None, 0)(rollouts(episode_rewards=[1, float("nan"), 1, 1]))


def test_existing_rm_scores_are_returned_unchanged():
    data = rollouts()
    data.batch["rm_scores"] = torch.as_tensor(np.ones((4, 4)), dtype=torch.float64)
    scores = EpisodeRewardManager(None, 0)(data)
    assert scores.dtype == torch.float64 and as_list(scores) == [[1] * 4] * 4
    assert list(EpisodeRewardManager(None, 0)(data, return_dict=True)) == ["reward_tensor"]


def test_nothing_is_decoded_when_nothing_is_printed(capsys: pytest.CaptureFixture[str]):
    tokenizer = Tokenizer()
    EpisodeRewardManager(tokenizer, 0)(rollouts())
    assert not tokenizer.decoded and not capsys.readouterr().out


def test_a_sample_of_each_source_is_printed_with_special_tokens(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("rewardfleet.adapters.verl_agent.random.random", lambda: 0.0)
    tokenizer = Tokenizer()
    EpisodeRewardManager(tokenizer, 1)(rollouts(data_source=["a", "b", "a", "b"]))
    assert tokenizer.decoded == [
        ([7, 7], False), ([0, 1, 2, 3], False), ([7], False), ([4, 5], False)
    ]  # fmt: skip
    out = capsys.readouterr().out
    assert "[a][response] 0 1 2 3" in out and "[b][score] 6.0" in out
    monkeypatch.setattr("rewardfleet.adapters.verl_agent.random.random", lambda: 0.5)
    EpisodeRewardManager(tokenizer, 1)(rollouts())
    assert not capsys.readouterr().out, "only a sample is printed"


def test_the_config_names_the_reward_manager():
    assert reward_manager_of(SimpleNamespace(reward_model={})) is EpisodeRewardManager
    with pytest.raises(NotImplementedError, match="naive"):
        reward_manager_of(SimpleNamespace(reward_model={"reward_manager": "naive"}))


# SimpleVLA-RL


class Config(dict):
    """A config like OmegaConf's: fields as attributes, and `get`."""

    __getattr__ = dict.__getitem__


def config(**fields: object) -> Config:
    model = Config(action_token_len=2, max_steps=8)
    return Config(actor_rollout_ref=Config(model=model), verifier=Config(reward_coef=5), **fields)


def robot_rollouts(others: dict | None = None):
    """Return four rollouts of up to eight steps in two chunks, of two tokens per step."""
    tensors = {
        "responses": np.zeros((4, 2, 8), np.int64),
        "complete": [True, True, False, False],
        "finish_step": [2, 8, 8, 0],
    }
    return proto(tensors, others)


def test_the_reward_is_at_the_last_action_token_times_its_coefficient():
    data = robot_rollouts()
    rewards, metrics = RobRewardManager(0, config())(data)
    expected = np.zeros((4, 16))
    expected[0, 3] = expected[1, 15] = 1.0
    assert as_list(rewards["gt_scores"]) == expected.tolist()
    assert as_list(rewards["all"]) == (5 * expected).tolist()
    assert metrics == {"all": 0.5, "verifier": 0.5, "reward_all": 2.5}
    assert as_list(data.batch["acc"]) == [1, 1, 0, 0]
    assert as_list(data.batch["format_correctness"]) == [1] * 4


def test_test_time_rl_rewards_efficiency_relative_to_each_tasks_limit():
    manager = RobRewardManager(0, config(test_time_rl=True))
    scores, accuracy, _, _ = manager.verify(robot_rollouts())
    assert scores == pytest.approx([0.8, 0.5, 0, 0])
    assert accuracy == {"all": 0.5}
    own = robot_rollouts({"max_steps": [2, 16, 8, 8]})
    assert manager.verify(own)[0] == pytest.approx([0.5, 1 / 1.5, 0, 0])
    with pytest.raises(ValueError, match="steps are 0 to max_steps"):
        manager.verify(robot_rollouts({"max_steps": [1, 8, 8, 8]}))


def test_the_settings_of_test_time_rl_are_forwarded():
    meta_info: dict = {}
    forward_test_time_rl(Config(), meta_info)
    assert meta_info == {}
    forward_test_time_rl(Config(test_time_rl=True, base_temperature=1.0), meta_info)
    assert meta_info == {
        "enable_test_time_rl": True, "base_temperature": 1.0, "temperature_range": 0.3
    }  # fmt: skip


def test_each_sample_gets_its_own_temperature():
    """The original TTRL integration uses the first temperature for all of them."""
    meta_info = {"n_samples": 4}
    forward_test_time_rl(Config(test_time_rl=True), meta_info)
    temperatures = sample_temperatures(meta_info, 8)
    assert temperatures == [0.6, 0.7, 0.8, 0.9] * 2
    logits = torch.as_tensor(np.ones((8, 3, 5)), dtype=torch.float32)
    scaled = np.asarray(at_temperatures(logits, temperatures))
    assert scaled[:, 0, 0] == pytest.approx([1 / each for each in temperatures])
    assert len(set(scaled[:4, 0, 0].tolist())) == 4
    assert sample_temperatures({"n_samples": 4}, 8) is None
    with pytest.raises(ValueError, match="7 rows"):
        sample_temperatures(meta_info, 7)
