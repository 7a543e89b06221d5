"""What the service keeps of training runs: groups, running statistics and temperatures.

For trainers that call per sample, `POST /groups/members` collects groups member by member. A caller
sends its episode again until the group is released: when all members have arrived, or when `wait_s`
has passed since the first one; that request scores it. No request waits for another, so requests
hold no permits while their group is incomplete, and groups cannot block each other.

For errors see `RunState.apply_once` and `add_to_group`.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, JsonValue, TypeAdapter, ValidationError

from rewardfleet import episodes
from rewardfleet.episodes import Rewards, RunningMeanStd, TemperatureSchedule
from rewardfleet.wire import episode as wire
from rewardfleet_server.run_state import Damaged, Group, GroupKey, RunState, Scope, Shape
from rewardfleet_server.run_state.groups import add_to_group
from rewardfleet_server.run_state.values import digest

from . import encode

ModelT = TypeVar("ModelT", bound=BaseModel)

#: Limits of `retry_after_s`: short if the group may soon be complete, else long.
_MIN_RETRY_SECONDS, _MAX_RETRY_SECONDS = 0.05, 1.0
#: Number of the steps besides the newest whose counted episodes are stored. Trainers that overlap
#: rollouts with training are a few steps apart.
_KEEP_STEPS = 7

#: What is stored of each run: state and outcome are the same.
_STATISTICS, _TEMPERATURES = (
    Shape(TypeAdapter(stored), TypeAdapter(stored))
    for stored in (RunningMeanStd, TemperatureSchedule)
)


#: The members of a group that was just released, and an `EpisodeScore` of each as plain values.
Released = tuple[Rewards, list[dict[str, Any]]]


async def add_member(
    state: RunState, request: wire.GroupMemberRequest, request_id: str | None
) -> tuple[dict[str, Any], Released | None]:
    """Add a member to its group, once.

    Returns:
        A `GroupMemberResponse` as plain values, and the group if this request has released it.
    """
    key = GroupKey(request.run, request.step, str(request.item.group))

    def score(
        group: Group, members: Sequence[JsonValue]
    ) -> tuple[Sequence[JsonValue], JsonValue, Released]:
        items = [_check(key, wire.EpisodeRequest, member) for member in members]
        options = _check(key, wire.EpisodeOptions, group.options)
        batch = episodes.validate_batch(items, options, members_missing=len(items) < group.size)
        rewards = episodes.compute_rewards(batch, options)
        result = episodes.aggregate(rewards, options)
        results = msgspec.to_builtins(encode.results(result, request_id))
        stats = next(iter(encode.group_stats(result)), None)
        return results, stats, (rewards, results)

    group, result, released = await add_to_group(
        state,
        key,
        request.item.uid,
        request.item.model_dump(mode="json", exclude_unset=True),
        Group(
            size=request.group_size,
            options=request.options.model_dump(mode="json"),
            left_s=request.wait_s,
        ),
        score=score,
        attempt=request.attempt,
    )
    if group.missing is None:
        pause_s = min(max(group.left_s / 20, _MIN_RETRY_SECONDS), _MAX_RETRY_SECONDS, group.left_s)
        missing = group.size - group.arrived
        return {"released": False, "missing": missing, "retry_after_s": round(pause_s, 3)}, None
    _check(key, wire.EpisodeScore, result)
    if group.stats is not None:
        _check(key, wire.GroupStats, group.stats)
    rest = {"missing": group.missing, "result": result, "group": group.stats}
    return {"released": True, **rest}, released


def _check(key: GroupKey, model: type[ModelT], stored: JsonValue) -> ModelT:
    try:
        return model.model_validate(stored)
    except ValidationError as error:
        raise Damaged(key.scope) from error


async def count_rewards(
    store: RunState, header: wire.EpisodeBatchHeader, rewards: Rewards
) -> RunningMeanStd:
    """Count the rewards of a batch; return the statistics of the run, these included.

    Each episode of a run is counted once, by (run, step, uid). A batch that is sent again gets the
    statistics it got the first time. Of a batch that overlaps others of its step, only the new
    episodes are counted.
    """
    assert header.run is not None  # noqa: S101 - the model ensures both
    assert header.step is not None  # noqa: S101
    batch = rewards.batch
    names = [digest(str(item.uid)).decode() for item in batch.items]
    columns = zip(names, rewards.values.tolist(), batch.is_normalizable.tolist(), strict=True)
    counted = {name: reward for name, reward, counts in columns if counts}

    def transition(
        new: Sequence[float], state: RunningMeanStd | None
    ) -> tuple[RunningMeanStd, RunningMeanStd]:
        updated = (state or RunningMeanStd()).updated(new)
        return updated, updated

    return await store.apply_once(
        Scope(header.run, "running_stats", _STATISTICS),
        header.step,
        digest(sorted(counted)).decode(),
        transition,
        content=sorted(counted.items()),
        items=counted,
        attempt=header.attempt,
        keep_steps=_KEEP_STEPS,
    )


async def sample_temperatures(
    store: RunState, request: wire.TemperaturesRequest
) -> wire.TemperaturesResponse:
    """Return the temperatures of n samples, adapted to the step's outcome if it is given.

    The store has the schedule of each run, which each step moves once.
    """
    schedule = initial = TemperatureSchedule(request.base_temperature, request.temperature_range)
    if (adaptation := request.adapt) is not None:

        def transition(
            state: TemperatureSchedule | None,
        ) -> tuple[TemperatureSchedule, TemperatureSchedule]:
            adapted = (state or initial).after(_signal(adaptation))
            return adapted, adapted

        schedule = await store.apply_once(
            Scope(adaptation.run, "temperatures", _TEMPERATURES),
            adaptation.step,
            "schedule",
            transition,
            content=request.model_dump(mode="json", exclude={"n": True, "adapt": {"attempt"}}),
            attempt=adaptation.attempt,
        )
    temperatures = episodes.spread_temperatures(request.n, schedule.base, schedule.width)
    return wire.TemperaturesResponse(
        temperatures=temperatures.tolist(),
        base_temperature=schedule.base,
        temperature_range=schedule.width,
    )


def _signal(adaptation: wire.TemperatureAdaptation) -> float:
    if adaptation.success_rate is not None:
        return adaptation.success_rate - adaptation.target_success_rate
    assert adaptation.diversity is not None  # noqa: S101 - the model ensures both
    assert adaptation.target_diversity is not None  # noqa: S101
    return 1 - adaptation.diversity / adaptation.target_diversity
