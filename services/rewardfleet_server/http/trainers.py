"""The routes that trainers call in their own wire formats: a trainer needs only a URL.

All of them score items of the service by its engine. docs/wire-formats.md has a table of them, and
of the formats that only one service has.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic

from pydantic import BaseModel, JsonValue

from rewardfleet.services import SERVICES
from rewardfleet.text.prompt import response_of
from rewardfleet.wire import trainers as wire
from rewardfleet.wire.errors import InvalidRequest, RewardFleetError
from rewardfleet.wire.score import Score, Status, abstained
from rewardfleet.wire.truth import truth_of_row
from rewardfleet.wire.validation import validate_json
from rewardfleet_server.engine import Engine, RequestT, ScoreT
from rewardfleet_server.observe.telemetry import RequestContext

from .routes import Route

#: What a policy wrote, in any form, and the ground truth; or why they cannot be read.
Sample = tuple[Any, JsonValue] | InvalidRequest

#: Where an action of OpenEnv has the policy's text.
_TEXTS = ("response", "completion", "code", "message")


@dataclass(frozen=True)
class TrainerApi(Generic[RequestT, ScoreT]):
    """Converts the requests of trainers to items of a service, and the scores back."""

    engine: Engine[RequestT, ScoreT]
    request_type: type[RequestT]
    #: Makes an item from what a policy wrote and a ground truth, both of any form; None if the
    #: items of the service are not made from texts. It raises `InvalidRequest` for ground truths
    #: that it cannot read.
    item_of: Callable[[Any, JsonValue], RequestT] | None = None

    def routes(self) -> Sequence[Route[Any]]:
        """Return the routes of all formats that the service can have."""
        openenv = (
            _route("/reset", "Begin an episode; OpenEnv's format", wire.IgnoredRequest,
                   wire.OpenEnvResult, _always(wire.OpenEnvResult(observation={}, done=False)),
                   scores=False),
            _route("/step", "Score an action; OpenEnv's format", wire.OpenEnvStep,
                   wire.OpenEnvResult, self._step),
        )  # fmt: skip
        if self.item_of is None:
            return openenv
        return (
            _route("/get_reward", "Score samples; OpenRLHF's format", wire.OpenRlhfRequest,
                   wire.OpenRlhfResponse, self._openrlhf),
            _route("/slime", "Score a sample; slime's format", wire.SlimeRequest, wire.SlimeReward,
                   self._slime),
            _route("/seed_session", "Begin a rollout; NeMo Gym's format", wire.IgnoredRequest,
                   wire.GymSeedResponse, _always(wire.GymSeedResponse()), scores=False),
            _route("/verify", "Score a rollout; NeMo Gym's format", wire.GymVerifyRequest,
                   wire.GymVerifyResponse, self._verify, refuse=self._refuse_verify),
            _route("/aggregate_metrics", "Average rewards; NeMo Gym's format",
                   wire.GymMetricsRequest, wire.GymMetrics, self._metrics, scores=False),
            Route("/reverify_mode", "That rollouts can be scored again; NeMo Gym's format", None,
                  wire.GymReverifyMode, _always(wire.GymReverifyMode("stateless")), scores=False,
                  method="GET"),
            *openenv,
        )  # fmt: skip

    async def _openrlhf(
        self, request: wire.OpenRlhfRequest, context: RequestContext
    ) -> wire.OpenRlhfResponse:
        def texts() -> list[Sample]:
            samples = zip(request.query, request.prompts, request.labels, strict=True)
            return [_sample(query, prompt, label) for query, prompt, label in samples]

        scores = await self._scores(await asyncio.to_thread(texts), context)
        rewards = [_number(score) for score in scores]
        numbers = [score.numbers for score in scores] or [{}]
        names = [name for name in numbers[0] if all(name in each for each in numbers)]
        logs = {name: [each[name] for each in numbers] for name in names}
        if scores:  # the same names in each answer: OpenRLHF joins those of a batch
            for cause in SERVICES[self.engine.service].causes:
                logs[f"cause/{cause}"] = [float(score.cause == cause) for score in scores]
        return wire.OpenRlhfResponse(rewards=rewards, scores=rewards, extra_logs=logs)

    async def _slime(self, request: wire.SlimeRequest, context: RequestContext) -> wire.SlimeReward:
        (score,) = await self._scores([(request.response, request.label)], context)
        return wire.SlimeReward(_number(score))

    async def _metrics(self, request: wire.GymMetricsRequest, _: RequestContext) -> wire.GymMetrics:
        rewards, count = request.rewards, len(request.verify_responses)
        if not rewards:
            return wire.GymMetrics(agent_metrics={"masked": float(count > 0)}, key_metrics={})
        mean = {"mean/reward": sum(reward / len(rewards) for reward in rewards)}
        masked = {"masked": (count - len(rewards)) / count}
        return wire.GymMetrics(agent_metrics={**mean, **masked}, key_metrics=mean)

    async def _verify(self, request: wire.GymVerifyRequest, context: RequestContext) -> BaseModel:
        try:
            sample = (request.response.messages, truth_of_row(_gym_row(request)))
            (score,) = await self._scores([sample], context)
        except RewardFleetError as error:
            if error.kind not in wire.GYM_FAILURE_KINDS:
                raise  # the caller's fault
            return self._refuse_verify(request, error)
        result = {"components": score.components, "details": score.details, "cause": score.cause}
        named = {f"reward_{name}": value for name, value in result.items()}
        return _gym_response(request, {"reward": _number(score), **named})

    @staticmethod
    def _refuse_verify(request: wire.GymVerifyRequest, error: RewardFleetError) -> BaseModel:
        """Return NeMo Gym's row of a sample without a reward.

        Of its releases: `instance_config.mask_sample`, then `mask_sample` and `failure_kind`. With
        `_ng_failure_class`, the collection of rollouts stores a row apart, and may repeat it.
        """
        config = _gym_row(request).get("instance_config")
        masked = {"mask_sample": True}
        result = {
            "reward": 0.0,
            **masked,
            "instance_config": config | masked if isinstance(config, dict) else masked,
            "failure_kind": wire.GYM_FAILURE_KINDS[error.kind],
            "failure_reason": error.detail,
            "_ng_failure_class": "judge_failed",
            "_ng_failure_judge_error": error.detail,
        }
        return _gym_response(request, result)

    async def _step(self, step: wire.OpenEnvStep, context: RequestContext) -> wire.OpenEnvResult:
        if step.timeout_s is not None:
            context.timeout_s = min(step.timeout_s, context.timeout_s or step.timeout_s)
            call = context.call_timeout_s or step.timeout_s
            context.call_timeout_s = min(step.timeout_s, call)
        name = _text_field(step.action)
        item: RequestT | InvalidRequest
        if self.item_of is None or name is None:
            item = await self._attempt(partial(_item_of_action, self.request_type, step.action))
        else:
            row = {key: value for key, value in step.action.items() if key != name}
            item = await self._item((step.action[name], truth_of_row(row)))
        score = await self.engine.score_item(item, context)
        observation: dict[str, JsonValue] = {
            "status": score.status,
            "components": {**score.components},
            "details": {**score.details},
            "cause": score.cause,
        }
        return wire.OpenEnvResult(observation=observation, reward=score.score, done=True)

    async def _scores(self, samples: Sequence[Sample], context: RequestContext) -> list[ScoreT]:
        """Score samples. These formats have no missing rewards, so one failure fails all."""
        items = [await self._item(sample) for sample in samples]
        if len(items) == 1:
            return [checked(await self.engine.score_item(items[0], context))]
        scores = await self.engine.score_batch(items, context)
        return [checked(score) for score in scores]

    async def _item(self, sample: Sample) -> RequestT | InvalidRequest:
        if isinstance(sample, InvalidRequest):
            return sample
        assert self.item_of is not None  # noqa: S101 - else there are no such routes
        return await self._attempt(partial(self.item_of, *sample))

    async def _attempt(self, make: Callable[[], RequestT]) -> RequestT | InvalidRequest:
        """Return an item, or why it is not one: it is counted like that of any other route."""
        try:
            return await asyncio.to_thread(make)
        except InvalidRequest as error:
            return error


def _always(answer: BaseModel) -> Callable[..., Any]:
    """Return the handler of a route that answers the same to all requests."""

    async def handle(_: object, __: RequestContext) -> BaseModel:
        return answer

    return handle


def _route(
    path: str,
    description: str,
    request_model: type[BaseModel],
    response_model: type[BaseModel],
    handler: Callable[..., Any],
    **more: Any,
) -> Route[Any]:
    decode = partial(validate_json, request_model, policy_fields=wire.TEXT_FIELDS)
    return Route(path, description, request_model, response_model, handler, decode, **more)


def _text_field(action: Mapping[str, JsonValue]) -> str | None:
    """Return the field of an action with the policy's text; None if the action is an item.

    A null one is no answer, unless another field has the text.
    """
    given = [name for name in _TEXTS if name in action]
    written = [name for name in given if action[name] is not None]
    if not written and action.get("revision") is not None:  # an item of the code service
        return None
    return next(iter(written or given), None)


def _item_of_action(request_type: type[RequestT], action: Mapping[str, JsonValue]) -> RequestT:
    try:
        return validate_json(request_type, json.dumps(action).encode())
    except InvalidRequest as error:
        raise InvalidRequest(f"action: {error.detail}") from None


def checked(score: ScoreT) -> ScoreT:
    """Return a score; raise why there is none, for a format that has no missing rewards."""
    if score.error is not None:
        raise RewardFleetError.from_problem(score.error)
    if score.status is Status.ABSTAINED:
        raise abstained(score)
    return score


def _number(score: Score) -> float:
    assert score.score is not None  # noqa: S101 - `checked` raises otherwise
    return score.score


def _gym_row(request: wire.GymVerifyRequest) -> dict[str, Any]:
    """Return the row of the data set in a request, without results of an earlier attempt."""
    fields = (request.model_extra or {}).items()
    return {name: value for name, value in fields if name not in wire.GYM_RESULT_FIELDS}


def _gym_response(request: wire.GymVerifyRequest, result: dict[str, Any]) -> BaseModel:
    """Return the row of a request with its result."""
    params, response = request.responses_create_params, request.response.model_dump()
    row = _gym_row(request) | {"responses_create_params": params, "response": response}
    return wire.GymVerifyResponse.model_validate(row | result)


def _sample(query: str | None, prompt: str, label: JsonValue) -> Sample:
    response = None if query is None else response_of(query, prompt)
    if query is not None and response is None:
        return InvalidRequest(f"query: does not begin with its prompt (got {query[:60]!r})")
    return response, label
