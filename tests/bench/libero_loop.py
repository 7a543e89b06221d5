"""What scoring adds to a step of 16 LIBERO environments that all end at the same step.

    python tests/bench/libero_loop.py

Compares `LiberoRewardWrapper`, as it is and with `blocking`, with the original integration's way:
to write each environment's frames to an mp4, and to wait for its score, one after another. The
environments replay rollouts. The service is a process on this machine; first with the reference
judge, then with one that takes half a second per clip, for any number of clips at once.
"""

import argparse
import asyncio
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import cv2
import numpy as np
from gymnasium.vector import SyncVectorEnv
from harness import Ratio, run
from items import ROOT

from rewardfleet import blocking
from rewardfleet.adapters.libero import LiberoRewardWrapper

sys.path.insert(0, str(ROOT / "examples"))
from libero_replay import LiberoEnv, ReplayLibero, read_rollouts
from libero_rewards import service

ENVIRONMENTS = 16
ROUNDS = 3
#: Steps of the shortest episode. Each round and each way has its own, so that no score is cached.
STEPS = 45

#: Seconds of the step that ends all episodes, and until all rewards are there.
Times = tuple[float, float]


class SlowJudge:
    """A judge that answers every clip after half a second, as a model with a large batch does."""

    async def score_video(self, *arguments: object) -> tuple[float, str]:
        await asyncio.sleep(0.5)
        return 1.0, "done"


def build_backend(args: argparse.Namespace) -> SlowJudge:
    return SlowJudge()


def measure(judge: str, *flags: str) -> Iterator[Ratio]:
    normal: list[float] = []
    steps = itertools.count(STEPS)
    with service(*flags) as (_, url):
        wrapper_run(url, next(steps), normal, blocking_step=True)  # warms up
        ways = {
            "one after another": partial(original_run, url),
            "blocking": partial(wrapper_run, url, normal=normal, blocking_step=True),
            "non-blocking": partial(wrapper_run, url, normal=normal, blocking_step=False),
        }
        rounds = [{name: way(next(steps)) for name, way in ways.items()} for _ in range(ROUNDS)]
    print(f"{judge}; an ordinary step takes {statistics.median(normal) * 1000:.1f} ms")
    last_ms = {}
    for name in ways:
        times = zip(*(each[name] for each in rounds), strict=True)
        last_ms[name], everything = (statistics.median(each) * 1000 for each in times)
        print(
            f"{name:20} last step {last_ms[name]:5.0f} ms, all rewards after {everything:5.0f} ms"
        )
    base = last_ms["one after another"]
    yield Ratio(f"ms of the last step, blocking, {judge}", last_ms["blocking"], base, "<= 1")
    yield Ratio(f"ms of the last step, {judge}", last_ms["non-blocking"], base, "<= 0.03")


def vector(steps: int) -> SyncVectorEnv:
    rollouts = read_rollouts(ROOT / "tests" / "data" / "libero")
    return SyncVectorEnv(
        [
            lambda rollout=rollout: LiberoEnv(ReplayLibero([rollout]), max_steps=steps)
            for rollout in rollouts[:ENVIRONMENTS]
        ]
    )


def wrapper_run(url: str, steps: int, normal: list[float], *, blocking_step: bool) -> Times:
    config = {"enable": True, "endpoint": url, "blocking": blocking_step}
    envs = LiberoRewardWrapper(vector(steps), config, "task_descriptions")
    envs.reset()
    actions = envs.action_space.sample()
    for _ in range(steps - 1):
        started = time.perf_counter()
        envs.step(actions)
        normal.append(time.perf_counter() - started)
    started = time.perf_counter()
    *_, info = envs.step(actions)
    last = time.perf_counter() - started
    arrived = envs.collect(timeout=None)
    everything = time.perf_counter() - started
    valid = info["reward_valid"] if blocking_step else [each.valid for each in arrived]
    assert sum(valid) == ENVIRONMENTS
    assert info["reward_pending"].all() != blocking_step
    envs.close()
    return last, everything


def original_run(url: str, steps: int) -> Times:
    envs = vector(steps)
    observations, info = envs.reset()
    tasks = info["task_descriptions"]
    frames = [observations["agentview_image"]]
    actions = envs.action_space.sample()
    frames += [envs.step(actions)[0]["agentview_image"] for _ in range(steps - 1)]
    with blocking.RewardFleet(video=url) as fleet, tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        frames.append(envs.step(actions)[0]["agentview_image"])
        for index in range(ENVIRONMENTS):
            path = Path(folder) / f"{index}.mp4"
            clip = [frames[k][index] for k in np.linspace(0, steps, 16, dtype=int)]
            write(path, clip)
            fleet.video.score(tasks[index], path.read_bytes())
        seconds = time.perf_counter() - started
    envs.close()
    return seconds, seconds


def write(path: Path, clip: list[np.ndarray]) -> None:
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 4.0, clip[0].shape[1::-1])
    for frame in clip:
        writer.write(cv2.cvtColor(frame[::-1], cv2.COLOR_RGB2BGR))
    writer.release()


if __name__ == "__main__":
    os.chdir(Path(__file__).parent)  # where the service finds the factory
    slow = "--backend", "slow", "--custom-backend-factory", "libero_loop:build_backend"
    run(
        {
            "reference judge": partial(measure, "reference judge"),
            "judge of 0.5 s": partial(measure, "judge of 0.5 s", *slow),
        }
    )
