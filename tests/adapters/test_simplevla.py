"""Test-time RL of SimpleVLA-RL by the adapter alone, on verl's DataProto or a stand-in for it.

Read in SimpleVLA-RL at 7c51662: `RobRewardManager`, `RayTrainer.fit`, `RobHFRollout`.
"""

import json
import math
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from rewardfleet import InvalidRequest
from rewardfleet.adapters.simplevla import (
    RobRewardManager,
    at_temperatures,
    forward_test_time_rl,
    keep_selected,
    normalized_actions,
    sample_temperatures,
)

from ..running import output_of
from ..third_party.test_simplevla import COMPLETE
from ..third_party.test_simplevla import STEPS as TAKEN
from .standin import Config, DataProto
from .test_episode_managers import _torch, as_list, proto, torch

__all__ = ["_torch"]  # a fixture that replaces torch where it is not installed

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "run_openvla_oft_rl_libero_ttrl.sh"
N_SAMPLES, STEPS = 4, 8


def config(*, max_steps: float | str | None = 8, **fields: object) -> Config:
    model = Config(action_token_len=2)
    if max_steps is not None:
        model["max_steps"] = max_steps
    parts = {"actor_rollout_ref": Config(model=model), "verifier": Config(reward_coef=5)}
    return Config(**parts, **fields)


def rollouts(tokens: list | None = None, **fields: list):
    """Return two prompts of four samples each, whose actions have two tokens."""
    responses = np.stack([np.full((2, STEPS), token) for token in tokens or [31872] * 8])
    tensors = {
        "responses": responses,
        "complete": fields.pop("complete", [True, True, False, False, True, False, True, True]),
        "finish_step": fields.pop("finish_step", [2, 4, 8, 8, 8, 8, 4, 2]),
    }
    others = {"uid": ["a"] * N_SAMPLES + ["b"] * N_SAMPLES, **fields}
    return proto(tensors, {name: each for name, each in others.items() if each is not None})


def sliceable(data):
    """Return a batch with `slice`, which verl's DataProto of today calls `select_idxs`."""
    if not isinstance(data, DataProto):
        data.slice = data.select_idxs
    return data


def test_steps_beyond_the_limit_are_counted():
    """LIBERO's rollouts end at 512 steps, where the original integration has 500."""
    manager = RobRewardManager(0, config(max_steps=4, test_time_rl=True))
    scores, metrics, *_ = manager.verify(rollouts())
    assert scores == pytest.approx([1 / 1.5, 0.5, 0, 0, 1 / 3, 0, 0.5, 1 / 1.5])
    assert metrics["reward/over_limit_total"] == 4
    assert manager.verify(rollouts())[1]["reward/over_limit_total"] == 8


def test_the_limit_is_500_unless_it_is_given():
    manager = RobRewardManager(0, config(max_steps=None, test_time_rl=True))
    data = rollouts(finish_step=[100, 500, 512, 8, 512, 8, 8, 1])
    expected = [500 / 600, 0.5, 0, 0, 500 / 1012]
    assert manager.verify(data)[0][:5] == pytest.approx(expected)
    own = rollouts(finish_step=[2, 8, 8, 8, 8, 8, 8, 2], max_steps=[2, 16] * 4)
    assert manager.verify(own)[0][:2] == pytest.approx([0.5, 1 / 1.5]), "each rollout's own"


def test_the_rewards_are_those_that_were_recorded_of_the_original():
    """By its own `main_ppo.py`: see tests/third_party/test_simplevla.py."""
    recorded = ROOT / "tests" / "third_party" / "recorded" / "simplevla.json"
    original = json.loads(recorded.read_text())["took"]["original"]
    given = config()
    given["actor_rollout_ref"]["model"]["action_token_len"] = 7
    responses = np.zeros((len(TAKEN), 64, 56), np.int64)
    data = proto({"responses": responses, "complete": COMPLETE, "finish_step": TAKEN})
    rewards, metrics = RobRewardManager(0, given)(data)
    assert as_list(data.batch["format_correctness"]) == [1] * len(TAKEN)
    assert as_list(5 * rewards["gt_scores"]) == as_list(rewards["all"])
    found = np.asarray(as_list(rewards["all"]))
    places = zip(*np.nonzero(found), found[found != 0], strict=True)
    assert [[*each] for each in places] == original["rewards"]
    assert metrics["all"] == original["metrics"]["train_verify_score/all"]
    for name in ("verifier", "reward_all"):
        assert metrics[name] == original["metrics"][f"train_reward/{name}"]


