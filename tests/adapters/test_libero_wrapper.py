"""The Gymnasium wrapper in all autoreset modes: the right frames, rewards and masks."""

import sys
from collections import Counter

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from rewardfleet.adapters.libero import LiberoRewardWrapper, MissingRewardError

from ..running import output_of
from .libero_envs import CountingEnv, SeeingJudge, gray, judged_by, levels_of

MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]
#: Steps of the episodes of two environments. Of the first, the second episode ends by truncation.
LENGTHS = [[2, 3], [4, 1]]
KEYS = ("reward_episode", "reward_pending", "reward_valid")


def wrap(config, mode=AutoresetMode.NEXT_STEP, lengths=LENGTHS, vector=SyncVectorEnv, **options):
    makers = [
        lambda index=index, own=own: CountingEnv(own, f"task {index}")
        for index, own in enumerate(lengths)
    ]
    envs = vector(makers, autoreset_mode=mode)
    options = {"tasks": "task_descriptions", "frames": "pixels/image", **options}
    return LiberoRewardWrapper(envs, {**config, "binary_reward": False}, **options)


def run(envs, steps: int):
    """Step, with resets where the mode asks for them; return the steps' rewards and infos."""
    envs.reset(seed=0)
    results = []
    for _ in range(steps):
        _, rewards, terminated, truncated, info = envs.step([0] * envs.num_envs)
        results.append((rewards, {key: info[key] for key in KEYS}))
        done = terminated | truncated
        if envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED and done.any():
            envs.reset(options={"reset_mask": done})
    return results


@pytest.fixture
def service():
    judge = SeeingJudge()
    with judged_by(judge) as config:
        yield judge, config


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_each_episode_is_sent_with_exactly_its_frames_and_pending_at_its_last_step(service, mode):
    """The simulator's rewards, 1.0 at each step, never appear."""
    judge, config = service
    in_processes = mode is AutoresetMode.SAME_STEP
    envs = wrap(config, mode, vector=AsyncVectorEnv if in_processes else SyncVectorEnv)
    finished = set()
    for rewards, info in run(envs, 14):
        pending = info["reward_pending"]
        assert np.array_equal(np.isnan(rewards), pending)
        assert np.array_equal(info["reward_valid"], ~pending)
        assert (rewards[~pending] == 0).all()
        for index in np.flatnonzero(pending):
            finished.add((int(index), int(info["reward_episode"][index])))
    arrived = envs.collect(timeout=None)
    envs.close()
    assert {(each.environment, each.episode) for each in arrived} == finished
    for each in arrived:
        assert each.task == f"task {each.environment} {each.episode}"
        length = LENGTHS[each.environment][each.episode % 2]
        levels = levels_of(each.episode, length)
        assert judge.clips[each.task] == [levels]
        assert each.reward == levels[-1] / 100
    counts = Counter(each.environment for each in arrived)
    assert len(arrived) == len(finished) and all(counts[index] >= 4 for index in range(2))


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_a_blocking_step_has_the_reward(service, mode):
    """Relative ones as well: the original's next episode begins with minus the score."""
    _, config = service
    config |= {"blocking": True, "use_rel_reward": True, "reward_coef": 2.0}
    envs = wrap(config, mode, lengths=[[2], [3]])
    results = run(envs, 4)
    assert envs.collect(timeout=None) == []
    envs.close()
    rewards = np.array([each for each, _ in results])
    at_ends = {(1, 0): 0.06, (2, 1): 0.08}
    assert {each: rewards[each] for each in at_ends} == pytest.approx(at_ends)
    assert (rewards >= 0).all()
    masks = [(*info["reward_valid"], *~info["reward_pending"]) for _, info in results]
    assert np.array(masks).all()


def test_a_blocking_step_without_a_score_is_not_valid_or_raises_if_failures_must():
    with judged_by(SeeingJudge(score=None)) as config:
        given = {**config, "blocking": True, "fallback_score": 0.25}
        envs = wrap(given, lengths=[[1]])
        ((rewards, info),) = run(envs, 1)
        envs.close()
        envs = wrap({**given, "fail_on_request_error": True}, lengths=[[1]])
        with pytest.raises(MissingRewardError, match="environment 0, episode 0"):
            run(envs, 1)
        envs.close()
    assert rewards.tolist() == [0.25]
    assert [bool(info[key][0]) for key in KEYS[1:]] == [False, False]


