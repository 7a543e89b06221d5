"""Trainers that call the services, repeat calls as documented, and check every answer."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rewardfleet import RewardFleet, RewardFleetError, episode_request
from rewardfleet.wire.errors import DeadlineExceeded, NotFound

from .figures import Figures

T = TypeVar("T")

#: A limit on how often one call is repeated; it is reached only if something is broken.
_MAX_REPEATS = 200
_MAX_STEPS = 1_000_000


async def until_answered(call: Callable[[], Awaitable[T]], figures: Figures) -> T:
    """Repeat a call that may be repeated, as long as it fails for a reason that may end."""
    for _ in range(_MAX_REPEATS):
        try:
            return await call()
        except RewardFleetError as error:
            if not (error.retryable or isinstance(error, DeadlineExceeded)):
                raise
            figures.repeated[error.kind.value] += 1
        await asyncio.sleep(0.1)
    raise AssertionError("a call was repeated too often")


async def score_episode(fleet: RewardFleet, number: int, figures: Figures, phase: str) -> None:
    """Score an episode whose reward is known, and that of no other episode."""
    request = episode_request(
        f"{number}", kind="efficiency", success=1, steps=number, max_steps=_MAX_STEPS
    )
    figures.made += 1
    began = time.monotonic()
    score = await fleet.episode.score(request)  # the client's own retries must suffice
    figures.seconds.setdefault(phase, []).append(time.monotonic() - began)
    figures.check(f"episode {number}", _steps_of(score.score), number)


def _steps_of(reward: float | None) -> int | None:
    """Return the steps that the efficiency 1 / (1 + steps / max_steps) was computed from."""
    return None if reward is None else round((1 / reward - 1) * _MAX_STEPS)


async def collect_group(
    fleet: RewardFleet, run: str, step: int, figures: Figures, *, size: int, pace_s: float
) -> None:
    """Send the members of a group one by one, each from its own caller, in any order.

    Each must get the reward of the complete group, and the same one when it asks again.
    """
    order = random.Random(f"{run} {step}")
    successes = [order.random() < 0.5 for _ in range(size)]
    mean = sum(successes) / size
    delays = [order.uniform(0, pace_s) for _ in range(size)]

    async def member(place: int) -> None:
        await asyncio.sleep(delays[place])
        item = episode_request(f"m{place}", group="g", success=int(successes[place]))
        options = {"normalize": "group_mean"}

        async def collect() -> float | None:
            score = await fleet.episode.collect(
                item, run=run, step=step, group_size=size, wait_s=600, options=options
            )
            return score.score

        figures.made += 1
        reward = await until_answered(collect, figures)
        again = await until_answered(collect, figures)
        figures.duplicated += again != reward
        figures.check(f"{run} {step} {place}", _rounded(reward), _rounded(successes[place] - mean))

    await asyncio.gather(*(member(place) for place in range(size)))


def _rounded(reward: float | None) -> float | None:
    return None if reward is None else round(reward, 9) + 0.0


class BudgetTrainer:
    """A trainer whose multiplier is the number of steps that were counted.

    It stores a checkpoint after each step, and restores it if the budget is gone.

    Attributes:
        restored: How often the budget was gone.
    """

    def __init__(self, fleet: RewardFleet, run: str, figures: Figures) -> None:
        self._fleet = fleet
        self._run = run
        self._figures = figures
        self.restored = 0

    async def train(self, is_over: Callable[[], bool], pace_s: float = 0.02) -> None:
        """Train until it is over, at least one step."""
        tools, step, checkpoint = self._fleet.tools, 0, {}
        await self._put(checkpoint)
        while step == 0 or not is_over():
            self._figures.made += 1
            try:
                for _ in range(2):  # the second one counts nothing
                    update = await until_answered(
                        lambda step=step: tools.update_budget(self._run, step, [1.0], part="all"),
                        self._figures,
                    )
                budget = await until_answered(lambda: tools.budget(self._run), self._figures)
            except NotFound:
                self._figures.made -= 1
                self.restored += 1
                await self._put(checkpoint)
                continue
            self._figures.duplicated += update.lambda_ > step + 1
            self._figures.check(f"{self._run} {step}", update.lambda_, float(step + 1))
            checkpoint = {"checkpoint": budget.checkpoint}
            step += 1
            await asyncio.sleep(pace_s)

    async def _put(self, checkpoint: dict) -> None:
        await until_answered(
            lambda: self._fleet.tools.put_budget(
                self._run, budget=0, controller="dual_ascent", eta=1, parts=1, **checkpoint
            ),
            self._figures,
        )
