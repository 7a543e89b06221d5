"""The reward manager of verl-agent, on verl's DataProto or a stand-in for it.

Without torch, numpy arrays stand in for tensors, as the few functions used have the same names.
"""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from rewardfleet.adapters.verl_agent import (
    EpisodeRewardManager,
    filter_group_data,
    reward_manager_of,
)

from .standin import DataProto

try:
    import torch
except ModuleNotFoundError:
    torch = SimpleNamespace(float32=np.float32, float64=np.float64, bool=np.bool_)
    torch.zeros_like = np.zeros_like
    torch.as_tensor = lambda values, dtype=None, device=None: np.asarray(values, dtype)


@pytest.fixture(autouse=True)
def _torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)


def proto(tensors: dict, others: dict | None = None):
    """Return a real DataProto if verl is installed, else a stand-in."""
    tensors = {name: torch.as_tensor(np.asarray(values)) for name, values in tensors.items()}
    others = {name: np.array(values, dtype=object) for name, values in (others or {}).items()}
    try:
        import verl  # noqa: PLC0415 - where it is installed
    except ModuleNotFoundError:
        return DataProto(tensors, others)
    return verl.DataProto.from_dict(tensors=tensors, non_tensors=others)


#: Prompts of two tokens, padded on the left; responses of four, on the right.
MASKS = [[1, 1, 1, 1, 1, 1], [0, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0]]


def rollouts(**others: object):
    tensors = {"prompts": np.full((4, 2), 7), "responses": np.arange(16).reshape(4, 4)}
    fields = {"episode_rewards": [10.0, 6.0, 5.0, 5.0], "episode_lengths": [5, 3, 1, 1]}
    return proto({**tensors, "attention_mask": MASKS}, {**fields, **others})


def as_list(tensor) -> list:
    return np.asarray(tensor).tolist()


def test_the_reward_is_at_the_last_valid_token_and_rows_without_one_are_reported(caplog):
    """The manager of verl-agent writes their reward at the last token, by the index -1."""
    answer = EpisodeRewardManager(None, 0)(rollouts(), return_dict=True)
    rewards = answer["reward_tensor"]
    assert as_list(rewards) == [[0, 0, 0, 10], [6, 0, 0, 0], [0] * 4, [0] * 4]
    assert rewards.dtype == torch.float32
    assert rewards.device == rollouts().batch["responses"].device
    placed = {"reward_placed": [True, True, False, False], "reward_valid": [True] * 4}
    assert answer["reward_extra_info"] == placed
    assert "rows [2, 3]" in caplog.text


def test_rewards_can_be_divided_by_the_length():
    rewards = EpisodeRewardManager(None, 0, normalize_by_length=True)(rollouts())
    assert as_list(rewards)[:2] == [[0, 0, 0, 2], [2, 0, 0, 0]]
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


def test_the_config_names_the_reward_manager():
    default = reward_manager_of(SimpleNamespace(reward_model={}))(None, num_examine=0)
    assert (default.normalization_type, default.kind) == ("none", "return")
    named = {"normalization_type": "running", "kind": "visual", "reward_manager": "episode"}
    manager = reward_manager_of(SimpleNamespace(reward_model=named))(tokenizer=None, num_examine=1)
    assert (manager.normalization_type, manager.kind) == ("running", "visual")
    with pytest.raises(NotImplementedError, match="naive"):
        reward_manager_of(SimpleNamespace(reward_model={"reward_manager": "naive"}))


def test_unknown_settings_are_refused_at_once():
    for arguments, message in (
        ({"normalization_type": "std"}, "group_std, leave_one_out, running; not 'std'"),
        ({"kind": "video"}, "return, visual, hybrid; not 'video'"),
        ({"normalize_by_length": True, "normalization_type": "running"}, "is 'running'"),
    ):
        with pytest.raises(ValueError, match=message):
            EpisodeRewardManager(None, 0, **arguments)