@pytest.mark.parametrize("blocking", [False, True])
def test_a_reset_of_all_discards_what_had_not_ended(service, blocking):
    """Also a blocking loop gets it from `collect`."""
    judge, config = service
    envs = wrap({**config, "blocking": blocking}, lengths=[[2], [5]])
    envs.reset()
    for at in range(4):
        *_, info = envs.step([0, 0])
        if at == 1:
            envs.reset()
    arrived = envs.collect(timeout=None)
    envs.close()
    described = sorted((each.environment, each.episode, each.status) for each in arrived)
    expected = [(0, 0, "ok"), (0, 1, "ok"), (1, 0, "discarded")]
    assert described == (expected[2:] if blocking else expected)
    assert info["reward_episode"].tolist() == [1, 1]
    assert "task 1 0" not in judge.clips


def test_a_final_observation_that_is_missing_fails_its_episode_only(service):
    """The observation of that step is already of the next episode."""
    _, config = service

    class Forgetful(SyncVectorEnv):
        def step(self, actions):
            *rest, info = super().step(actions)
            if "final_obs" in info:
                info["final_obs"][0] = None
            return *rest, info

    envs = wrap(config, AutoresetMode.SAME_STEP, lengths=[[1], [1]], vector=Forgetful)
    run(envs, 1)
    arrived = {each.environment: each for each in envs.collect(timeout=None)}
    envs.close()
    assert arrived[0].status == "error" and "environment 0, episode 0: frame 1" in arrived[0].detail
    assert arrived[1].status == "ok"


def test_final_observations_may_be_one_batch(service):
    """Gymnasium's own vectors have one observation per environment."""
    judge, config = service

    class Batched(SyncVectorEnv):
        def step(self, actions):
            *rest, info = super().step(actions)
            if "final_obs" in info:
                images = [each and each["pixels"]["image"] for each in info["final_obs"]]
                batch = [gray(99) if each is None else each for each in images]
                info["final_obs"] = {"pixels": {"image": np.stack(batch)}}
            return *rest, info

    envs = wrap(config, AutoresetMode.SAME_STEP, lengths=[[2], [9]], vector=Batched)
    run(envs, 2)
    envs.collect(timeout=None)
    envs.close()
    assert judge.clips == {"task 0 0": [levels_of(0, 2)]}


def test_tasks_and_frames_may_be_given_as_functions(service):
    judge, config = service
    for tasks in (["a", "b"], lambda observations, info: ["c", "d"]):
        envs = wrap(config, lengths=[[1]] * 2, tasks=tasks, frames=lambda o: o["pixels"]["image"])
        run(envs, 1)
        envs.collect(timeout=None)
        envs.close()
    assert judge.clips == {task: [[1, 2]] for task in "abcd"}


def test_wrong_arguments_are_named():
    for options, message in (
        ({"tasks": ["one"]}, "tasks: give 2, one per environment; not 1"),
        ({"tasks": lambda *_: ["a", "b", "c"]}, "tasks: give 2, one per environment; not 3"),
        ({"tasks": "instruction"}, "tasks: no 'instruction' among task_descriptions"),
        ({"frames": "agentview_image"}, "frames: no 'agentview_image' in an observation"),
        ({"frames": "pixels/wrist"}, "frames: no 'pixels/wrist' in an observation"),
    ):
        with pytest.raises(ValueError, match=message):
            wrap({"enable": True, "endpoint": "http://127.0.0.1:9"}, **options).reset()
    envs = SyncVectorEnv([lambda: CountingEnv([1])])
    envs.metadata.pop("autoreset_mode")
    with pytest.raises(ValueError, match=r"autoreset_mode.*NextStep, SameStep, Disabled.*None"):
        LiberoRewardWrapper(envs, {"enable": True}, ["a"], frames="pixels/image")


@pytest.mark.slow
def test_without_gymnasium_the_rest_works_and_the_package_is_named():
    program = """
import sys
sys.modules["gymnasium"] = None
from rewardfleet.adapters.libero import LiberoRewards, RewardModelConfig
from rewardfleet.adapters import libero
LiberoRewards({"enable": True}, ["a"]).close()
try:
    libero.LiberoRewardWrapper
except ImportError as error:
    print(error)
"""
    assert "pip install 'gymnasium>=1.1'" in output_of(sys.executable, "-c", program)