@pytest.mark.parametrize("uid", [["a"] * 4 + ["b"] * 4, None])
def test_the_accuracy_can_be_the_score(uid):
    """As in the original integration, also in validation, which has no groups."""
    manager = RobRewardManager(0, config(test_time_rl=True, episode_reward={"accuracy": "score"}))
    data = rollouts(uid=uid)
    found, metrics, _, both = manager.verify(data)
    assert as_list(data.batch["acc"]) == pytest.approx(found)
    assert metrics["all"] == both["all"] == pytest.approx(np.mean(found))
    failed = rollouts(finish_step=[0, 4, 8, 8, 8, 8, 4, 2])
    manager.verify(failed)
    assert as_list(failed.batch["acc"])[0] == pytest.approx(1 / 1.5 / 3), "the mean of the others"


def test_a_rollout_is_scored_once_and_the_call_places_what_verify_found():
    manager = RobRewardManager(0, config(test_time_rl=True, max_steps=4))
    data = rollouts(finish_step=[2, 4, 8, 8, 8, 8, 4, 9])
    found = manager.verify(data)[0]
    rewards, metrics = manager(data)
    assert as_list(rewards["gt_scores"].sum(-1)) == pytest.approx(found)
    assert manager.over_limit == 5
    assert np.flatnonzero(as_list(rewards["gt_scores"])[7]).tolist() == [15], "the last token"
    assert set(metrics) == {"verifier", "reward_all"}, "as upstream: `all` was reported by verify"


def test_temperatures_have_their_own_metrics_and_nothing_is_nan():
    manager = RobRewardManager(0, config(test_time_rl=True))
    metrics = manager.verify(rollouts())[1]
    names = (f"reward/temperature_0.{each}/success" for each in (6, 7, 8, 9))
    assert [metrics[name] for name in names] == [1, 0.5, 0.5, 0.5]
    assert metrics["reward/temperature_0.6/steps"] == 5
    assert metrics["reward/temperature_0.6/mean"] == pytest.approx((0.8 + 0.5) / 2)
    assert all(math.isfinite(value) for value in metrics.values())
    assert "temperature" not in str(RobRewardManager(0, config()).verify(rollouts())[1])


@pytest.mark.parametrize(
    ("target", "moved"),
    [
        ({"target_success_rate": 0.25}, math.exp(0.3 * (0.625 - 0.25))),
        ({"target_diversity": 0.5, "episode_reward": {"clusters": {}}}, math.exp(0.3)),
    ],
)
def test_temperatures_adapt_once_per_step(target, moved):
    """All rollouts that were verified since the last step count."""
    manager = RobRewardManager(0, config(test_time_rl=True, **target))
    data = rollouts()
    manager.verify(rollouts())
    manager.verify(data)
    assert manager.schedule.base == 0.6
    metrics = manager(data)[1]
    assert manager.schedule.base == pytest.approx(0.6 * moved)
    assert manager.schedule.width == pytest.approx(0.3 * moved)
    meta_info = {"n_samples": N_SAMPLES}
    forward_test_time_rl(manager.config, meta_info, manager)
    temperatures = sample_temperatures(meta_info, 8)
    assert temperatures[:4] == pytest.approx(np.linspace(0.6, 0.9, 4) * moved)
    manager(data)
    assert manager.schedule.base == pytest.approx(0.6 * moved), "nothing new was verified"
    assert "reward/base_temperature" not in metrics
    assert manager.verify(rollouts())[1]["reward/base_temperature"] == manager.schedule.base


