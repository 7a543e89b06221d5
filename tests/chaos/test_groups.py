"""Groups whose members arrive one by one, while the episode service is killed eight times."""

import asyncio
from pathlib import Path

from rewardfleet import RewardFleet, episode_request

from .figures import Figures
from .processes import ServiceProcess
from .trainers import collect_group, until_answered

_KILLS, _RUNS, _STEPS, _SIZE = 8, 10, 8, 8


async def test_groups_are_released_once_while_the_service_is_killed(
    tmp_path: Path, figures: Figures, factor: int
):
    """Running statistics of the same runs count each step once."""
    arguments = ("episode", "--run-state", str(tmp_path / "runs.sqlite"))
    steps = _STEPS * factor
    kills = _KILLS * factor
    with ServiceProcess(tmp_path, *arguments) as service:
        service.wait_until_ready()
        async with RewardFleet(episode=service.url, timeout_s=60) as fleet:
            rewards: dict[str, list] = {}

            async def train(run: str) -> None:
                rewards[run] = []
                for step in range(steps):
                    await collect_group(fleet, run, step, figures, size=_SIZE, pace_s=0.5)
                    rewards[run] += await _running(fleet, run, step, figures)

            async with asyncio.TaskGroup() as group:
                for number in range(_RUNS):
                    group.create_task(train(f"run-{number}"))
                for number in range(1, kills + 1):
                    while figures.right < number * _RUNS * steps * _SIZE / (kills + 1):
                        await asyncio.sleep(0.005)
                    service.kill()
                    service.start()
                    await asyncio.to_thread(service.wait_until_ready)
    figures.notes["kills"] = kills
    figures.notes["groups"] = _RUNS * steps
    with ServiceProcess(tmp_path, "episode") as undisturbed:
        undisturbed.wait_until_ready()
        async with RewardFleet(episode=undisturbed.url) as fleet:
            for run, found in rewards.items():
                expected = [
                    reward
                    for step in range(steps)
                    for reward in await _running(fleet, run, step, figures)
                ]
                figures.made += 1
                figures.check(f"running statistics of {run}", found, expected)
    figures.assert_all_right()


async def _running(fleet: RewardFleet, run: str, step: int, figures: Figures) -> list:
    """Return the rewards of a batch, which depend on all steps that were counted before."""
    batch = [
        episode_request(f"e{place}", kind="return", episode_reward=(step * 7 + place * 3) % 11)
        for place in range(4)
    ]

    async def score() -> list:
        options = {"normalize": "running"}
        response = await fleet.episode.score_batch(batch, options, run=run, step=step)
        return [each.score for each in response.results]

    rewards = await until_answered(score, figures)
    figures.duplicated += await until_answered(score, figures) != rewards
    return rewards
