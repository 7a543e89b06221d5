"""`POST /temperatures`: a schedule, optionally adapted to the outcomes of a run's steps."""

from pydantic import TypeAdapter

from rewardfleet.episodes import (
    TemperatureSchedule,
    diversity_signal,
    spread_temperatures,
    success_signal,
)
from rewardfleet.wire.episode import (
    TemperatureAdaptation,
    TemperaturesRequest,
    TemperaturesResponse,
)
from rewardfleet_server.run_state import RunState, Scope, Shape

#: What is stored of each run.
_SHAPE = Shape(TypeAdapter(TemperatureSchedule), TypeAdapter(TemperatureSchedule))


async def sample_temperatures(
    store: RunState, request: TemperaturesRequest
) -> TemperaturesResponse:
    """Return the temperatures of n samples, adapted to the step's outcome if it is given.

    The store has the schedule of each run, which each step moves once.

    Raises:
        RewardFleetError: See `RunState.apply_once`.
    """
    schedule = initial = TemperatureSchedule(request.base_temperature, request.temperature_range)
    if (adaptation := request.adapt) is not None:

        def transition(
            state: TemperatureSchedule | None,
        ) -> tuple[TemperatureSchedule, TemperatureSchedule]:
            adapted = (state or initial).after(_signal(adaptation))
            return adapted, adapted

        schedule = await store.apply_once(
            Scope(adaptation.run, "temperatures", _SHAPE),
            adaptation.step,
            "schedule",
            transition,
            content=request.model_dump(mode="json", exclude={"n": True, "adapt": {"attempt"}}),
            attempt=adaptation.attempt,
        )
    return TemperaturesResponse(
        temperatures=spread_temperatures(request.n, schedule.base, schedule.width).tolist(),
        base_temperature=schedule.base,
        temperature_range=schedule.width,
    )


def _signal(adaptation: TemperatureAdaptation) -> float:
    if adaptation.success_rate is not None:
        return success_signal(adaptation.success_rate, adaptation.target_success_rate)
    assert adaptation.diversity is not None  # noqa: S101 - the model ensures both
    assert adaptation.target_diversity is not None  # noqa: S101
    return diversity_signal(adaptation.diversity, adaptation.target_diversity)