def test_each_sample_gets_its_own_temperature():
    """The original TTRL integration uses the first temperature for all of them."""
    meta_info = {"n_samples": 4}
    forward_test_time_rl(Config(), meta_info)
    assert meta_info == {"n_samples": 4}
    forward_test_time_rl(Config(test_time_rl=True), meta_info)
    temperatures = sample_temperatures(meta_info, 8)
    assert temperatures == [0.6, 0.7, 0.8, 0.9] * 2
    logits = torch.as_tensor(np.ones((8, 3, 5)), dtype=torch.float32)
    scaled = np.asarray(at_temperatures(logits, temperatures))
    assert scaled[:, 0, 0] == pytest.approx([1 / each for each in temperatures])
    assert len(set(scaled[:4, 0, 0].tolist())) == 4
    assert (np.asarray(at_temperatures(logits, 0.5)) == 2).all(), "one for all rows"
    assert sample_temperatures({"n_samples": 4}, 8) is None
    with pytest.raises(ValueError, match="7 rows"):
        sample_temperatures(meta_info, 7)


def test_actions_are_those_of_openvlas_tokens():
    """The last 256 tokens of 32000 are bins: the first of them is 1, the last -1."""
    tokens = np.array([[[31999, 31872], [31744, 31745]]])
    actions = normalized_actions(tokens, 2)
    assert actions.shape == (1, 2, 2)
    assert actions[0] == pytest.approx(np.array([[-254, 0], [254, 254]]) / 255)
    edges = np.linspace(-1, 1, 256)
    centers = (edges[:-1] + edges[1:]) / 2
    every = np.arange(31745, 32000)[None, :, None]
    assert normalized_actions(every, 1)[0, :, 0] == pytest.approx(centers[31999 - every.ravel()])


#: Of each prompt, three trajectories are similar and one is not.
TOKENS = [31872, 31872, 31873, 31750, 31990, 31990, 31990, 31872]


def test_the_largest_cluster_of_a_group_can_count_as_its_successes():
    given = {"vote": True, "clusters": {"threshold": 0.05}, "kind": "success"}
    manager = RobRewardManager(0, config(test_time_rl=True, episode_reward=given))
    data = rollouts(TOKENS)
    found, metrics, _, _ = manager.verify(data)
    assert found == [1, 1, 1, 0, 1, 1, 1, 0]
    assert as_list(data.batch["acc"]) == found, "upstream filters by the votes, too"
    assert metrics["reward/label_accuracy"] == 5 / 8
    assert metrics["reward/majority_ratio"] == 0.75
    assert metrics["reward/clusters"] == 2
    assert metrics["all"] == 5 / 8, "the simulator's success, for the log"


def test_objectives_are_computed_from_the_tokens():
    given = {"kind": "objectives", "weights": {"success": 1, "low_energy": 0.5}, "combine": "gated"}
    manager = RobRewardManager(0, config(episode_reward=given))
    found = manager.verify(rollouts([31872, 31999] * 4))[0]
    still, full = 1.5, 1 + 0.5 / (1 + 2 * (254 / 255) ** 2)
    assert found == pytest.approx([still, full, 0, 0, still, 0, still, full])


def test_only_selected_rollouts_are_trained_on():
    given = {"filter": {"select": "efficient", "select_count": 2}}
    manager = RobRewardManager(0, config(test_time_rl=True, episode_reward=given))
    data = sliceable(rollouts())
    metrics = manager.verify(data)[1]
    kept = [True, True, False, False, False, False, True, True]
    assert as_list(data.batch["keep"]) == kept
    assert metrics["reward/kept"] == 0.5
    selected = keep_selected(data)
    assert as_list(selected.batch["finish_step"]) == [2, 4, 4, 2]
    rewards, _ = manager(selected)
    assert as_list(rewards["gt_scores"].sum(-1)) == pytest.approx([0.8, 1 / 1.5, 1 / 1.5, 0.8])


