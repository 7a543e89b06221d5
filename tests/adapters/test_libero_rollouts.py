"""Real rollouts through the stand-in and a real service; LIBERO's simulator; the example."""

import re
import sys

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rewardfleet import blocking
from rewardfleet.adapters.libero import LiberoRewardWrapper
from rewardfleet_server.video.settings import VideoSettings

from ..conftest import served_with
from ..running import output_of
from .libero_envs import DATA, ROOT, load_example

pytestmark = pytest.mark.slow

replay = load_example("libero_replay")
ROLLOUTS = replay.read_rollouts(DATA)


@pytest.fixture(scope="module")
def url():
    """Serve the reference judge, which needs no model."""
    with served_with(VideoSettings()) as client:
        yield str(client.base_url)


def test_rewards_of_replayed_rollouts_equal_those_of_their_files(url):
    """The stand-in's images are upside down; the reference judge sees what the files show.

    Of an episode of more than 64 frames, the frames in between may be others than of the file, by
    at most a quarter of their distance. So scores may differ a little.
    """
    config = {"enable": True, "endpoint": url}
    shares = [ROLLOUTS[index::4] for index in range(4)]
    makers = [lambda own=own: replay.LiberoEnv(replay.ReplayLibero(own)) for own in shares]
    vector = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    envs = LiberoRewardWrapper(vector, config, "task_descriptions")
    envs.reset()
    arrived = []
    while min(envs.rewards.episode) < 2:
        envs.step(vector.action_space.sample())
        arrived += envs.collect()
    arrived += envs.collect(timeout=None)
    envs.close()
    differences = []
    with blocking.RewardFleet(video=url) as fleet:
        for each in arrived:
            rollout = shares[each.environment][each.episode]
            direct = fleet.video.score(rollout.task, rollout.path.read_bytes())
            assert each.task == rollout.task
            assert each.reward == float(direct.score >= 0.5)
            differences.append(abs(each.score - direct.score))
    assert len(differences) >= 8
    assert max(differences) < 0.15
    assert np.mean(differences) < 0.02


@pytest.mark.full
def test_the_example_runs_and_loses_no_reward_with_a_killed_service():
    shown = output_of(sys.executable, ROOT / "examples" / "libero_rewards.py", seconds=170)
    assert "one of the two services was killed" in shown
    results = re.search(r"(\d+) of (\d+) finished episodes have a result", shown)
    assert results and int(results[1]) == int(results[2]) >= 32
    table = re.findall(r"(success|failure) +(\d+) +(\d+) +(\d+) +(\d+)", shown)
    assert [name for name, *_ in table] == ["success", "failure"]
    assert all(missing == "0" for *_, missing in table)
    (_, successes, right, *_), (_, failures, _, wrong, _) = table
    assert int(right) >= 0.8 * int(successes) and int(wrong) >= 0.8 * int(failures)
