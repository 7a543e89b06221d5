"""The client of the episode service."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from .service import RunStateClient
from .wire.episode import (
    EpisodeBatchHeader,
    EpisodeBatchRequest,
    EpisodeBatchResponse,
    EpisodeOptions,
    EpisodeRequest,
    EpisodeScore,
    GroupMemberRequest,
    GroupMemberResponse,
    TemperatureAdaptation,
    TemperaturesRequest,
    TemperaturesResponse,
)
from .wire.errors import DeadlineExceeded, RewardFleetError
from .wire.validation import validate

OptionsLike = EpisodeOptions | Mapping[str, Any]


def episode_request(uid: str, **fields: Any) -> EpisodeRequest:
    """Create an item from the fields of an episode; lists of numbers may be arrays.

    The service checks the ranges of its numbers.

    Args:
        uid: Name of the episode, unique in its batch, 1 to 200 characters.
        fields: The other fields of `EpisodeRequest`.

    Raises:
        InvalidRequest: A field is unknown, or has the wrong type.
    """
    plain = {
        name: value.tolist() if hasattr(value, "tolist") else value
        for name, value in fields.items()
    }
    return validate(EpisodeRequest, {"uid": uid, **plain})


class EpisodeClient(RunStateClient):
    """A client of the episode service, created by `RewardFleet`."""

    request_type = EpisodeRequest
    score_type = EpisodeScore

    async def score(self, item: EpisodeRequest | Mapping[str, Any]) -> EpisodeScore:
        """Score one episode, without a group.

        Raises:
            RewardFleetError: The request failed; see `rewardfleet.wire.errors`.
        """
        (request,) = await self._requests([item])
        score = await self._transport.call("POST", "/score", EpisodeScore, request)
        if self._log is not None:
            self._log.add([request], [score])
        return score

    async def score_batch(
        self,
        items: Sequence[EpisodeRequest | Mapping[str, Any]],
        options: OptionsLike | None = None,
        *,
        run: str | None = None,
        step: int | None = None,
    ) -> EpisodeBatchResponse:
        """Score a rollout batch in one request, so that its groups stay together.

        Args:
            items: 1 to 4096 episodes, or the arguments of `episode_request` for each.
            run: Name of the training run, for `normalize: running`; None: that of `RewardFleet`.
            step: Step of the training run, for `normalize: running`.

        Raises:
            RewardFleetError: The batch was refused. An invalid item has its own `error` instead.
        """
        fields = {"options": options or {}, "run": run or self._run, "step": step, **self._attempt}
        given = {name: value for name, value in fields.items() if value is not None}
        header = validate(EpisodeBatchHeader, given)
        batch = EpisodeBatchRequest.model_construct(
            {*header.model_fields_set, "items"}, items=await self._requests(items), **dict(header)
        )
        response = await self._transport.call("POST", "/score/batch", EpisodeBatchResponse, batch)
        if self._log is not None and len(response.results) == len(batch.items):
            self._log.add(batch.items, response.results, run=run, step=step, options=header.options)
        return response

    async def rewards(
        self,
        items: Sequence[EpisodeRequest | Mapping[str, Any]],
        options: OptionsLike | None = None,
        *,
        run: str | None = None,
        step: int | None = None,
    ) -> list[float]:
        """Score a rollout batch and return its rewards, in order.

        Takes the arguments of `score_batch`. Rewards are not limited to [0, 1].

        Raises:
            RewardFleetError: There is no reward, e.g. the judge of a video `Abstained`, and
                `on_failure` is "raise".
        """
        try:
            response = await self.score_batch(items, options, run=run, step=step)
        except RewardFleetError as error:
            return [self.policy.failed(error) for _ in items]
        return [self.policy.reward(score) for score in response.results]

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

        The arguments are the fields of `rewardfleet.wire.episode.GroupMemberRequest`.

        Raises:
            InvalidRequest: An argument is out of range, the episode has no group, or its group was
                released without it.
            DeadlineExceeded: The group was not released in time.
            RewardFleetError: The request failed, or this episode is invalid.
        """
        fields = {"run": run, "step": step, "group_size": group_size, "wait_s": wait_s}
        request = validate(
            GroupMemberRequest, {**fields, **self._attempt, "options": options or {}, "item": item}
        )
        give_up = self._transport.deadline() + wait_s
        while True:
            deadline = min(self._transport.deadline(), give_up)
            response = await self._transport.call(
                "POST", "/groups/members", GroupMemberResponse, request, deadline=deadline
            )
            if (score := response.result) is not None:
                if self._log is not None:
                    self._log.add([item], [score], run=run, step=step, options=request.options)
                if score.error is not None:
                    raise RewardFleetError.from_problem(score.error)
                return score
            pause = response.retry_after_s or 1.0
            if asyncio.get_running_loop().time() + pause >= give_up:
                raise DeadlineExceeded(f"the group was not released within {wait_s:g} s")
            await asyncio.sleep(pause)

    async def temperatures(
        self,
        n: int,
        *,
        base_temperature: float = 0.6,
        temperature_range: float = 0.3,
        adapt: TemperatureAdaptation | Mapping[str, Any] | None = None,
    ) -> TemperaturesResponse:
        """Return a temperature for each of the n samples of a prompt.

        The arguments are the fields of `rewardfleet.wire.episode.TemperaturesRequest`.

        Raises:
            RewardFleetError: The request failed; see `rewardfleet.wire.errors`.
        """
        fields = {"base_temperature": base_temperature, "temperature_range": temperature_range}
        request = validate(TemperaturesRequest, {"n": n, "adapt": adapt, **fields})
        if request.adapt is not None and request.adapt.attempt is None:
            adapt = request.adapt.model_copy(update=self._attempt)
            request = request.model_copy(update={"adapt": adapt})
        return await self._transport.call("POST", "/temperatures", TemperaturesResponse, request)
