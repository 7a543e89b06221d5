"""Redis with a shared cache and run state, which is stopped, frozen and flushed."""

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from operator import eq
from pathlib import Path

from rewardfleet import RewardFleet

from ..server.conftest import RedisServer
from .figures import Figures
from .processes import ServiceProcess
from .trainers import BudgetTrainer, collect_group, until_answered

#: Longer than calls that need run state wait for Redis (5 s).
_OUTAGE_SECONDS = 6
_PROGRAMS, _CALLERS, _TRAINERS, _GROUP = 30, 4, 4, 6


async def test_redis_is_stopped_frozen_and_flushed(
    tmp_path: Path, redis_server: RedisServer, figures: Figures, factor: int
):
    """Programs are scored all the time, from the cache or not. Run state is counted once.

    What was flushed is gone: budgets are then resumed from checkpoints.
    """
    server = redis_server.url.removesuffix("/0")
    cache = ("--cache", f"{server}/0", "--set", "cache_mb=0")
    budgets = ("--run-state", f"{server}/1", "--replicas", "2")
    with ExitStack() as stack:
        services = {
            "code": [stack.enter_context(ServiceProcess(tmp_path, "code", *cache))],
            "tools": [
                stack.enter_context(ServiceProcess(tmp_path, "tools", *budgets)) for _ in range(2)
            ],
            "episode": [
                stack.enter_context(
                    ServiceProcess(tmp_path, "episode", "--run-state", f"{server}/2")
                )
            ],
        }
        for each in (each for every in services.values() for each in every):
            each.wait_until_ready()
        urls = {name: [each.url for each in every] for name, every in services.items()}
        over, cached = asyncio.Event(), Cached()
        async with RewardFleet(timeout_s=60, **urls) as fleet:
            trainers = [BudgetTrainer(fleet, f"run-{n}", figures) for n in range(_TRAINERS)]
            async with asyncio.TaskGroup() as group:
                for each in trainers:
                    group.create_task(each.train(over.is_set))
                for _ in range(_CALLERS):
                    group.create_task(cached.score(fleet, figures, over))
                for number in range(2):
                    group.create_task(_collect(fleet, f"groups-{number}", figures, over))
                for _ in range(factor):
                    restored = [each.restored for each in trainers]
                    for step, seconds in _disturb(redis_server):
                        await figures.more(150)
                        await asyncio.to_thread(step)
                        await asyncio.sleep(seconds)
                    async with asyncio.timeout(60):  # each budget was flushed
                        while any(map(eq, restored, (each.restored for each in trainers))):
                            await figures.more(1)
                await figures.more(150)
                over.set()
    figures.notes["cache hits"] = cached.hits
    figures.notes["budgets restored"] = sum(each.restored for each in trainers)
    figures.assert_all_right()
    assert cached.hits > 10


def _disturb(server: RedisServer) -> Iterator[tuple[Callable[[], None], float]]:
    """Yield what to do to the server, and how long that lasts, while calls go on."""
    yield server.stop, _OUTAGE_SECONDS
    yield server.start, 0
    yield server.freeze, _OUTAGE_SECONDS
    yield server.thaw, 0

    def flush() -> None:
        server.client.flushdb()  # the cache
        _flush(server, 1)  # budgets

    yield flush, 0


def _flush(server: RedisServer, database: int) -> None:
    with server.client.client() as connection:
        connection.execute_command("SELECT", database)
        connection.execute_command("FLUSHDB")
        connection.execute_command("SELECT", 0)


class Cached:
    """Scores the same programs again and again.

    Attributes:
        hits: Scores from the cache.
    """

    def __init__(self) -> None:
        self.hits = 0

    async def score(self, fleet: RewardFleet, figures: Figures, over: asyncio.Event) -> None:
        while not over.is_set():
            number = random.randrange(_PROGRAMS)
            cases = [{"stdin": str(each), "stdout": str(each * number)} for each in range(4)]
            right = number % 5
            program = f"n = int(input())\nprint(n * {number} if n < {right} else -1)"
            figures.made += 1
            score = await until_answered(
                lambda program=program, cases=cases: fleet.code.score(
                    program, {"kind": "stdio", "cases": cases}, limits={"wall_s": 30}
                ),
                figures,
            )
            figures.check(f"program {number}", score.score, right / 4)
            self.hits += score.cached
            await asyncio.sleep(0.01)


async def _collect(fleet: RewardFleet, run: str, figures: Figures, over: asyncio.Event) -> None:
    step = 0
    while not over.is_set():
        await collect_group(fleet, run, step, figures, size=_GROUP, pace_s=0.5)
        step += 1
