"""TRL: reward functions of `GRPOTrainer`, and of the trainers with the same interface."""

import functools
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from rewardfleet.event_loop_thread import EventLoopThread
from rewardfleet.service import OnFailure
from rewardfleet.services import SERVICES

from ._rows import QUARTILES, RowReward, is_before

#: A function that TRL awaits, or calls: one reward per completion, NaN where there is none.
RewardFunction = Callable[..., Awaitable[list[float]]] | Callable[..., list[float]]


def reward_function(
    service: str,
    url: str | Sequence[str],
    *,
    column: str | None = None,
    columns: Sequence[str] = (),
    is_async: bool = True,
    on_failure: OnFailure = math.nan,
    **options: Any,
) -> RewardFunction:
    """Return a reward function, which TRL logs as `code_reward`, `tools_reward` or `video_reward`.

    It can be pickled, as `AsyncGRPOTrainer` requires.

    Args:
        service, url, column, columns, options: See `rewardfleet.adapters`.
        is_async: Whether the function is a coroutine function. If False, it blocks, for forks and
            old versions of TRL that do not await.
        on_failure: As in `RewardFleet`. TRL leaves NaN out of its group's mean and deviation, and
            gives such a completion no advantage. Versions before 1.6 count it as 0, so it is
            refused there.

    Raises:
        ValueError: TRL is too old for NaN, or an argument is not valid.
    """
    trainer = "TRL before 1.6" if is_before("trl", 1, 6) else ""
    given = {"column": column, "columns": columns, "on_failure": on_failure, **options}
    scorer = RowReward(service, url, trainer=trainer, **given)
    function = functools.partial(_FUNCTIONS[service], scorer=scorer)
    reward: Any = function if is_async else _BlockingFunction(function, scorer)
    reward.__name__ = _FUNCTIONS[service].__name__  # old versions read it, a partial has none
    return reward  # type: ignore[no-any-return] # a callable


def _function(service: str) -> Callable[..., Awaitable[list[float]]]:
    async def reward(
        completions: Sequence[Any], *, scorer: RowReward, **columns: Any
    ) -> list[float]:
        log_metric = columns.get("log_metric")
        if log_metric is None:
            return await scorer.rewards(completions, columns)
        # In old versions, a process that logs other names than the others waits for them forever,
        # or gets their values.
        metrics = dict.fromkeys(QUARTILES, math.nan) if is_before("trl", 1, 16) else {}
        rewards = await scorer.rewards(completions, columns, metrics.__setitem__)
        for name, value in metrics.items():
            log_metric(name, value)
        return rewards

    reward.__name__ = reward.__qualname__ = f"{service}_reward"
    return reward


# TRL unwraps a partial function, and names the metrics after the function in it. They are names of
# this module, so that they can be pickled.
_FUNCTIONS = {name: _function(name) for name in SERVICES}
globals().update({each.__name__: each for each in _FUNCTIONS.values()})


class _BlockingFunction:
    """A coroutine function as one that blocks. Unlike a closure, it can be pickled."""

    def __init__(self, function: Callable[..., Any], scorer: RowReward) -> None:
        self._function = function
        self._loop = EventLoopThread(scorer.aclose)

    def __call__(self, *args: Any, **given: Any) -> list[float]:
        return self._loop.run(self._function(*args, **given))
