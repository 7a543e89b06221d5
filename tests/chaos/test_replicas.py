"""Three replicas under load: one is killed, one freezes, one is restarted in order."""

import asyncio
import os
import signal
from contextlib import ExitStack
from math import isnan, nan
from pathlib import Path

import pytest

from rewardfleet import RewardFleet, episode_request, tools_request
from rewardfleet.http import replicas

from .figures import Figures
from .fleet import Fleet, fleet_up
from .processes import ServiceProcess
from .trainers import BudgetTrainer, collect_group, score_episode

_CALLS, _CALLERS = 2500, 16
_GROUP = 8


async def test_three_replicas_with_a_kill_a_freeze_and_a_restart(
    tmp_path: Path, figures: Figures, factor: int
):
    """Scores, and groups in run state that the replicas share."""
    state = ["--run-state", str(tmp_path / "runs.sqlite"), "--replicas", "3"]
    with ExitStack() as stack:
        replicas = [
            stack.enter_context(ServiceProcess(tmp_path, "episode", *state)) for _ in range(3)
        ]
        for each in replicas:
            each.wait_until_ready()
        urls = [each.url for each in replicas]
        async with RewardFleet(episode=urls, timeout_s=30) as fleet:
            await _score(fleet, range(1, _CALLS), figures, "undisturbed")
            for round_ in range(factor):
                first = (2 * round_ + 1) * _CALLS
                numbers = range(first, first + 2 * _CALLS)
                async with asyncio.TaskGroup() as group:
                    group.create_task(_score(fleet, numbers, figures, "disturbed"))
                    for n in range(20):
                        run = f"run-{round_}-{n}"
                        group.create_task(
                            collect_group(fleet, run, 1, figures, size=_GROUP, pace_s=10)
                        )
                    await _disturb(replicas, figures, len(numbers))
    figures.assert_all_right()
    assert max(figures.seconds["disturbed"]) < 30


@pytest.mark.slice
async def test_every_call_waits_for_the_only_replica(tmp_path: Path, figures: Figures, monkeypatch):
    """Each call tries more often than it would after a failed judgment."""
    monkeypatch.setattr(replicas, "_MAX_BACKOFF_SECONDS", 0.5)
    episode, tools = (
        ServiceProcess(tmp_path, name, "--run-state", str(tmp_path / name))
        for name in ("episode", "tools")
    )
    one = episode_request("u", success=1)
    member = episode_request("m", group="g", success=1)
    answer = tools_request("<think>x</think><response>1</response>", "<response>1</response>")
    with episode, tools:
        episode.wait_until_ready()
        tools.wait_until_ready()
        async with RewardFleet(episode=episode.url, tools=tools.url, on_failure=nan) as fleet:
            await fleet.tools.put_budget("run", budget=1.0)
            await fleet.episode.score(one)
            for each in (episode, tools):
                await asyncio.to_thread(each.kill)
            calls = [
                fleet.episode.score(one),
                fleet.episode.score_batch([one]),
                fleet.episode.rewards([one]),
                fleet.episode.collect(member, run="run", step=1, group_size=1),
                fleet.episode.temperatures(4),
                fleet.episode.delete_run("other"),
                fleet.tools.score_batch([answer] * 9),
                fleet.tools.rewards([answer]),
                fleet.tools.put_budget("run", budget=2.0),
                fleet.tools.update_budget("run", 1, [0.5]),
                fleet.tools.budget("run"),
            ]
            tasks = [asyncio.create_task(call) for call in calls]
            figures.made += len(tasks)
            async with asyncio.timeout(100):
                while True:
                    await asyncio.sleep(0.02)
                    (watch,) = fleet._pending._watches.values()
                    if all(call.attempts > 6 for call in watch.calls):
                        break
            episode.start()
            tools.start()
            found = await asyncio.gather(*tasks)
            figures.right += len(found)
            assert found[2] == [1.0] and not isnan(found[7][0])
            assert (await fleet.tools.budget("run")).options.budget == 2.0
    figures.assert_all_right()


async def _score(fleet: RewardFleet, numbers: range, figures: Figures, phase: str) -> None:
    shared = iter(numbers)

    async def caller() -> None:
        for number in shared:
            await score_episode(fleet, number, figures, phase)

    await asyncio.gather(*(caller() for _ in range(_CALLERS)))


async def _disturb(replicas: list[ServiceProcess], figures: Figures, calls: int) -> None:
    """Kill, freeze and restart one replica each, as the calls go on."""
    start = figures.made

    async def until(share: float) -> None:
        while figures.made - start < share * calls:
            await asyncio.sleep(0.01)

    killed, frozen, restarted = replicas
    await until(0.1)
    killed.kill()
    await until(0.25)
    killed.start()
    await asyncio.to_thread(killed.wait_until_ready)
    await until(0.4)
    frozen.freeze()
    await until(0.65)
    frozen.thaw()
    await until(0.75)
    await asyncio.to_thread(restarted.terminate)
    restarted.start()
    await asyncio.to_thread(restarted.wait_until_ready)


@pytest.mark.slice
async def test_three_replicas_behind_the_gateway(tmp_path: Path, figures: Figures, factor: int):
    """Its callers know one address. Budgets count each step once."""
    config = "[tools]\nport = 0\nreplicas = 3\n"
    with fleet_up(tmp_path, config, "--only", "tools") as fleet:
        over = asyncio.Event()
        async with RewardFleet(fleet.url, timeout_s=60) as client:
            trainers = [BudgetTrainer(client, f"run-{n}", figures) for n in range(6)]
            async with asyncio.TaskGroup() as group:
                for each in trainers:
                    group.create_task(each.train(over.is_set))
                for round_ in range(factor):
                    await _settle(fleet, figures, 2 * round_)
                    os.kill(fleet.services()[0], signal.SIGKILL)
                    await _settle(fleet, figures, 2 * round_ + 1)
                    os.kill(frozen := fleet.services()[1], signal.SIGSTOP)
                    await asyncio.sleep(3)  # less than what the fleet waits before it kills it
                    os.kill(frozen, signal.SIGCONT)
                    await _settle(fleet, figures, 2 * round_ + 1)
                    os.kill(fleet.services()[2], signal.SIGTERM)
                    await _settle(fleet, figures, 2 * round_ + 2)
                over.set()
        restarts = [each["restarts"] for each in fleet.replicas()]
        figures.notes["restarts"] = sum(restarts)
    figures.assert_all_right()
    assert sum(restarts) >= 2 * factor


async def _settle(fleet: Fleet, figures: Figures, restarts: int) -> None:
    """Wait until so many have started again, all are ready, and some more calls have ended."""
    await figures.more(150)
    async with asyncio.timeout(90):
        while True:
            replicas = await asyncio.to_thread(fleet.replicas)
            is_restarted = sum(each["restarts"] for each in replicas) >= restarts
            if is_restarted and all(each["is_ready"] for each in replicas):
                break
            await asyncio.sleep(0.1)