def steps_of(rewards: list[float], rows: list[int], group: list[str], **others: list):
    """Return one row per step, as verl-agent does: each row has the reward of its episode."""
    count = sum(rows)
    tensors = {"prompts": np.full((count, 2), 7), "responses": np.zeros((count, 3), np.int64)}
    tensors["attention_mask"] = np.ones((count, 5), np.int64)
    columns = {"episode_rewards": rewards, "uid": group, "episode_lengths": rows, **others}
    columns["traj_uid"] = [f"t{index}" for index in range(len(rows))]
    of_rows = [at for at, times in enumerate(rows) for _ in range(times)]
    return proto(tensors, {name: [each[at] for at in of_rows] for name, each in columns.items()})


NAN = float("nan")


@pytest.mark.parametrize(
    ("normalization", "expected"),
    [
        ("none", [1, 0, 0, 3]),
        ("length", [1 / 3, 0, 0, 1.5]),
        ("group_mean", [0.5, -0.5, -1.5, 1.5]),
        ("group_std", [0.5 / 0.5**0.5, -0.5 / 0.5**0.5, -1.5 / 4.5**0.5, 1.5 / 4.5**0.5]),
        ("leave_one_out", [1, -1, -3, 3]),
        ("running", [0, -1 / 1.5**0.5, -1 / 1.5**0.5, 2 / 1.5**0.5]),
    ],
)
def test_each_episode_counts_once_however_many_steps_it_has(normalization, expected):
    data = steps_of([1, 0, 0, 3], rows=[3, 1, 1, 2], group=["a", "a", "b", "b"])
    rewards = EpisodeRewardManager(None, 0, normalization_type=normalization)(data)
    placed = as_list(rewards[:, 2])
    assert placed == pytest.approx(np.repeat(expected, [3, 1, 1, 2]).tolist(), abs=1e-5)
    assert not np.asarray(rewards)[:, :2].any()


def test_running_statistics_go_on_over_batches():
    manager = EpisodeRewardManager(None, 0, normalization_type="running")
    manager(steps_of([0, 4], rows=[1, 1], group=["a", "a"]))
    second = manager(steps_of([2, 2], rows=[1, 1], group=["b", "b"]))
    assert as_list(second[:, 2]) == pytest.approx([0, 0], abs=1e-5), "the mean of all four is 2"


@pytest.mark.parametrize("normalization", ["group_mean", "group_std", "leave_one_out"])
def test_a_missing_reward_does_not_count_in_its_group(normalization, caplog):
    """Nor in the trainer's mean over episodes without its deviation, as DrMAS has it."""
    manager = EpisodeRewardManager(None, 0, normalization_type=normalization)
    group, counts = ["a"] * 4, [2, 1, 2, 1]
    valid = as_list(manager(steps_of([1, 0, 1], [2, 1, 1], group[:3]))[:, 2])
    answer = manager(steps_of([1, 0, NAN, 1], counts, group), return_dict=True)
    rewards = as_list(answer["reward_tensor"][:, 2])
    assert rewards[:3] + rewards[5:] == valid
    assert rewards[3:5] == [0, 0]
    assert np.mean([rewards[at] for at in (0, 2, 3, 5)]) == pytest.approx(0, abs=1e-6)
    assert answer["reward_extra_info"]["reward_valid"] == [True] * 3 + [False] * 2 + [True]
    assert "2 of 6 rows have no reward" in caplog.text
    quartiles = {"p0": 0, "p25": 0.75, "p50": 1, "p75": 1, "p100": 1}
    named = {f"reward/{name}": value for name, value in quartiles.items()}
    assert manager.metrics == pytest.approx({"reward/failed": 1 / 3, **named})
    with pytest.raises(ValueError, match="row 3 is nan; drop it with filter_group_data"):
        EpisodeRewardManager(None, 0)(steps_of([1, 0, NAN, 1], counts, group))