#: Steps of rollouts, the rows that four GPUs get, and those of them that are alone.
SHARES = [
    ([0, 4, 8, 8, 8, 0, 4, 2], range(8), [0, 5]),
    ([0, 4, 8, 8, 0, 0, 0, 2], range(4), [0]),
    ([0] * 8, range(4), range(4)),
]


@pytest.mark.parametrize(("steps", "rows", "alone"), SHARES)
def test_each_gpu_gets_as_many_rows_and_those_added_have_no_advantage(steps, rows, alone):
    """Upstream needs equal shares, divides a loss by the steps, and subtracts 0 from one alone."""
    manager = RobRewardManager(0, config())
    data = sliceable(rollouts(finish_step=steps, complete=[True] * 8))
    manager.verify(data)
    selected = keep_selected(data, 4)
    uids = selected.non_tensor_batch["uid"].tolist()
    rewards = as_list(manager(selected)[0]["all"].sum(-1))
    for row in rows:
        if row in alone:
            assert (uids.count(uids[row]), rewards[row]) == (1, 0)
        else:
            assert (uids[row], rewards[row]) == ("a" if row < N_SAMPLES else "b", 5)
    assert as_list(selected.batch["finish_step"]) == [max(steps[row], 1) for row in rows]
    assert as_list(data.batch["finish_step"]) == steps, "the batch itself stays as it is"


def test_a_rollout_without_steps_is_left_out_and_so_is_what_would_be_alone():
    """Its environment failed: its 0 must not count in its group."""
    manager = RobRewardManager(0, config())
    data = rollouts(finish_step=[0, 4, 8, 8, 0, 0, 0, 2])
    assert manager.verify(data)[0] == [0, 1, 0, 0, 0, 0, 0, 1]
    assert as_list(data.batch["keep"]) == [False, True, True, True] + [False] * 4
    accuracy = np.asarray(data.batch["acc"]).reshape(2, N_SAMPLES).mean(axis=1)
    assert accuracy == pytest.approx([1 / 3, 1]), "by which upstream filters"
    clustered = {"clusters": {}, "kind": "efficiency"}
    data = rollouts(finish_step=[0, 4, 8, 8, 2, 2, 2, 2])
    assert RobRewardManager(0, config(episode_reward=clustered)).verify(data)[0][0] == 0


@pytest.mark.filterwarnings("error")
def test_failed_environments_move_no_temperature():
    given = {"target_success_rate": 0.5, "episode_reward": {"clusters": {}}}
    manager = RobRewardManager(0, config(test_time_rl=True, **given))
    nothing = rollouts(finish_step=[0] * 8)
    metrics = manager.verify(nothing)[1]
    manager(nothing)
    assert manager.schedule.base == 0.6
    assert metrics["reward/failed"] == 1 and metrics["reward/kept"] == 0
    manager(rollouts(finish_step=[0, 0, 4, 4, 4, 4, 4, 4]))
    assert manager.schedule.base == pytest.approx(0.6), "three of the six valid ones succeed"


def test_in_validation_the_score_is_that_without_groups():
    """Upstream has no uid there, and one sample per prompt."""
    given = {"vote": True, "clusters": {}, "efficiency": "group_best"}
    manager = RobRewardManager(0, config(test_time_rl=True, episode_reward=given))
    found, metrics, _, _ = manager.verify(rollouts(uid=None))
    assert found == pytest.approx([0.8, 1 / 1.5, 0, 0, 0.5, 0, 1 / 1.5, 0.8])
    quartiles = {f"reward/p{at}": np.percentile(found, at) for at in (0, 25, 50, 75, 100)}
    counts = {"reward/over_limit_total": 0, "reward/failed": 0}
    assert metrics == pytest.approx({"all": 0.625, **counts, **quartiles})


