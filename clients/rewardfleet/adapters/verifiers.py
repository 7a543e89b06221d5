"""verifiers and prime-rl: a reward function for a `Rubric`, or for a `Task`."""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ._rows import MissingReward, RowReward, marks_of


def reward_function(
    service: str, url: str | Sequence[str], *, column: str = "answer", **options: Any
) -> Callable[..., Awaitable[float]]:
    """Return a reward function, named after the service, e.g. `code_reward`.

    Args:
        service, url, column, options: See `rewardfleet.adapters`. The column is one of the row, of
            its `info`, or of the task. A task of verifiers 0.4 gets the error of a failure, and
            prime-rl leaves the rollout out of its group. A `Rubric` turns each `Exception` into 0,
            so a failure raises `MissingReward` there, which ends the run.
    """
    scorer = RowReward(service, url, column=column, **options)

    # Neither kind passes all of these: verifiers reads the names in the signature.
    async def reward(
        task: Any = None,
        trace: Any = None,
        completion: Any = "",
        info: Any = None,
        **row: Any,
    ) -> float:
        if trace is not None:
            value, score = await scorer.score(trace.last_reply, task.model_dump())
            trace.record_metrics(marks_of(score))
            return value
        info = json.loads(info) if isinstance(info, str) and info else info or {}
        try:
            return (await scorer.score(completion, {**row, "task": task, **info}))[0]
        except Exception as error:
            raise MissingReward(f"{type(error).__name__}: {error}") from error

    reward.__name__ = f"{service}_reward"
    return reward