def test_a_visual_reward_is_the_return_times_the_score_of_the_video():
    scores = [0.5, 1.0, {"score": 0.25, "status": "ok"}, {"score": None, "status": "abstained"}]
    data = steps_of([4, 4, 4, 4], [1] * 4, ["a"] * 4, visual_success=scores)
    manager = EpisodeRewardManager(None, 0, kind="visual", normalization_type="group_mean")
    mean = (2 + 4 + 1) / 3
    assert as_list(manager(data)[:, 2]) == pytest.approx([2 - mean, 4 - mean, 1 - mean, 0])
    with pytest.raises(ValueError, match="row 3 is nan"):
        EpisodeRewardManager(None, 0, kind="visual")(data)
    with pytest.raises(ValueError, match="in \\[0, 1\\]"):
        manager(steps_of([4, 4], [1] * 2, ["a"] * 2, visual_success=[0.5, 1.5]))


def test_a_hybrid_reward_places_steps_at_their_tokens_and_the_episode_at_the_last():
    """The original analysis places steps at tokens 0, 1, 2 …, wherever they end."""
    manager = EpisodeRewardManager(None, 0, kind="hybrid")
    own = steps_of([10, 20], [2, 1], ["a", "a"])
    own.non_tensor_batch["rewards"] = np.array([1, 1, 2], dtype=object)
    assert as_list(manager(own)) == [[0, 0, 11], [0, 0, 11], [0, 0, 22]]
    given = {"step_rewards": [[1, 2], [3, 4, 5]], "step_token_ends": [[0, 2], [0, 1, 2]]}
    data = steps_of([10, 20], [1, 1], ["a", "a"])
    for name, lists in given.items():
        data.non_tensor_batch[name] = np.array(lists, dtype=object)
    assert as_list(manager(data)) == [[1, 0, 12], [3, 4, 25]]
    data.non_tensor_batch["step_token_ends"][1] = [0, 1, 3]
    with pytest.raises(ValueError, match="row 1 has 3 steps, at the tokens \\[0, 1, 3\\]"):
        manager(data)


def filtered(rewards: list[float], groups: str, *, last_try: bool = False, **settings: float):
    """Return the indices of the episodes that `filter_group_data` keeps."""
    count = len(rewards)
    config = SimpleNamespace(algorithm=SimpleNamespace(filter_groups=settings))
    names = np.array([f"t{index}" for index in range(count)], dtype=object)
    pairs = zip(groups, names, strict=True)
    kept = filter_group_data(
        batch_list=[[{"uid": group, "traj_uid": name}] * 2 for group, name in pairs],
        episode_rewards=np.array(rewards, np.float32),
        episode_lengths=np.arange(count, dtype=np.float32),
        success={"success_rate": np.arange(count), "of_one_task": np.zeros(1)},
        traj_uid=names,
        tool_callings=np.arange(count),
        config=config,
        last_try=last_try,
    )
    batch_list, _, lengths, success, traj_uid, calls = kept
    indices = lengths.astype(int).tolist()
    kept_names = [each[0]["traj_uid"] for each in batch_list]
    assert kept_names == traj_uid.tolist() == [f"t{i}" for i in indices]
    assert success["success_rate"].tolist() == calls.tolist() == indices
    other_length = {"of_one_task"} if last_try else set()
    assert set(success) == {"success_rate", *other_length}, "upstream drops it before the last try"
    return indices


def test_groups_with_equal_rewards_are_dropped():
    """Upstream needs contiguous groups, and compares exactly."""
    assert filtered([1, 1, 0, 1, 0, 0], "aabbcc") == [2, 3]
    assert filtered([1, 0, 1, 1, 0, 0], "abacbc") == [3, 5]
    assert filtered([1, 0, 0, 1], "abab") == [0, 1, 2, 3]
    close = [0.9, 0.9004, 0.5, 0.9]
    assert filtered(close, "aabb") == [2, 3]
    assert filtered(close, "aabb", tolerance=0) == [0, 1, 2, 3]
    assert filtered([1, 1, 0, 1], "aabb", last_try=True) == [0, 1, 2, 3]


def test_a_missing_reward_neither_counts_nor_stays():
    for last_try, expected in ((False, [0, 2]), (True, [0, 2, 3, 5])):
        rewards = [1, NAN, 0, 1, NAN, 1, NAN, NAN]
        assert filtered(rewards, "aaabbbcc", last_try=last_try) == expected
        assert filtered([1, NAN, 0, 1], "aabb", last_try=last_try) == [2, 3], "none is left alone"
