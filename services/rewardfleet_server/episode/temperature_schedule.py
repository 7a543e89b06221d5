"""`POST /temperatures`: a schedule, which may follow what a run's steps showed."""

from typing import Any

from pydantic import JsonValue

from rewardfleet.episodes import Schedule, signal_of_diversity, signal_of_success, spread
from rewardfleet.wire.episode import Adapt, TemperaturesAnswer, TemperaturesRequest
from rewardfleet_server.run_state import RunState, Scope


class TemperatureScheduler:
    """Keeps each run's schedule; every step moves it once."""

    def __init__(self, store: RunState) -> None:
        self._store = store

    async def answer(self, request: TemperaturesRequest) -> TemperaturesAnswer:
        """Return the temperatures of n samples, after the step's outcome where it is told."""
        schedule = Schedule(request.base_temperature, request.temperature_range)
        if request.adapt is not None:
            schedule = await self._moved(schedule, request.adapt)
        return TemperaturesAnswer(
            temperatures=spread(request.n, schedule.base, schedule.width).tolist(),
            base_temperature=schedule.base,
            temperature_range=schedule.width,
        )

    async def _moved(self, first: Schedule, adapt: Adapt) -> Schedule:
        def transition(state: JsonValue) -> tuple[JsonValue, JsonValue]:
            known: Any = state or vars(first)
            moved: JsonValue = dict(vars(Schedule(**known).after(_signal(adapt))))
            return moved, moved

        scope = Scope(adapt.run, "temperatures")
        answer: Any = await self._store.apply_once(scope, adapt.step, "schedule", transition)
        return Schedule(**answer)


def _signal(adapt: Adapt) -> float:
    if adapt.success_rate is not None:
        return signal_of_success(adapt.success_rate, adapt.target_success_rate)
    assert adapt.diversity is not None  # noqa: S101 - the model sees to both
    assert adapt.target_diversity is not None  # noqa: S101
    return signal_of_diversity(adapt.diversity, adapt.target_diversity)