def test_an_invalid_configuration_is_refused_and_is_no_reward_of_zero():
    for given, message in (
        ({"kind": "visual"}, "episode_reward: kind: .*'objectives'"),
        ({"weigths": {}}, "weigths"),
        ({"vote": True}, "vote: needs episode_reward.clusters"),
        ({"accuracy": "efficiency"}, "accuracy: .*'score'"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            RobRewardManager(0, config(episode_reward=given))
    given = {"kind": "objectives", "weights": {"progress": 1}}
    manager = RobRewardManager(0, config(episode_reward=given))
    with pytest.raises(InvalidRequest, match="progress"):
        manager.verify(rollouts())


def test_a_config_of_omegaconf_is_accepted():
    omegaconf = pytest.importorskip("omegaconf")
    given = {"kind": "objectives", "weights": {"efficiency": 1}}
    given["filter"] = {"accuracy_bounds": [0.1, 0.9]}
    plain = config(test_time_rl=True, target_success_rate=0.5, episode_reward=given)
    manager = RobRewardManager(0, omegaconf.OmegaConf.create(json.loads(json.dumps(plain))))
    assert manager.verify(rollouts())[0][:2] == pytest.approx([0.8, 1 / 1.5])


# The example

#: Keys of SimpleVLA-RL's `ppo_trainer.yaml` at 7c51662 that the example sets. Others need a `+`.
UPSTREAM = (ROOT / "tests/data/adapters/simplevla_keys.txt").read_text().splitlines()
NODES = (line.partition(": ")[::2] for line in UPSTREAM)
UPSTREAM_KEYS = {f"{node}.{name}" for node, names in NODES for name in names.split()}


def overrides_of_the_example(checkout: Path, **variables: str) -> list[str]:
    """Run the example in a checkout whose `python` prints its arguments."""
    script = checkout / "examples" / "overwrite_vla_ckpt_utils.sh"
    script.parent.mkdir()
    script.write_text('test "$1" = "$SFT_MODEL_PATH"')
    python = checkout / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    python.chmod(0o755)
    given = {"SFT_MODEL_PATH": "/sft", "CKPT_PATH": "/out", **variables}
    own = {**given, "PATH": f"{python.parent}:/usr/bin:/bin"}
    lines = output_of("bash", EXAMPLE, "data.n_samples=8", cwd=checkout, env=own).splitlines()
    assert lines[:3] == ["-u", "-m", "verl.trainer.main_ppo"]
    return lines[3:]


@pytest.mark.parametrize("suite", ["libero_10", "libero_spatial"])
def test_the_example_sets_keys_that_upstream_has_and_adds_the_others(tmp_path, suite):
    overrides = overrides_of_the_example(tmp_path, SUITE=suite)
    keys = [override.partition("=")[0] for override in overrides]
    added = ["+test_time_rl", "+base_temperature", "+temperature_range"]
    assert set(keys) == {*UPSTREAM_KEYS, *added}
    values = dict(override.split("=", 1) for override in overrides)
    rollout = "actor_rollout_ref.rollout"
    assert values[f"{rollout}.name"] == "hf", "upstream has no other for robots"
    assert values[f"{rollout}.pretrained_checkpoint"] == "/sft"
    assert values[f"{rollout}.unnorm_key"] == values[f"{rollout}.task_suite_name"] == suite
    assert values["data.task_suite_name"] == suite
    assert values["data.filter_accuracy"] == "True", "without it, upstream has no batch"
    assert (values["trainer.val_only"], values["trainer.save_freq"]) == ("False", "25")
    assert values["data.n_samples"] == "8", "arguments come last"


def test_hydra_can_read_the_example_and_the_page(tmp_path):
    """With what docs/trainers/simplevla-rl.md adds."""
    parser = pytest.importorskip("hydra.core.override_parser.overrides_parser")
    page = (ROOT / "docs" / "trainers" / "simplevla-rl.md").read_text()
    blocks = " ".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL)).replace("\\\n", " ")
    added = [each for each in shlex.split(blocks, comments=True) if each.startswith("+")]
    assert added
    overrides = [*overrides_of_the_example(tmp_path), *added]
    parsed = parser.OverridesParser.create().parse_overrides(overrides)
    values = {each.key_or_group: each.value() for each in parsed}
    RobRewardManager(0, config(**{key: values[key] for key in ("test_time_rl", "episode_reward")}))
