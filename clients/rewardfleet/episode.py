"""The episode service's client."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .service import ServiceClient
from .wire.episode import (
    Adapt,
    CollectAnswer,
    CollectRequest,
    EpisodeAnswer,
    EpisodeBatch,
    EpisodeBatchHead,
    EpisodeOptions,
    EpisodeRequest,
    EpisodeScore,
    TemperaturesAnswer,
    TemperaturesRequest,
)
from .wire.errors import ERRORS, DeadlineExceeded, RewardFleetError
from .wire.validation import validate

#: Options as a model, or as the mapping that JSON has for it.
OptionsLike = EpisodeOptions | Mapping[str, Any]


def episode_request(uid: str, **fields: Any) -> EpisodeRequest:
    """Make an item of an episode's fields; lists of numbers may be arrays.

    Raises:
        InvalidRequest: A field is unknown, or not of its type. What its numbers may be, the
            service says.
    """
    plain = {
        name: value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        for name, value in fields.items()
    }
    return validate(EpisodeRequest, {"uid": uid, **plain})


class EpisodeClient(ServiceClient):
    """The episode service. Made by `RewardFleet`."""

    async def score(self, item: EpisodeRequest) -> EpisodeScore:
        """Have one episode scored that is compared with nobody.

        Raises:
            RewardFleetError: As the service told it; see `rewardfleet.wire.errors`.
        """
        deadline = self._transport.deadline()
        return await self._transport.post("/score", item, EpisodeScore, deadline=deadline)

    async def score_batch(
        self,
        items: Sequence[EpisodeRequest],
        options: OptionsLike | None = None,
        *,
        run: str | None = None,
        step: int | None = None,
    ) -> EpisodeAnswer:
        """Have a rollout batch scored, in one request, as groups must not be torn apart.

        Args:
            items: 1 to 4096 episodes.
            options: What holds for all of them.
            run: The training run, for `normalise: running`.
            step: Its step; likewise.

        Raises:
            RewardFleetError: The batch was refused as a whole; a bad item carries its own `error`.
        """
        told: dict[str, Any] = {"options": options or {}}
        told |= {name: value for name, value in (("run", run), ("step", step)) if value is not None}
        head = validate(EpisodeBatchHead, told)
        batch = EpisodeBatch.model_construct(
            {*head.model_fields_set, "items"}, items=list(items), **dict(head)
        )
        return await self._transport.post(
            "/score/batch", batch, EpisodeAnswer, deadline=self._transport.deadline()
        )

    async def rewards(
        self,
        items: Sequence[EpisodeRequest],
        options: OptionsLike | None = None,
        *,
        run: str | None = None,
        step: int | None = None,
    ) -> list[float]:
        """Have a rollout batch scored and return its rewards, in the same order.

        Raises:
            RewardFleetError: Only where `on_failure` is "raise"; `Abstained` among them.
        """
        try:
            answer = await self.score_batch(items, options, run=run, step=step)
        except RewardFleetError as error:
            return [self._policy.failed(error) for _ in items]
        return [self._policy.reward(score) for score in answer.results]

    async def collect(
        self,
        item: EpisodeRequest,
        *,
        run: str,
        step: int,
        group_size: int,
        wait_s: float = 60.0,
        options: OptionsLike | None = None,
    ) -> EpisodeScore:
        """Add one episode to its group, and wait until the group is released.

        Args:
            item: The episode, with its `group`.
            run: The training run.
            step: Its step.
            group_size: How many make the group whole.
            wait_s: Seconds from the group's first member to its release, whole or not.
            options: What holds for the group; the same for all members.

        Raises:
            DeadlineExceeded: The group was released without this one.
            RewardFleetError: As the service told it, of the request or of this item.
        """
        request = validate(
            CollectRequest,
            {
                "run": run,
                "step": step,
                "group_size": group_size,
                "wait_s": wait_s,
                "options": options or {},
                "item": item,
            },
        )
        give_up = self._transport.deadline() + wait_s
        while True:
            deadline = min(self._transport.deadline(), give_up)
            answer = await self._transport.post(
                "/groups/members", request, CollectAnswer, deadline=deadline
            )
            if answer.result is not None:
                if answer.result.error is not None:
                    raise ERRORS[answer.result.error.kind].of(answer.result.error)
                return answer.result
            pause = answer.retry_after_s or 1.0
            if asyncio.get_running_loop().time() + pause >= give_up:
                raise DeadlineExceeded(f"the group was not released within {wait_s:g} s")
            await asyncio.sleep(pause)

    async def temperatures(
        self,
        n: int,
        *,
        base_temperature: float = 0.6,
        temperature_range: float = 0.3,
        adapt: Adapt | Mapping[str, Any] | None = None,
    ) -> TemperaturesAnswer:
        """Ask for the temperature of each of a prompt's n samples; see `TemperaturesRequest`."""
        request = validate(
            TemperaturesRequest,
            {
                "n": n,
                "base_temperature": base_temperature,
                "temperature_range": temperature_range,
                "adapt": adapt,
            },
        )
        return await self._transport.post(
            "/temperatures", request, TemperaturesAnswer, deadline=self._transport.deadline()
        )
