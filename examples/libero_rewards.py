"""Rewards for 16 LIBERO environments from two video services, one of which is killed.

    python examples/libero_rewards.py

Starts two video services on this machine, and steps 16 environments that replay the rollouts of
this repository. Episodes are scored when they end, while the environments go on; rewards arrive in
any order. After some of them, one service is killed.

    python examples/libero_rewards.py --simulator

does the same with LIBERO's own simulator and random actions. It needs LIBERO, with its assets.
Both need Gymnasium and the server's packages.
"""

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium
import httpx
import numpy as np
from libero_replay import LiberoEnv, ReplayLibero, read_rollouts

from rewardfleet.adapters.libero import EpisodeReward, LiberoRewardWrapper, episode_metrics
from rewardfleet_server.up.settings import free_port

ROLLOUTS = Path(__file__).parent.parent / "tests" / "data" / "libero"
ENVIRONMENTS = 16
EPISODES = 2  #: per environment
KILL_AFTER = 8  #: rewards
SIMULATOR_STEPS = 60  #: per episode, with random actions
START_SECONDS = 60

#: (environment, episode).
Key = tuple[int, int]


def main() -> None:
    """Step the environments, print rewards as they arrive, and a summary."""
    parser = argparse.ArgumentParser(description="Rewards for 16 LIBERO environments")
    parser.add_argument("--simulator", action="store_true", help="use LIBERO's own simulator")
    makers = simulated() if parser.parse_args().simulator else replayed()
    with service() as (first, url), service() as (_, other_url):
        config = {"enable": True, "endpoint": [f"{url}/score", f"{other_url}/score"]}
        vector = gymnasium.vector.SyncVectorEnv(makers)
        envs = LiberoRewardWrapper(vector, config, "task_descriptions")
        try:
            run(envs, kill=first.kill)
        finally:
            envs.close()


def run(envs: LiberoRewardWrapper, kill: Callable[[], None]) -> None:
    """Step until every environment has finished its episodes, and wait for the last rewards.

    A machine on which no reward arrives before that steps until the service was killed.
    """
    finished: dict[Key, bool] = {}  # in the order in which episodes ended; the simulator's success
    arrived: list[EpisodeReward] = []
    envs.reset(seed=0)
    steps, started, killed = 0, time.monotonic(), False
    while not killed or min(envs.rewards.episode) < EPISODES:
        *_, info = envs.step(envs.action_space.sample())
        steps += 1
        for index in np.flatnonzero(info["reward_pending"]):
            success = bool(info["success"][index])
            finished[int(index), int(info["reward_episode"][index])] = success
        before = len(arrived)
        arrived += envs.collect()
        show(arrived[before:], finished, steps)
        pending = envs.rewards.pending
        if not killed and len(arrived) >= KILL_AFTER and pending:
            kill()
            killed = True
            print(f"--- one of the two services was killed; {pending} rewards are pending ---")
    seconds = time.monotonic() - started
    before = len(arrived)
    arrived += envs.collect(timeout=None)
    show(arrived[before:], finished, steps)
    print(f"\n{steps} steps of {ENVIRONMENTS} environments in {seconds:.1f} s")
    summarize(arrived, finished)
    print(episode_metrics(arrived))


def show(arrived: list[EpisodeReward], finished: dict[Key, bool], step: int) -> None:
    """Print one line per reward."""
    order = list(finished)
    for each in arrived:
        nth = order.index((each.environment, each.episode)) + 1
        value = "none" if math.isnan(each.reward) else f"{each.reward:.0f}"
        where = f"environment {each.environment:2}, episode {each.episode}"
        print(f"step {step:4}: {where}, ended as number {nth:2}: reward {value}  {each.task[:50]}")


def summarize(arrived: list[EpisodeReward], finished: dict[Key, bool]) -> None:
    """Print how many rewards arrived, in which order, and how they agree with the simulator."""
    order = [(each.environment, each.episode) for each in arrived]
    ends = list(finished)
    overtaken = sum(order.index(earlier) > order.index(later) for earlier, later in pairwise(ends))
    print(f"{len(order)} of {len(ends)} finished episodes have a result")
    print(f"{overtaken} arrived after the result of the episode that ended next\n")
    print(f"{'simulator':12} {'episodes':>8} {'reward 1':>9} {'reward 0':>9} {'none':>6}")
    for success in (True, False):
        of_kind = [
            each for each, key in zip(arrived, order, strict=True) if finished[key] == success
        ]
        ones, zeros = (sum(each.reward == value for each in of_kind) for value in (1.0, 0.0))
        name, count = "success" if success else "failure", len(of_kind)
        print(f"{name:12} {count:8} {ones:9} {zeros:9} {count - ones - zeros:6}")


def replayed() -> list[Callable[[], LiberoEnv]]:
    """Return functions that create environments: environment i replays rollouts i, i + 16, …."""
    rollouts = read_rollouts(ROLLOUTS)
    return [
        lambda own=rollouts[index::ENVIRONMENTS]: LiberoEnv(ReplayLibero(own))  # type: ignore[misc]
        for index in range(ENVIRONMENTS)
    ]


def simulated() -> list[Callable[[], LiberoEnv]]:
    """Return functions that create environments of LIBERO's simulator, one per task."""
    from libero.libero import benchmark, get_libero_path  # noqa: PLC0415 - optional
    from libero.libero.envs import OffScreenRenderEnv  # noqa: PLC0415 - optional

    suite = benchmark.get_benchmark("libero_goal")()
    folder = Path(get_libero_path("bddl_files"))

    def make(index: int) -> LiberoEnv:
        task = suite.get_task(index % suite.get_num_tasks())
        bddl = folder / task.problem_folder / task.bddl_file
        env = OffScreenRenderEnv(bddl_file_name=str(bddl), camera_heights=256, camera_widths=256)
        return LiberoEnv(env, max_steps=SIMULATOR_STEPS)

    return [lambda index=index: make(index) for index in range(ENVIRONMENTS)]  # type: ignore[misc]


@contextmanager
def service(*flags: str) -> Iterator[tuple["subprocess.Popen[bytes]", str]]:
    """Run a video service, by default with a judge that needs no model; yield process and URL."""
    port = free_port()
    command = [sys.executable, "-m", "rewardfleet_server", "serve", "video", "--port", str(port)]
    command += flags
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:  # noqa: S603 - fixed
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_ready(process, url)
            yield process, url
        finally:
            process.terminate()


def wait_until_ready(process: Any, url: str) -> None:
    """Wait until a service accepts requests."""
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            httpx.get(f"{url}/readyz", trust_env=False).raise_for_status()
        except httpx.HTTPError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"the service at {url} did not start; is the package complete?")


if __name__ == "__main__":
    main()
