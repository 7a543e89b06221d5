"""Real rollouts through the stand-in and a real service; LIBERO's simulator; the example."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rewardfleet import blocking
from rewardfleet.adapters.libero import LiberoRewardWrapper, score_episodes
from rewardfleet_server.testing import FakeJudge
from rewardfleet_server.video.settings import VideoSettings

from ..conftest import served_with
from .libero_envs import DATA, ROOT, judged_by, load_example

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
    arrived = {}
    while min(envs.rewards.episode) < 2:
        envs.step(vector.action_space.sample())
        for each in envs.collect():
            arrived[each.environment, each.episode] = each
    for each in envs.collect(timeout=None):
        arrived[each.environment, each.episode] = each
    envs.close()
    differences = []
    with blocking.RewardFleet(video=url) as fleet:
        for index, share in enumerate(shares):
            for episode, rollout in enumerate(share):
                if (index, episode) not in arrived:
                    continue
                each = arrived[index, episode]
                direct = fleet.video.score(rollout.task, rollout.path.read_bytes())
                assert each.task == rollout.task
                assert each.reward == float(direct.score >= 0.5)
                differences.append(abs(each.score - direct.score))
    assert len(differences) >= 8
    assert max(differences) < 0.15
    assert np.mean(differences) < 0.02


def test_the_adapter_sends_the_frames_of_the_file_in_their_orientation():
    """Pixel by pixel: raw, rotated and upright images of one rollout are the same clip."""
    env = replay.ReplayLibero(ROLLOUTS)
    raw = [env.reset()["agentview_image"]]
    raw += [env.step(None)[0]["agentview_image"] for _ in range(40)]
    env.close()
    clips = {
        "raw": raw,
        "rotated": [image[::-1, ::-1] for image in raw],
        "upright": [image[::-1] for image in raw],
    }
    sent = []

    class Storing(FakeJudge):
        async def judge(self, task_text, clip, backend_kwargs):
            sent.append(np.stack(clip.frames))
            return await super().judge(task_text, clip, backend_kwargs)

    with judged_by(Storing(deterministic=False)) as config:
        for orientation, clip in clips.items():
            score_episodes(config, [ROLLOUTS[0].task], [clip], orientation=orientation)
    video = cv2.VideoCapture(str(ROLLOUTS[0].path))
    assert np.array_equal(sent[0][0], cv2.cvtColor(video.read()[1], cv2.COLOR_BGR2RGB))
    assert len(sent) == 3
    assert np.array_equal(sent[0], sent[1])
    assert np.array_equal(sent[0], sent[2])


@pytest.mark.full
def test_the_example_runs_and_loses_no_reward_with_a_killed_service():
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "libero_rewards.py")],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "one of the two services was killed" in done.stdout
    results = re.search(r"(\d+) of (\d+) finished episodes have a result", done.stdout)
    assert results and int(results[1]) == int(results[2]) >= 32
    table = re.findall(r"(success|failure) +(\d+) +(\d+) +(\d+) +(\d+)", done.stdout)
    assert [name for name, *_ in table] == ["success", "failure"]
    assert all(missing == "0" for *_, missing in table)
    (_, successes, right, *_), (_, failures, _, wrong, _) = table
    assert int(right) >= 0.8 * int(successes) and int(wrong) >= 0.8 * int(failures)


def libero_is_missing() -> str | None:
    """Return why LIBERO's simulator cannot run here, or None; importing it may ask questions."""
    for package in ("libero", "robosuite", "mujoco"):
        if find_spec(package) is None:
            return f"needs LIBERO: {package} is not installed (pip install hf-libero)"
    folder = Path(os.environ.get("LIBERO_CONFIG_PATH", Path.home() / ".libero"))
    if not (folder / "config.yaml").exists():
        return f"needs LIBERO: {folder / 'config.yaml'} does not exist, and LIBERO would ask for it"
    from libero.libero import get_libero_path  # noqa: PLC0415 - optional

    assets = Path(get_libero_path("assets"))
    if not any(assets.rglob("*.obj")):
        return f"needs LIBERO: no meshes in {assets}"
    return None


def test_the_real_simulator(url):
    """Random actions for some steps of two environments; the judge answers or abstains."""
    if reason := libero_is_missing():
        pytest.skip(reason)
    example = load_example("libero_rewards")
    vector = SyncVectorEnv(example.simulated()[:2], autoreset_mode=AutoresetMode.SAME_STEP)
    envs = LiberoRewardWrapper(vector, {"enable": True, "endpoint": url}, "task_descriptions")
    envs.reset(seed=0)
    for _ in range(example.SIMULATOR_STEPS):
        *_, info = envs.step(envs.action_space.sample())
    assert info["reward_pending"].all()
    arrived = envs.collect(timeout=None)
    envs.close()
    assert {each.status for each in arrived} <= {"ok", "abstained"}
