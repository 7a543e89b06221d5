"""RLinf's `EmbodiedAPIRewardWorker`, at the commit in sources.toml, with the video service."""

import json
import re
from typing import Any

import pytest

from ..server.processes import service_process
from .peers import Peer, recorded
from .trainers import ROOT, bare

pytestmark = pytest.mark.slow

LIBERO = ROOT / "tests/data/libero"


@recorded("rlinf")
def rlinf(peer: Peer) -> dict[str, Any]:
    """`EmbodiedAPIRewardWorker.compute_reward`, of two windows of a real LIBERO rollout.

    The second window is the first one backwards. Its second camera, which LIBERO's rollouts here
    lack, is black, and frames are small, so that the recording is.
    """
    bare("rlinf.models.embodiment.reward")  # it imports torchvision, for a reward model
    import cv2
    import torch
    from omegaconf import OmegaConf
    from rlinf.workers.reward import api_reward_worker as worker_module

    # RLinf loads its processor from a checkpoint and does not use it.
    worker_module.load_vlm_processor = lambda *_: None
    rows = map(json.loads, (LIBERO / "manifest.jsonl").read_text().splitlines())
    rollout = next(each for each in rows if each["success"] and "plate" in each["file"])
    video = cv2.VideoCapture(str(LIBERO / rollout["file"]))
    frames = [video.read()[1] for _ in range(121)][::30]
    main = [torch.tensor(cv2.resize(each[..., ::-1], (48, 48))) for each in frames]
    black = [torch.zeros(48, 48, 3, dtype=torch.uint8)] * 5
    page = (ROOT / "docs/trainers/rlinf.md").read_text()
    (settings,) = re.findall(r"```yaml\n(reward:.*?)```", page, re.DOTALL)

    def rewards(url: str, task: str, windows: list[Any]) -> list[float]:
        config = OmegaConf.create(settings)
        config.reward.api.api_base = url
        # Without the base class's constructor, which needs a cluster of Ray, and a GPU.
        worker = object.__new__(worker_module.EmbodiedAPIRewardWorker)
        worker.cfg, worker._standalone_realworld = config, False
        worker.train_batch_size, worker._world_size = 2, 1
        worker.init_worker()
        number = len(windows)
        cameras = {"main_images": windows, "extra_view_images": [black] * number}
        history = {"history_window": cameras}
        given = {"history_input": history, "task_descriptions": [task] * number}
        return worker.compute_reward(given).flatten().tolist()

    def failure(url: str, task: str) -> str:
        try:
            return str(rewards(url, task, [black]))
        except RuntimeError as error:
            return str(error).replace(url, "URL").partition(" attempt")[0].partition(", body")[0]

    task = rollout["task_text"]
    return {
        "rewards": rewards(peer.url, task, [main, main[::-1]]),
        "no task": failure(peer.url, ""),
        "down": failure(peer.down_url, task),
    }


async def test_windows_get_the_rewards_of_their_trends_and_a_failure_ends_the_run(dead_url: str):
    with service_process("video") as (_, url):
        found = await rlinf(url, dead_url)
    assert found == {
        "rewards": pytest.approx([1.0, -0.2]),
        "no task": "POST URL/v1/chat/completions failed: status=422",
        "down": "POST URL/v1/chat/completions failed after 1",
    }
