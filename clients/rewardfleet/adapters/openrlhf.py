"""OpenRLHF: the `reward_func` of a file that `--reward.remote_url` names."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from rewardfleet.text.prompt import response_of
from rewardfleet.wire.errors import InvalidRequest

from ._rows import RowReward, marks_of

log = logging.getLogger(__name__)


def reward_function(
    service: str, url: str | Sequence[str], **options: Any
) -> Callable[[Sequence[str], Sequence[str], Sequence[Any]], dict[str, Any]]:
    """Return a function of queries, prompts and labels, which OpenRLHF calls in threads.

    A response is what follows the prompt in its query, without special tokens at its end. Its label
    has the tests (code), the ground truth (tools) or the reference (answers).

    Args:
        service, url, options: See `rewardfleet.adapters`; not "video". OpenRLHF logs an exception
            and goes on without this reward, which ends the step. With dynamic filtering, NaN as
            `on_failure` drops the group and draws another one.
    """
    scorer = RowReward(service, url, **options)

    async def reward(query: str, prompt: str, label: Any) -> tuple[float, dict[str, float]]:
        response = response_of(query, prompt)
        if response is None:
            raise InvalidRequest(f"the query does not begin with its prompt (got {query[:60]!r})")
        value, score = await scorer.score(response, {scorer.truth: label})
        return value, marks_of(score, service)

    async def rewards(*columns: Sequence[Any]) -> list[tuple[float, dict[str, float]]]:
        return await asyncio.gather(*(reward(*each) for each in zip(*columns, strict=True)))

    def reward_func(
        queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any]
    ) -> dict[str, Any]:
        import torch  # noqa: PLC0415 - the trainer has it

        try:
            scored = scorer.loop.run(rewards(queries, prompts, labels))
        except Exception as error:  # OpenRLHF logs it below the level that it shows
            log.error("no reward: %s", error)  # noqa: TRY400 - it is raised
            raise
        values = torch.tensor([value for value, _ in scored])
        marks = [each for _, each in scored]
        logs = {name: torch.tensor([each[name] for each in marks]) for name in (marks or [{}])[0]}
        return {"rewards": values, "scores": values, "extra_logs": logs}

    return reward_func
