"""The episode service's part of the journey: read, reckon, remember, answer."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from prometheus_client import Counter, Gauge
from pydantic import BaseModel, JsonValue, ValidationError

from rewardfleet import __version__
from rewardfleet.episodes import Measured, Running, measure, settle
from rewardfleet.episodes.temperatures import Bin, by_temperature
from rewardfleet.wire.episode import (
    CollectRequest,
    EpisodeOptions,
    EpisodeRequest,
    EpisodeScore,
    TemperaturesRequest,
)
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.score import Status
from rewardfleet_server.pipeline import Plan, refuse_flood
from rewardfleet_server.problems import explain
from rewardfleet_server.runstate import RunState
from rewardfleet_server.telemetry import Visit
from rewardfleet_server.uploads import HeldFile

from . import answers
from .accumulator import Accumulator
from .reading import Batch, read
from .running import Runs
from .temperature import Temperatures

T = TypeVar("T")
ModelT = TypeVar("ModelT", bound=BaseModel)

#: Bodies up to this size are reckoned with on the event loop: a thread would cost as much.
_SMALL_BODY = 4 * 1024
_PROVENANCE: dict[str, JsonValue] = {"service": f"rewardfleet {__version__}"}
#: Fields of a body that is no batch.
_MAX_FIELDS = 1_000


class TemperatureMetrics:
    """What the last batches showed of each temperature; 21 values of one label at most."""

    def __init__(self) -> None:
        label = ("temperature",)
        # Not registered in prometheus_client's own registry: each service has one of its own.
        self.episodes = Counter("rewardfleet_episodes", "Episodes scored.", label, registry=None)
        self._gauges = {
            name: Gauge(f"rewardfleet_episode_{name}", about, label, registry=None)
            for name, about in (
                ("success_rate", "Success rate in the last batch with that temperature."),
                ("steps", "Mean steps, likewise."),
                ("reward_mean", "Mean reward, likewise."),
                ("reward_variance", "Variance of the reward, likewise."),
            )
        }

    @property
    def collectors(self) -> tuple[Any, ...]:
        return (self.episodes, *self._gauges.values())

    def seen(self, found: list[Bin]) -> None:
        for each in found:
            self.episodes.labels(each.temperature).inc(each.episodes)
            for name, gauge in self._gauges.items():
                gauge.labels(each.temperature).set(getattr(each, name))


class EpisodeScorer:
    """Scores episodes by themselves, as batches, and as groups whose members come one by one.

    Args:
        store: What is remembered of training runs.
        groups: Likewise, of groups whose members come one by one.
    """

    def __init__(self, store: RunState, groups: RunState) -> None:
        self._runs = Runs(store)
        self.metrics = TemperatureMetrics()
        self._accumulator = Accumulator(groups, self.metrics.seen)
        self._temperatures = Temperatures(store)
        # One, as it holds the interpreter: two would only take it from the event loop.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="reckon")

    async def plan(self, request: EpisodeRequest, upload: HeldFile | None) -> Plan[EpisodeScore]:  # noqa: ARG002 - none is taken
        """Nothing is cached: to reckon takes less than to look it up."""

        async def compute() -> EpisodeScore:
            return _alone(request)

        return Plan(answers.BACKEND, None, compute)

    def provenance(self, backend: str) -> dict[str, JsonValue]:  # noqa: ARG002 - there is one
        """Return what all answers have in common."""
        return dict(_PROVENANCE)

    def check_ready(self) -> Mapping[str, str] | None:
        """The store was opened before the service listens; there is nothing to wait for."""

    async def batch(self, body: bytes, visit: Visit) -> bytes:
        """Answer `POST /score/batch`."""

        def reckon() -> tuple[Batch, Measured, _Written | None]:
            batch = read(body)
            options = batch.head.options
            measured = measure(batch.items, options, batch.bad)
            by_itself = options.normalise != "running"
            return batch, measured, _written(measured, options, visit) if by_itself else None

        batch, measured, written = await self._reckon(body, reckon)
        if written is None:
            running = await self._runs.take_up(batch.head, measured)
            options = batch.head.options
            written = await self._reckon(body, lambda: _written(measured, options, visit, running))
        self.metrics.seen(written.temperatures)
        visit.backends.add(answers.BACKEND)
        visit.together.update(written.by_status)
        return written.answer

    async def collect(self, body: bytes, visit: Visit) -> bytes:
        """Answer `POST /collect`."""
        request = await self._reckon(body, lambda: _model(CollectRequest, body))
        answer = await self._accumulator.collect(request, visit.request_id)
        if answer["released"]:
            visit.backends.add(answers.BACKEND)
            visit.together[Status(answer["result"]["status"])] += 1
        return msgspec.json.encode(answer)

    async def temperatures(self, body: bytes, visit: Visit) -> bytes:  # noqa: ARG002 - as the others
        """Answer `POST /temperatures`."""
        answer = await self._temperatures.answer(_model(TemperaturesRequest, body))
        return answer.model_dump_json().encode()

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _reckon(self, body: bytes, work: Callable[[], T]) -> T:
        if len(body) <= _SMALL_BODY:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


@dataclass(frozen=True)
class _Written:
    """A batch's answer, and what is counted of it."""

    answer: bytes
    by_status: Mapping[Status, int]
    temperatures: list[Bin]


def _written(
    measured: Measured, options: EpisodeOptions, visit: Visit, running: Running | None = None
) -> _Written:
    settled = settle(measured, options, running)
    found = by_temperature(settled)
    answer: dict[str, Any] = {
        "results": answers.results(settled, visit.request_id),
        "groups": answers.groups(settled),
        "temperatures": answers.temperatures(found),
        "provenance": {answers.BACKEND: _PROVENANCE},
        "timing_ms": {"total": round(visit.elapsed_ms, 3)},
    }
    if running is not None:
        moments = {"mean": running.mean, "variance": running.variance}
        answer["running"] = {"count": running.count, **moments}
    return _Written(msgspec.json.encode(answer), answers.by_status(settled), found)


def _alone(request: EpisodeRequest) -> EpisodeScore:
    """Score one episode that is compared with nobody.

    Raises:
        RewardFleetError: It is bad for its kind, or its video's judge failed.
    """
    options = EpisodeOptions()
    settled = settle(measure([request], options), options)
    reason = settled.reasons.get(0)
    if reason is not None:
        raise reason
    (result,) = answers.results(settled, None)
    score = EpisodeScore.model_validate(msgspec.to_builtins(result))
    return score.model_copy(update={"keep": score.score is not None, "dropped": None})


def _model(model: type[ModelT], body: bytes) -> ModelT:
    refuse_flood(body, _MAX_FIELDS)
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise InvalidRequest(explain(error, model)) from None
