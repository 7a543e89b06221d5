"""TRL: reward functions of all trainers with `reward_funcs`."""

import functools
import inspect
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from rewardfleet.services import SERVICES

from ._rows import NAN_WOULD, QUARTILES, RowReward, is_before


def reward_function(
    service: str, url: str | Sequence[str], *, is_async: bool = True, **options: Any
) -> Callable[..., Any]:
    """Return a reward function, which TRL logs as `code_reward`, `tools_reward` or `video_reward`.

    TRL awaits or calls it: one reward per completion, NaN where there is none. It can be pickled,
    as `AsyncGRPOTrainer` requires.

    Args:
        service, url, options: See `rewardfleet.adapters`. `on_failure` is by default NaN where the
            trainer that calls leaves it out: `GRPOTrainer`, `RLOOTrainer`, `GMPOTrainer` and
            `AsyncGRPOTrainer` of TRL 1.6 or newer, themselves and with no other reward function.
            Else "raise": also for a subclass, or a call from a thread. NaN is a `ValueError` of the
            first call where TRL would count it.
        is_async: Whether it is a coroutine function. If False, it blocks, for trainers that do not
            await: `OnlineDPOTrainer`, `SDPOTrainer`, `A2POTrainer`, forks, old ones.
    """
    kind = _CoroutineFunction if is_async else _BlockingFunction
    reward: Any = kind(_FUNCTIONS[service], scorer=RowReward(service, url, **options))
    reward.__name__ = _FUNCTIONS[service].__name__  # old versions read it, a partial has none
    return reward  # type: ignore[no-any-return] # a callable


def _function(service: str) -> Callable[..., Awaitable[list[float]]]:
    async def reward(
        completions: Sequence[Any], *, scorer: RowReward, trainer: str, **columns: Any
    ) -> list[float]:
        # In old versions, a process that logs other names than the others waits for them forever,
        # or gets their values.
        metrics = dict.fromkeys(QUARTILES, math.nan) if is_before("trl", 1, 16) else {}
        rewards = await scorer.rewards(completions, columns, metrics, trainer=trainer)
        for name, value in metrics.items() if "log_metric" in columns else ():
            columns["log_metric"](name, value)
        return rewards

    reward.__name__ = reward.__qualname__ = f"{service}_reward"
    return reward


# TRL unwraps a partial function, and names the metrics after the function in it. They are names of
# this module, so that they can be pickled.
_FUNCTIONS = {name: _function(name) for name in SERVICES}
globals().update({each.__name__: each for each in _FUNCTIONS.values()})


def _caller() -> str:
    """Return the trainer that calls or awaits, as in `NAN_WOULD`: only the stack shows it."""
    frame = inspect.currentframe()
    while frame is not None:
        is_of_trl = frame.f_globals.get("__name__", "").startswith("trl.")
        if is_of_trl and (owner := frame.f_locals.get("self")) is not None:
            name = f"{type(owner).__module__.partition('.')[0].upper()} {type(owner).__name__}"
            leaves_out = NAN_WOULD.get(name) == ""
            if leaves_out and is_before("trl", 1, 6):
                return "TRL before 1.6"
            if leaves_out and len(owner.reward_func_names) > 1:
                return "TRL with several reward functions"
            return name
        frame = frame.f_back
    return ""


class _CoroutineFunction(functools.partial[Any]):
    """A coroutine function that runs code as soon as it is called, on the stack of its caller."""

    def __call__(self, *args: Any, **columns: Any) -> Any:
        trainer = _caller()
        if trainer in {"TRL A2POTrainer", "TRL OnlineDPOTrainer", "TRL SDPOTrainer"}:
            raise TypeError(f"{trainer} does not await reward functions: give is_async=False")
        return super().__call__(*args, trainer=trainer, **columns)


class _BlockingFunction:
    """A coroutine function as one that blocks: no partial function, which TRL would await."""

    def __init__(self, function: Callable[..., Any], scorer: RowReward) -> None:
        self._function, self._scorer = function, scorer

    def __call__(self, *args: Any, **columns: Any) -> list[float]:
        work = self._function(*args, scorer=self._scorer, trainer=_caller(), **columns)
        return self._scorer.loop.run(work)
